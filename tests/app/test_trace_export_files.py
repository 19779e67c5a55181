"""CSV, PNG, GIF and WebP of a trace: exact values, real pictures, whole files or none."""

from __future__ import annotations

import csv
import json
import tracemalloc
from dataclasses import replace
from pathlib import Path
from typing import Literal

import numpy as np
import pytest
from PIL import Image

from app.backend.palette import DARK, LIGHT, ramp, rgb
from app.backend.trace_export import ExportError, ExportOptions, export_trace
from app.backend.trace_export import writing as writing_module
from app.backend.trace_export.animation_frames import Animation, Pace
from app.backend.trace_export.animation_layout import LINE_COLUMNS, lay_out
from app.backend.trace_export.raster_png import draw_raster
from app.backend.trace_export.scales import FILLS, scale_for
from app.models.inspector_fills import scale_of
from engine.trace import Trace
from engine.types import TokenState
from trace_pairs import hesitant, quick, with_candidates

Moving = Literal["gif", "webp"]


def rows_of(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def test_csv_has_a_row_for_every_step_and_position_with_exact_values(tmp_path: Path) -> None:
    trace = with_candidates(quick(), 3)
    export_trace(trace, tmp_path / "t.csv", "csv")
    rows = rows_of(tmp_path / "t.csv")
    assert len(rows) == trace.ids.size
    for number, row in enumerate(rows):
        at, column = divmod(number, 4)
        assert int(row["row"]) == at
        assert int(row["position"]) == trace.block_start[at] + column
        assert int(row["id"]) == trace.ids[at, column]
        assert float(row["seconds"]) == trace.seconds[at]
        assert row["state"] == TokenState(trace.state[at, column]).name.lower()
        for name, values in (("confidence", trace.confidence), ("entropy_nats", trace.entropy)):
            read = np.float32(row[name] or "nan")
            assert np.array_equal(read, values[at, column], equal_nan=True)
        assert trace.top_p is not None
        for rank in range(3):
            read = np.float32(row[f"top{rank + 1}_p"] or "nan")
            assert np.array_equal(read, trace.top_p[at, column, rank], equal_nan=True)


def test_csv_leaves_empty_what_was_not_captured(tmp_path: Path) -> None:
    export_trace(quick(), tmp_path / "t.csv", "csv")
    rows = rows_of(tmp_path / "t.csv")
    prompt = rows[0]
    assert prompt["state"] == "prompt"
    assert prompt["confidence"] == prompt["entropy_nats"] == ""
    assert prompt["edited_from"] == prompt["edited_from_text"] == ""
    assert not any(name.startswith("top") for name in prompt)
    export_trace(with_candidates(quick()), tmp_path / "k.csv", "csv")
    assert (
        rows_of(tmp_path / "k.csv")[0]["top1_p"] == rows_of(tmp_path / "k.csv")[0]["top1_id"] == ""
    )


def test_csv_texts_are_exact_and_no_formula(tmp_path: Path) -> None:
    pieces = {2: "=1+1", 3: 'a "b",\r\nc', 4: "\ud800", 5: "\u2028,\u0000"}
    trace = quick()
    trace = replace(trace, header=replace(trace.header, pieces=pieces))
    export_trace(trace, tmp_path / "t.csv", "csv")
    rows = rows_of(tmp_path / "t.csv")
    assert len(rows) == trace.ids.size
    texts = {int(row["id"]): row["text"] for row in rows}
    assert {token: json.loads(text) for token, text in texts.items() if token in pieces} == pieces
    assert all(text.startswith('"') for text in texts.values())
    assert json.loads(texts[9]) == "#9"  # a piece that the trace does not name


@pytest.mark.parametrize("kind", ["csv", "png", "gif", "webp", "html"])
def test_a_file_that_is_there_is_replaced_only_when_asked(tmp_path: Path, kind: str) -> None:
    target = tmp_path / f"kept.{kind}"
    target.write_text("mine")
    with pytest.raises(ExportError) as refused:
        export_trace(quick(), target, kind)
    assert refused.value.code == "export.exists"
    assert target.read_text() == "mine"
    done = export_trace(quick(), target, kind, ExportOptions(overwrite=True))
    assert done.size == target.stat().st_size > 100
    assert [path.name for path in tmp_path.iterdir()] == [target.name]


def test_a_file_that_appears_meanwhile_is_not_replaced(tmp_path: Path) -> None:
    target = tmp_path / "t.csv"

    def write(file: object) -> None:
        target.write_text("somebody else's")

    with pytest.raises(ExportError) as refused:
        writing_module.write_whole(target, write, overwrite=False)
    assert refused.value.code == "export.exists"
    assert target.read_text() == "somebody else's"
    assert [path.name for path in tmp_path.iterdir()] == ["t.csv"]


def test_a_write_that_fails_leaves_what_was_there(tmp_path: Path) -> None:
    target = tmp_path / "t.csv"
    target.write_text("mine")

    def fail(file: object) -> None:
        raise OSError(28, "No space left on device")

    with pytest.raises(ExportError) as refused:
        writing_module.write_whole(target, fail, overwrite=True)
    assert refused.value.code == "export.not_written"
    assert "No space left" in refused.value.message
    assert target.read_text() == "mine"
    assert [path.name for path in tmp_path.iterdir()] == ["t.csv"]
    with pytest.raises(ExportError):
        export_trace(quick(), tmp_path / "no folder" / "t.csv", "csv")


@pytest.mark.parametrize("fill", FILLS)
def test_the_scales_are_those_of_the_inspector(fill: Literal["confidence", "entropy"]) -> None:
    for vocabulary in (10, 150_000, None):
        trace = quick()
        ours = scale_for(replace(trace, header=replace(trace.header, vocab_size=vocabulary)), fill)
        theirs = scale_of(fill, vocabulary)
        assert (ours.maximum, ours.ticks, ours.root, ours.ramp, ours.unit) == (
            theirs.maximum, theirs.ticks, theirs.root, theirs.ramp, theirs.unit
        )  # fmt: skip


def test_the_raster_draws_a_value_as_its_colour_and_a_missing_one_hatched() -> None:
    trace = quick()
    image = np.asarray(draw_raster(trace, "confidence", LIGHT))
    left, top, cell = 64, 64, 24
    shades = ramp("cividis", 240)

    def points(row: int, position: int) -> set[tuple[int, ...]]:
        y, x = top + position * cell, left + row * cell
        box = image[y + 2 : y + cell - 2, x + 2 : x + cell - 2]
        return {tuple(point) for point in box.reshape(-1, 3).tolist()}

    assert points(0, 1) == {shades[round(0.9 * 239)]}
    assert points(2, 1) == {shades[round(0.9 * 239)]}, "a block keeps what its last step left"
    assert points(0, 0) == {rgb(LIGHT.surface), rgb(LIGHT.muted)}, "the prompt is not judged"
    assert points(0, 5) == {rgb(LIGHT.window)}, "its block has not begun"
    assert points(2, 5) == {shades[round(0.5 * 239)]}


def test_the_raster_of_a_long_trace_stays_small_and_says_what_it_skips(tmp_path: Path) -> None:
    trace = wide_trace(steps=7000, length=4)
    image = draw_raster(trace, "entropy", DARK)
    assert image.width < 4000
    export_trace(trace, tmp_path / "t.png", "png", ExportOptions(dark=True, fill="entropy"))
    assert Image.open(tmp_path / "t.png").size == image.size


@pytest.mark.parametrize("kind", ["gif", "webp"])
def test_an_animation_shows_every_step_and_ends_on_the_final_text(
    tmp_path: Path, kind: Moving
) -> None:
    trace = hesitant()
    export_trace(trace, tmp_path / f"t.{kind}", kind, ExportOptions(steps_per_second=5))
    frames, durations = frames_of(tmp_path / f"t.{kind}")
    assert len(frames) == 1 + len(trace)
    assert durations == [200] * len(trace) + [3000]
    drawn = painted(trace)
    for number, (frame, whole) in enumerate(zip(frames, drawn, strict=True)):
        assert np.array_equal(frame, whole), f"frame {number}"


def frames_of(path: Path) -> tuple[list[np.ndarray], list[int]]:
    """All frames as a viewer shows them, and their times in ms."""
    image = Image.open(path)
    frames, durations = [], []
    for number in range(getattr(image, "n_frames", 1)):
        image.seek(number)
        frames.append(np.asarray(image.convert("RGB")))
        durations.append(image.info["duration"])
    return frames, durations


def painted(trace: Trace) -> list[np.ndarray]:
    """The same frames, put together from what the animation says has changed."""
    from app.backend.trace_export.animation_frames import SAME, palette_of

    animation = Animation(trace, Pace(5.0))
    colors = np.frombuffer(palette_of(LIGHT), np.uint8).reshape(256, 3)
    canvas = np.zeros((animation.size[1], animation.size[0]), np.uint8)
    drawn = []
    for frame in animation.frames():
        height, width = frame.indices.shape
        box = canvas[frame.y : frame.y + height, frame.x : frame.x + width]
        box[frame.indices != SAME] = frame.indices[frame.indices != SAME]
        drawn.append(colors[canvas])
    return drawn


def test_a_long_animation_skips_steps_and_says_so(tmp_path: Path) -> None:
    trace = wide_trace(steps=1300, length=4)
    done = export_trace(trace, tmp_path / "t.gif", "gif")
    assert "every 3 steps" in done.note
    assert Image.open(tmp_path / "t.gif").n_frames == 1 + 434  # 0, 3, ..., 1299
    told = []
    export_trace(
        quick(), tmp_path / "u.gif", "gif", ExportOptions(every=2), lambda *n: told.append(n)
    )
    assert told == [(1, 3), (2, 3), (3, 3)]


def test_nothing_moves_and_the_prompt_is_there_before_the_first_step() -> None:
    layout = lay_out(hesitant())
    assert [place.column for place in layout.places] == [0, 1, 2, 3, 0, 1, 2]  # up to the stop
    assert layout.lines == 2  # the line end is a token
    assert all(place.begin + place.width <= LINE_COLUMNS for place in layout.places)
    first, second = list(Animation(hesitant(), Pace()).frames())[:2]
    prompt = first.indices[44:72, 24:54]  # "> ", three columns from the margin
    assert (prompt > 0).any()
    assert second.y + second.indices.shape[0] <= Animation(hesitant(), Pace()).size[1]


def test_words_stay_whole_and_overlong_tokens_fit() -> None:
    trace = quick()
    pieces = {2: "x" * 70, 3: " word", 5: "y" * 300, 6: "\n", 7: "中文", 1: "<end>", 9: "> "}
    layout = lay_out(replace(trace, header=replace(trace.header, pieces=pieces)))
    assert all(place.begin + place.width <= LINE_COLUMNS for place in layout.places)
    assert layout.places[2].line == layout.places[1].line + 1
    list(Animation(replace(trace, header=replace(trace.header, pieces=pieces)), Pace()).frames())


@pytest.mark.parametrize(
    "options", [{"steps_per_second": 0.0}, {"steps_per_second": float("nan")}, {"every": 0}]
)
def test_options_without_sense_are_refused(tmp_path: Path, options: dict[str, float]) -> None:
    with pytest.raises(ExportError) as refused:
        export_trace(quick(), tmp_path / "t.gif", "gif", ExportOptions(**options))
    assert refused.value.code == "export.options"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("kind", ["csv", "png", "gif", "webp", "html"])
def test_texts_of_every_kind_can_be_exported(tmp_path: Path, kind: str) -> None:
    """Nothing, too much of it, halves of characters, several writing systems."""
    trace = quick()
    odd = "\ud800\n\x00\u202e中文\U0001f469\u200d\U0001f467e\u0301"
    pieces = {2: "x" * 500_000, 3: odd, 4: odd[::-1], 5: "\r\n\r\n", 6: "", 7: "\U0001f600" * 30}
    header = replace(trace.header, model_name=odd * 20, pieces=pieces, text=odd)
    done = export_trace(replace(trace, header=header), tmp_path / f"t.{kind}", kind)
    assert done.size == (tmp_path / f"t.{kind}").stat().st_size


def test_a_trace_without_steps_is_refused(tmp_path: Path) -> None:
    trace = quick()
    names = ("block", "step", "block_start", "forwards", "seconds", "ids", "edited_from", "state")
    empty = {name: getattr(trace, name)[:0] for name in (*names, "confidence", "entropy")}
    with pytest.raises(ExportError) as refused:
        export_trace(replace(trace, **empty), tmp_path / "t.png", "png")
    assert refused.value.code == "export.empty"


def test_a_text_too_long_for_a_picture_is_refused(tmp_path: Path) -> None:
    trace = wide_trace(steps=1, length=1000)
    trace = replace(trace, header=replace(trace.header, pieces=dict.fromkeys(range(10), "\n")))
    with pytest.raises(ExportError) as refused:
        export_trace(trace, tmp_path / "t.webp", "webp")
    assert refused.value.code == "export.too_large"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("kind", ["csv", "gif", "html"])
def test_memory_does_not_grow_with_the_file(
    tmp_path: Path, kind: Literal["csv", "gif", "html"]
) -> None:
    trace = with_candidates(wide_trace(steps=200, length=160), 8)
    assert trace.top_p is not None
    export_trace(quick(), tmp_path / f"warm.{kind}", kind)  # imports and fonts
    tracemalloc.start()
    try:
        export_trace(trace, tmp_path / f"t.{kind}", kind, ExportOptions(every=4))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 6 * 2**20, f"{peak / 2**20:.1f} MB"


def wide_trace(steps: int, length: int) -> Trace:
    """One block of `length` positions over `steps` steps, of random guesses."""
    rng = np.random.default_rng(3)
    shape = (steps, length)
    confidence = rng.random(shape, dtype=np.float32)
    return Trace(
        block=np.zeros(steps, np.int32),
        step=np.arange(steps, dtype=np.int32),
        block_start=np.zeros(steps, np.int32),
        forwards=np.arange(1, steps + 1, dtype=np.int32),
        seconds=np.arange(1, steps + 1) / 100,
        ids=rng.integers(2, 6, shape, dtype=np.int32),
        edited_from=np.full(shape, -1, np.int32),
        state=np.where(np.arange(steps)[:, None] == steps - 1, 2, 1).repeat(length, 1).astype("u1"),
        confidence=confidence,
        entropy=(2 * (1 - confidence)).astype(np.float32),
        header=quick().header,
    )
