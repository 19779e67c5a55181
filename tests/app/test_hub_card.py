"""A model card is text, whoever wrote it, and never keeps the window waiting."""

from __future__ import annotations

import re
import time

import pytest

from app.backend.hub.card import text_only

LETTERS = 1_000_000


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
    text_only(unit * (LETTERS // len(unit)))
    text_only("---\n" + unit * (LETTERS // len(unit)))
    assert time.perf_counter() - begun < 5.0  # some tenths; hours, where it grows with the square
