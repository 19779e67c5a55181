"""A model card is text, whoever wrote it, and never keeps the window waiting."""

from __future__ import annotations

import re
import time

import pytest

from app.backend.hub.card import CELLS, LETTERS, LINES, beginning, text_only

MANY = 1_000_000  # letters


def test_a_card_is_left_with_its_words_and_its_code() -> None:
    card = (
        "---\nlicense: mit\n---\n# T\n![a plot](https://evil.test/x.png)\n<img src='https://e/y'>"
        "<script>x</script> [link](https://ok) <https://auto.link> a < b\n"
        "```html\n<b>![kept](u)</b>\n```\n<!-- a\nnote -->\nend"
    )
    assert text_only(card) == (
        "# T\n[a plot]\nx [link](https://ok) <https://auto.link> a < b\n"
        "```html\n<b>![kept](u)</b>\n```\n\nend"
    )


@pytest.mark.parametrize(
    "card",
    [
        "<<b>script>x</<b>script>",
        "<scr<b>ipt src=x>",
        "![a [b] c](https://evil.test/x.png)",
        "!![a](u)[b](https://evil.test/x.png)",
        "!<b>[a](https://evil.test/x.png)</b>",
        "![![in](u)](https://evil.test/x.png)",
        "![x][y]\n\n[y]: https://evil.test/x.png",
        "<!-- never closed ![x](https://evil.test/x.png) <img src=x>",
    ],
)
def test_what_is_nested_to_slip_through_is_still_no_image_and_no_tag(card: str) -> None:
    text = text_only(card)
    assert "![" not in text
    assert not re.search(r"(?<!\\)<[A-Za-z/!]", text)


@pytest.mark.parametrize(
    "unit",
    ["<!--", "![", "![](", "![][", "<a", "<a ", "`", "```", "<<b>x>", "---\n", "\n\n\n", "[", "\\"],
)
def test_a_card_made_to_be_slow_to_read_is_not(unit: str) -> None:
    begun = time.perf_counter()
    text_only(unit * (MANY // len(unit)))
    text_only("---\n" + unit * (MANY // len(unit)))
    assert time.perf_counter() - begun < 5.0  # some tenths; hours, where it grows with the square


def test_the_beginning_of_a_card_ends_with_a_line_and_in_time() -> None:
    assert beginning("# T\n\nwords") == "# T\n\nwords"
    assert beginning("") == ""
    assert beginning("- a\n" * 10_000) == "- a\n" * LINES
    assert beginning("|a|b|\n" * 10_000).count("|") <= CELLS
    assert len(beginning("x" * 99 + "\n" + "word " * 10_000)) == 100
    assert len(beginning("x" * 100_000)) == LETTERS  # a single line
    assert len(beginning("|" * 100_000)) == LETTERS
