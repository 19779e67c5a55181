"""The replay page in a real browser: it plays, obeys the keyboard, asks for nothing, and no text in
it ever becomes markup."""

from __future__ import annotations

import base64
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Literal

import numpy as np
import pytest
from browser import Browser, find_browser
from PIL import Image

from app.backend.palette import DARK, LIGHT, rgb
from app.backend.trace_export import ExportError, export_trace
from app.backend.trace_export import replay as replay_module
from engine.trace import Trace
from engine.types import Message
from trace_pairs import hesitant, quick, with_candidates

HOSTILE = (
    "</script><script>window.pwned = 1</script>",
    "<img src=x onerror='window.pwned = 1'>",
    "</style><style>body { display: none }</style>",
    "<!--<script>",
    "]]>&lt;b&gt;\u2028\u2029\u202e\ud800`${window.pwned = 1}`",
    "__proto__",
)
# [frames, ms of the last one, width, reds of rows 44..59 of it]
LAST_FRAME = """async (packed, type) => {
    const data = Uint8Array.from(atob(packed), c => c.charCodeAt(0));
    const images = new ImageDecoder({data, type});
    await images.tracks.ready;
    await images.completed;
    const frames = images.tracks.selectedTrack.frameCount;
    const {image} = await images.decode({frameIndex: frames - 1});
    const canvas = new OffscreenCanvas(image.displayWidth, image.displayHeight);
    const pen = canvas.getContext('2d');
    pen.drawImage(image, 0, 0);
    const rows = pen.getImageData(0, 44, canvas.width, 16).data.filter((v, i) => i % 4 === 0);
    return [frames, image.duration / 1000, canvas.width, btoa(String.fromCharCode(...rows))];
}"""


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    program = find_browser()
    if program is None:
        pytest.skip("there is no Chromium to open a page with (on Debian: apt install chromium)")
    opened = Browser(program, tmp_path_factory.mktemp("profile"))
    yield opened
    opened.close()


@pytest.fixture(autouse=True)
def _unspoilt(request: pytest.FixtureRequest) -> Iterator[None]:
    """No page may complain or ask for anything but itself."""
    if "browser" not in request.fixturenames:
        yield
        return
    browser: Browser = request.getfixturevalue("browser")
    browser.complaints.clear()
    browser.requests.clear()
    browser.prefer(prefers_color_scheme="light")
    yield
    assert browser.complaints == []
    assert [address for address in browser.requests if not address.startswith("file:")] == []
    assert len(browser.requests) <= 1


def page_of(trace: Trace, folder: Path) -> Path:
    return export_trace(trace, folder / "replay.html", "html").path


def text(browser: Browser, name: str) -> str:
    return browser.run(f"document.getElementById({name!r}).textContent")


def tokens(browser: Browser) -> list[str]:
    """Class and text of every cell."""
    return browser.run(
        "[...document.querySelectorAll('.token')]"
        ".map(cell => cell.className.slice(6) + ':' + cell.textContent)"
    )


def test_it_opens_on_the_first_step_and_shows_the_state_of_every_position(
    browser: Browser, tmp_path: Path
) -> None:
    browser.open(page_of(hesitant(), tmp_path))
    assert text(browser, "fault") == ""
    assert text(browser, "status") == "step 1 of 6, block 1, 0.02 s"
    assert tokens(browser) == [
        "prompt:> ", "committed:The", "draft: dog", "masked:", "masked:", "masked:", "masked:"
    ]  # fmt: skip


def test_it_begins_at_an_open_position_or_at_the_first_that_is_not_the_prompts(
    browser: Browser, tmp_path: Path
) -> None:
    selected = "document.querySelector('[aria-selected]').id"
    browser.open(page_of(hesitant(), tmp_path))
    assert browser.run(selected) == "token-2"
    trace = quick()
    state = trace.state.copy()
    state[0, 2] = 2  # all of the first block is accepted at once
    (tmp_path / "replay.html").unlink()
    browser.requests.clear()
    browser.open(page_of(replace(trace, state=state), tmp_path))
    assert browser.run(selected) == "token-1"


def test_the_keyboard_goes_through_steps_blocks_and_positions(
    browser: Browser, tmp_path: Path
) -> None:
    browser.open(page_of(hesitant(), tmp_path))
    browser.press("ArrowRight")
    browser.press("ArrowRight")
    assert text(browser, "status").startswith("step 3 of 6, block 1")
    assert tokens(browser)[2] == "edited: dog"
    browser.press("ArrowRight", shift=True)
    assert text(browser, "status").startswith("step 5 of 6, block 2")
    assert tokens(browser)[4] == "committed end:↵"
    browser.press("ArrowLeft", shift=True)
    assert text(browser, "status").startswith("step 1 of 6")
    browser.press("End")
    assert text(browser, "status").startswith("step 6 of 6")
    browser.press("ArrowRight")
    assert text(browser, "status").startswith("step 6 of 6"), "there is nothing behind the end"
    before = browser.run("document.querySelector('[aria-selected]').id")
    browser.press("ArrowDown")
    after = browser.run("document.querySelector('[aria-selected]').id")
    assert (before, after) == ("token-2", "token-3")
    assert text(browser, "card-head") == "Position 11, step 6"


def test_space_plays_to_the_end(browser: Browser, tmp_path: Path) -> None:
    browser.open(page_of(hesitant(), tmp_path))
    browser.press(" ")
    assert text(browser, "play") == "Pause"
    browser.wait("document.getElementById('status').textContent.startsWith('step 6 of 6')")
    browser.wait("document.getElementById('play').textContent === 'Play'")
    browser.press(" ")  # again, from the beginning
    assert not text(browser, "status").startswith("step 6")
    browser.press(" ")
    assert text(browser, "play") == "Play"


def test_the_card_tells_candidates_edits_and_history(browser: Browser, tmp_path: Path) -> None:
    trace = with_candidates(hesitant())
    browser.open(page_of(trace, tmp_path))
    browser.run("document.getElementById('token-2').click()")
    for _ in range(3):
        browser.press("ArrowRight")
    card = text(browser, "card")
    assert "“ cat”" in card
    assert "0.5000" in card  # its confidence
    assert "2.000 nat" in card
    assert "0.2500" in card  # the first candidate: half of it
    assert "step 3: “ cat” → “ dog”" in card
    assert "step 4: “ dog” → “ cat”" in card
    rows = browser.run("[...document.querySelectorAll('#card tr.now td')].map(c => c.textContent)")
    assert rows == ["4", " cat", "edited", "0.500"]


def test_what_was_not_captured_is_called_so(browser: Browser, tmp_path: Path) -> None:
    trace = hesitant()
    cut = replace(trace, header=replace(trace.header, stats=None, reason=None))
    browser.open(page_of(cut, tmp_path))
    browser.run("document.getElementById('token-0').click()")
    card = text(browser, "card")
    assert "Confidencenot captured" in card
    assert "Entropynot captured" in card
    assert "Candidates were not captured in this recording." in card
    assert "TPF–" in text(browser, "numbers")
    assert "does not hold the end" in text(browser, "numbers")
    browser.run("{fill.value = 'confidence'; fill.dispatchEvent(new Event('change'))}")
    assert "prompt unknown" in browser.run("document.getElementById('token-0').className")


def test_colours_are_those_of_the_fixed_scale(browser: Browser, tmp_path: Path) -> None:
    browser.open(page_of(hesitant(), tmp_path))
    browser.run("{fill.value = 'confidence'; fill.dispatchEvent(new Event('change'))}")
    found = browser.run("document.getElementById('token-1').style.backgroundColor")
    color = np.array([int(n) for n in re.findall(r"\d+", found)])
    assert np.abs(color - rgb("#707173")).max() <= 4  # the middle of cividis
    ratio = "(canvas.width / canvas.clientWidth)"
    point = browser.run(
        "(() => { const canvas = document.querySelector('#raster canvas');"
        "return [...canvas.getContext('2d').getImageData("
        f"{ratio} * (56 + 8), {ratio} * (1.5 / 8 * 220), 1, 1).data]; }})()"
    )
    assert np.abs(np.array(point[:3]) - rgb("#707173")).max() <= 4


def test_a_small_probability_is_not_shown_as_none(browser: Browser, tmp_path: Path) -> None:
    trace = with_candidates(quick())
    assert trace.top_p is not None
    trace = replace(trace, top_p=np.where(trace.top_p > 0, np.float32(1e-6), trace.top_p))
    browser.open(page_of(trace, tmp_path))
    assert "< 0.0001" in text(browser, "card")
    assert "0.0000" not in text(browser, "card")


def test_a_click_on_the_raster_selects_step_and_position(browser: Browser, tmp_path: Path) -> None:
    browser.open(page_of(hesitant(), tmp_path))
    box = browser.run(
        "(() => { const b = document.querySelector('#raster canvas').getBoundingClientRect();"
        "return [b.x, b.y, b.width]; })()"
    )
    browser.click(box[0] + 56 + (box[2] - 68) * 2.5 / 6, box[1] + 220 * 2.5 / 8)
    assert text(browser, "card-head") == "Position 10, step 3"


@pytest.mark.parametrize(("scheme", "colors"), [("light", LIGHT), ("dark", DARK)])
def test_it_follows_the_system_and_a_choice(
    browser: Browser, tmp_path: Path, scheme: str, colors: object
) -> None:
    browser.prefer(prefers_color_scheme=scheme)
    browser.open(page_of(quick(), tmp_path))
    ground = "getComputedStyle(document.body).backgroundColor"
    assert browser.run(ground) == "rgb({}, {}, {})".format(*rgb(colors.window))
    browser.run("{theme.value = 'dark'; theme.dispatchEvent(new Event('change'))}")
    assert browser.run(ground) == "rgb({}, {}, {})".format(*rgb(DARK.window))


def test_hostile_texts_stay_texts(browser: Browser, tmp_path: Path) -> None:
    """Every place a text can come from: tokens, candidates, prompt, answer, names."""
    trace = with_candidates(hesitant(), 8)
    pieces = {token: HOSTILE[token % len(HOSTILE)] for token in range(10)}
    every = "".join(HOSTILE)
    header = replace(
        trace.header,
        pieces=pieces,
        model_name=every,
        model_family=every,
        runtime=every,
        quantisation=every,
        device=every,
        created=every,
        text=every,
        messages=(Message("user", every), Message("system", every)),
        stop_ids=(),
    )
    browser.open(page_of(replace(trace, header=header), tmp_path))
    assert text(browser, "fault") == ""
    for key in ("ArrowDown", "ArrowRight", "End"):
        browser.press(key)
    assert browser.run("typeof window.pwned") == "undefined"
    assert browser.run("document.images.length") == 0
    assert browser.run("document.querySelectorAll('style').length") == 1
    assert browser.run("getComputedStyle(document.body).display") == "block"
    running = "[...document.scripts].filter(s => !s.type).length"
    assert browser.run(running) == 1
    reply = text(browser, "reply")
    assert every.replace("\ud800", "") in reply.replace("\ud800", "").replace("\ufffd", "")
    assert HOSTILE[0] in tokens(browser)[-1] + "".join(tokens(browser))


def test_the_page_forbids_scripts_that_are_not_its_own(browser: Browser, tmp_path: Path) -> None:
    browser.open(page_of(quick(), tmp_path))
    browser.run(
        "(() => { const s = document.createElement('script'); s.textContent = 'window.pwned = 1';"
        "document.body.append(s); })()"
    )
    assert browser.run("typeof window.pwned") == "undefined"
    assert any("Content Security Policy" in complaint for complaint in browser.complaints)
    browser.complaints.clear()


def test_a_page_that_was_cut_says_so(browser: Browser, tmp_path: Path) -> None:
    page = page_of(quick(), tmp_path)
    content = page.read_text("utf-8")
    page.write_text(re.sub(r'(?<="data-ids">)[^<]+', "", content), "utf-8")
    browser.open(page)
    assert text(browser, "fault") != ""
    assert browser.run("document.documentElement.dataset.ready") == "failed"


@pytest.mark.parametrize("kind", ["gif", "webp"])
def test_a_browser_shows_the_frames_of_an_animation(
    browser: Browser, tmp_path: Path, kind: Literal["gif", "webp"]
) -> None:
    """Another decoder than the one that the exporter's own tests read with."""
    done = export_trace(hesitant(), tmp_path / f"t.{kind}", kind)
    (tmp_path / "empty.html").write_text("<html data-ready=yes></html>")
    browser.open(tmp_path / "empty.html")
    data = base64.b64encode(done.path.read_bytes()).decode()
    found = browser.run(f"({LAST_FRAME})('{data}', 'image/{kind}')")
    expected = Image.open(done.path)
    expected.seek(len(hesitant()))
    red = np.asarray(expected.convert("RGB"))[44:60, :, 0]
    assert found[:3] == [1 + len(hesitant()), 3000, expected.width]
    shown = np.frombuffer(base64.b64decode(found[3]), np.uint8).reshape(red.shape)
    assert np.array_equal(shown, red)
    assert red.min() < 100, "there is text"


def test_a_page_never_tells_where_the_model_lay(tmp_path: Path) -> None:
    trace = quick()
    header = replace(trace.header, model_path="somebody's private folder")
    content = page_of(replace(trace, header=header), tmp_path).read_text("utf-8")
    assert "private folder" not in content


def test_the_page_holds_no_address(tmp_path: Path) -> None:
    assert "http" not in page_of(quick(), tmp_path).read_text("utf-8").replace("http-equiv", "")


def test_a_trace_too_large_for_a_browser_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replay_module, "MOST_BYTES", 100)
    with pytest.raises(ExportError) as refused:
        page_of(quick(), tmp_path)
    assert refused.value.code == "export.too_large"
    assert list(tmp_path.iterdir()) == []
