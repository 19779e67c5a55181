"""The formats a trace can be exported to, and one call that writes any of them.

Knows which format takes which option. Refuses to know how each is made.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from app.backend.palette import DARK, LIGHT
from app.backend.trace_export.scales import Fill
from app.backend.trace_export.writing import ExportError, write_whole
from engine.trace import Trace

ExportFormat = Literal["csv", "png", "gif", "webp", "html"]
FORMATS: tuple[ExportFormat, ...] = get_args(ExportFormat)
MOST_FRAMES = 600  # of an animation that was not told how many steps to show


@dataclass(frozen=True)
class ExportOptions:
    """dark: colours of a picture (a page follows its reader's system). fill: what a raster shows.
    steps_per_second: of an animation. every: it shows each n-th step; None = all, or as many as
    `MOST_FRAMES` allow. overwrite: a file that is there is replaced."""

    dark: bool = False
    fill: Fill = "confidence"
    steps_per_second: float = 10.0
    every: int | None = None
    overwrite: bool = False


@dataclass(frozen=True)
class Exported:
    """What was written. note: a sentence on what the file leaves out, or ""."""

    path: Path
    size: int
    note: str


def export_trace(
    trace: Trace,
    path: Path,
    kind: ExportFormat,
    options: ExportOptions | None = None,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Exported:
    """Writes `path` whole or not at all. progress: (frames written, all) of an animation.

    Raises ExportError `export.exists`, `export.not_written`, `export.too_large`, `export.empty`,
    `export.options`.
    """
    options = options or ExportOptions()
    if len(trace) == 0:
        raise ExportError(
            "export.empty", "This trace holds no step.", "Record a reply of at least one step."
        )
    paced = 0 < options.steps_per_second < math.inf
    if not paced or (options.every is not None and options.every < 1):
        raise ExportError(
            "export.options",
            "An animation needs more than 0 steps a second, and a frame for every 1 step or more.",
            "Choose other numbers.",
        )
    note = ""
    if kind == "csv":
        from app.backend.trace_export.csv_rows import write_csv

        write_whole(path, lambda file: write_csv(trace, file), overwrite=options.overwrite)
    elif kind == "html":
        from app.backend.trace_export.replay import write_replay

        write_whole(path, lambda file: write_replay(trace, file), overwrite=options.overwrite)
    elif kind == "png":
        from app.backend.trace_export.raster_png import write_png

        colors = DARK if options.dark else LIGHT
        write_whole(
            path,
            lambda file: write_png(trace, file, options.fill, colors),
            overwrite=options.overwrite,
        )
    else:
        note = _animate(trace, path, kind, options, progress)
    return Exported(path, path.stat().st_size, note)


def _animate(
    trace: Trace,
    path: Path,
    kind: Literal["gif", "webp"],
    options: ExportOptions,
    progress: Callable[[int, int], None],
) -> str:
    from app.backend.trace_export.animation_files import write_gif, write_webp
    from app.backend.trace_export.animation_frames import Animation, Pace, palette_of

    every = options.every or -(-len(trace) // MOST_FRAMES)
    animation = Animation(trace, Pace(options.steps_per_second, every))
    write = write_gif if kind == "gif" else write_webp
    palette = palette_of(DARK if options.dark else LIGHT)
    write_whole(
        path,
        lambda file: write(
            animation.frames(),
            animation.size,
            palette,
            file,
            lambda done: progress(done, animation.count),
        ),
        overwrite=options.overwrite,
    )
    if every == 1:
        return ""
    return f"One frame for every {every} steps; the last step is in it."
