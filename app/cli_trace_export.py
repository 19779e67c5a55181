"""`unblur trace export` and `unblur trace diff`: recorded replies as other files, and side by side.

It knows arguments and what is printed. What an export holds and what a comparison finds is
elsewhere's knowledge. No Qt and no torch.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import shutil
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, get_args

from app.backend.trace_export import FORMATS, ExportError, ExportOptions, export_trace
from app.backend.trace_export.formats import ExportFormat
from app.backend.trace_export.scales import FILLS
from engine.trace import Trace, open_trace
from engine.trace.compare import Comparison, compare
from engine.trace.compare_json import comparison_json
from engine.trace.numbers import Figure, TraceNumbers
from engine.trace.why import divergence_sentence, quoted, why_slower

if TYPE_CHECKING:
    from argparse import _SubParsersAction  # the type that add_subparsers gives

MOST_LISTED = 20
INTERRUPTED = 130


def add_export_and_diff(commands: _SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds both commands; each sets `run`, a function from its options to an exit status that may
    raise `UnblurError`, and has `--json`."""
    _add_export(commands)
    _add_diff(commands)


def _add_export(commands: _SubParsersAction[argparse.ArgumentParser]) -> None:
    text = "Write a trace as CSV, a picture, an animation or a page that replays it."
    export = commands.add_parser("export", help=text, description=text)
    export.add_argument("trace", type=Path, help="a .dntrace file")
    export.add_argument("output", type=Path, help="what to write; its ending says the format")
    export.add_argument("--format", choices=FORMATS, help="instead of the ending")
    export.add_argument("--force", action="store_true", help="replace a file that is there")
    export.add_argument("--dark", action="store_true", help="dark colours (png, gif, webp)")
    export.add_argument(
        "--fill", choices=FILLS, default="confidence", help="what the raster shows (png)"
    )
    export.add_argument(
        "--speed",
        type=float,
        default=10.0,
        metavar="STEPS",
        help="steps of the reply a second (gif, webp); 10 if omitted",
    )
    export.add_argument(
        "--every",
        type=int,
        metavar="N",
        help="one frame for every N steps (gif, webp); as few as give 600 frames if omitted",
    )
    export.add_argument("--json", action="store_true", help="print one JSON object")
    export.set_defaults(run=run_export)


def _add_diff(commands: _SubParsersAction[argparse.ArgumentParser]) -> None:
    text = "Compare two traces: where they part, their figures, and why one is slower."
    diff = commands.add_parser("diff", help=text, description=text)
    diff.add_argument("a", type=Path, metavar="A")
    diff.add_argument("b", type=Path, metavar="B")
    diff.add_argument("--json", action="store_true", help="print one JSON object")
    diff.set_defaults(run=run_diff)


def run_export(options: argparse.Namespace) -> int:
    """Writes the file and says what was written."""
    kind = options.format or _format_of(options.output)
    _refuse_own_trace(options.trace, options.output)
    trace = open_trace(options.trace)
    chosen = ExportOptions(
        dark=options.dark,
        fill=options.fill,
        steps_per_second=options.speed,
        every=options.every,
        overwrite=options.force,
    )
    try:
        with _stoppable():
            done = export_trace(trace, options.output, kind, chosen, _tell_frames)
    except KeyboardInterrupt:
        print("\nStopped. Nothing was written.", file=sys.stderr)
        return INTERRUPTED
    if options.json:
        facts = {"path": str(done.path), "bytes": done.size, "format": kind, "note": done.note}
        print(json.dumps(facts, indent=1))
    else:
        print(f"{done.path}: {_bytes(done.size)}")
        if done.note:
            print(done.note)
    return 0


@contextlib.contextmanager
def _stoppable() -> Iterator[None]:
    """Ctrl+C raises in here, so that a half-written file is removed; elsewhere it ends the
    process."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _format_of(path: Path) -> ExportFormat:
    ending = path.suffix.lower().removeprefix(".")
    for known in get_args(ExportFormat):
        if ending == known or (ending, known) == ("htm", "html"):
            return known
    raise ExportError(
        "export.format",
        f"{path.name} does not say which format is meant.",
        f"End its name in one of .{', .'.join(FORMATS)}, or add --format.",
    )


def _refuse_own_trace(trace: Path, output: Path) -> None:
    """A slip of the hand must not cost the recording, even with --force."""
    if output.exists() and trace.exists() and output.samefile(trace):
        raise ExportError(
            "export.own_trace",
            "This would replace the trace by its export.",
            "Choose another name for the export.",
        )


def _tell_frames(done: int, total: int) -> None:
    if sys.stderr.isatty():
        end = "\n" if done == total else ""
        print(f"\rframe {done:,} of {total:,}", end=end, file=sys.stderr, flush=True)


def _bytes(size: int) -> str:
    if size < 10**6:
        return f"{max(1, round(size / 1000)):,} kB"
    return f"{size / 10**6:,.1f} MB"


def run_diff(options: argparse.Namespace) -> int:
    """Prints the comparison. 0 also when the two differ: a difference is no failure."""
    a, b = open_trace(options.a), open_trace(options.b)
    found = compare(a, b)
    if options.json:
        document = comparison_json(a, b, found)
        print(json.dumps(document, indent=1, allow_nan=False))
        return 0
    for line in _diff_lines(a, b, found, options):
        print(line)
    return 0


def _diff_lines(a: Trace, b: Trace, found: Comparison, options: argparse.Namespace) -> list[str]:
    lines = [f"A  {options.a}: {_described(a)}", f"B  {options.b}: {_described(b)}"]
    lines += [f"Note: {note}" for note in found.notes]
    lines += ["", divergence_sentence(a, b, found), ""]
    lines += _table(found.a, found.b)
    lines += ["", *_token_lines(a, b, found), *why_slower(a, b, found)]
    return lines


def _described(trace: Trace) -> str:
    header = trace.header
    settings = header.settings
    facts = [header.model_name or "a model that is not named", header.quantisation, header.runtime]
    if settings is not None:
        editing = settings.editing_threshold
        facts.append(
            f"threshold {settings.threshold:g}, editing "
            f"{'off' if editing is None else f'{editing:g}'}, "
            f"temperature {settings.temperature:g}, seed {settings.seed}"
        )
    return ", ".join(fact for fact in facts if fact)


def _table(a: TraceNumbers, b: TraceNumbers) -> list[str]:
    """Figures side by side."""
    width = max(len(figure.name) for figure in a.figures)
    lines = [f"{'':{width}}  {'A':>14}  {'B':>14}  {'B - A':>10}"]
    for one, other in zip(a.figures, b.figures, strict=True):
        row = f"{one.name:{width}}  {one.text:>14}  {other.text:>14}  {_change(one, other):>10}"
        lines.append(row.rstrip())
    return lines


def _change(one: Figure, other: Figure) -> str:
    if one.value is None or other.value is None:
        return "–"
    change = other.value - one.value
    return "" if round(change, one.digits) == 0 else f"{change:+,.{one.digits}f}"


def _token_lines(a: Trace, b: Trace, found: Comparison) -> list[str]:
    """The final tokens that differ, the first `MOST_LISTED` of them."""
    final = found.final
    total = int(final.different.sum())
    if not total:
        return []
    most = min(total, MOST_LISTED, max(5, shutil.get_terminal_size().lines - 24))
    lines = [f"{total:,} of {len(final.position):,} final tokens differ:"]
    for index in final.different.nonzero()[0][:most].tolist():
        one, other = quoted(a, int(final.a[index])), quoted(b, int(final.b[index]))
        lines.append(f"  {int(final.position[index]):>6}  {one}  {other}")
    if total > most:
        lines.append(f"  and {total - most:,} more; --json lists all of them")
    return [*lines, ""]
