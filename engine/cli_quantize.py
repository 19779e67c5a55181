"""`quantize SRC DST`: writes an NVFP4 copy of a bfloat16 checkpoint, shows how far it is, and says
how good the copy is.

Knows arguments, the progress line and the layout of the report. The work is done in
`engine.checkpoint.quantiser` and `engine.logit_distance`.
"""

from __future__ import annotations

import argparse
import json
import sys
import threading
import time
from collections.abc import Sequence
from functools import partial
from typing import TextIO

from engine.checkpoint.quantiser import Choice, QuantiseOptions, QuantiseReport, quantise
from engine.checkpoint.quantiser.rules import LAYOUTS
from engine.cli_inspect import size_text
from engine.logit_distance import PROMPT, compare_logits
from engine.types import LoadProgress

_WORST = 5  # matrices and layers that the report lists
_EVERY = 0.2  # seconds between two progress lines on a terminal


def run(argv: Sequence[str], stop: threading.Event) -> None:
    """Runs the command. Raises UnblurError for what cannot be done, and when `stop` is set."""
    options = _parser().parse_args(list(argv))
    show = ProgressLine(sys.stderr)
    compare = None
    if not options.no_compare:
        prompt = PROMPT if options.prompt is None else options.prompt
        compare = partial(compare_logits, prompt=prompt, progress=show, stop=stop)
    try:
        report = quantise(
            options.source,
            options.target,
            QuantiseOptions(
                layout=options.layout,
                choice=Choice(options.what, tuple(options.modules), tuple(options.exclude)),
                shared_scales=not options.separate_scales,
                shard_bytes=int(options.shard_size * 1e9),
                restart=options.restart,
            ),
            compare=compare,
            progress=show,
            stop=stop,
        )
    finally:
        show.end()
    if options.json:
        print(json.dumps(report.as_json(), indent=2))
    else:
        print(report_text(report))


class ProgressLine:
    """Progress for a person: one line that is written over on a terminal, else a line a phase."""

    def __init__(self, stream: TextIO) -> None:
        self._stream, self._live = stream, stream.isatty()
        self._phase, self._shown, self._width = "", 0.0, 0

    def __call__(self, progress: LoadProgress) -> None:
        new, now = progress.phase != self._phase, time.monotonic()
        self._phase = progress.phase
        if not self._live:
            if new:
                print(progress.phase, file=self._stream, flush=True)
            return
        last = progress.done_bytes >= progress.total_bytes
        if new or last or now - self._shown >= _EVERY:
            share = progress.done_bytes / progress.total_bytes if progress.total_bytes else 1.0
            text = f"{progress.phase} {share:.0%}"
            self._stream.write("\r" + text.ljust(self._width))
            self._stream.flush()
            self._shown, self._width = now, len(text)

    def end(self) -> None:
        """Leaves the line."""
        if self._live and self._width:
            self._stream.write("\r" + " " * self._width + "\r")
            self._stream.flush()


def report_text(report: QuantiseReport) -> str:
    """The report for a terminal, a fact a line."""
    lines = [
        f"Layout      NVFP4 ({report.layout}), weights only",
        f"Quantised   {report.choice}: {len(report.modules)} matrices, relative error"
        f" {report.relative_error:.4f}",
        *(
            f"  {kind.name:<17}{kind.matrices:>6} x, relative error {kind.relative_error:.4f}"
            for kind in report.kinds
        ),
        *(f"Left as is  {count} x: {why}" for why, count in report.left.items()),
        f"Size        {size_text(report.source_bytes)} became {size_text(report.written_bytes)}",
        "Worst layers",
        *(
            f"  {_layer_words(layer.name):<40} {layer.relative_error:.4f}"
            for layer in report.layers[:_WORST]
        ),
        "Worst matrices",
        *(f"  {name:<40} {error:.4f}" for name, error in list(report.modules.items())[:_WORST]),
        _logit_words(report),
        f"Time        {report.seconds:.1f} s, at most {size_text(report.peak_bytes)} of memory",
        *([f"Continued   {report.resumed} parts were done before"] if report.resumed else []),
        *([f"Copied      {', '.join(report.copied)}"] if report.copied else []),
        *(f"Note        {note}" for note in report.notes),
    ]
    return "\n".join(lines)


def _layer_words(name: str) -> str:
    return f"layer {name}" if name else "outside the layers"


def _logit_words(report: QuantiseReport) -> str:
    logits = report.logits
    if logits is None:
        return f"Predictions not compared: {report.not_compared}"
    return (
        f"Predictions KL {logits.mean_kl:.4f} nats on average, {logits.largest_kl:.4f} at most; the"
        f" same best token at {logits.same_best:.0%} of {logits.positions} positions (first step of"
        f" an answer; prompt: {logits.prompt})"
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="quantize",
        description="Write an NVFP4 copy of a bfloat16 checkpoint. A run that was stopped or"
        " killed is continued by the same command.",
    )
    parser.add_argument("source", metavar="SRC", help="folder of the checkpoint; only read")
    parser.add_argument("target", metavar="DST", help="folder to be made")
    parser.add_argument(
        "--layout", choices=LAYOUTS, default=LAYOUTS[0], help="tensor names and config fields"
    )
    which = parser.add_mutually_exclusive_group()
    which.add_argument(
        "--what",
        choices=("experts", "linears"),
        help="the routed experts, or all linear modules but the head (if omitted: experts where"
        " there are any)",
    )
    which.add_argument(
        "--modules",
        action="append",
        default=[],
        metavar="PATTERN",
        help="only modules that match, e.g. '*.mlp.*' (may be given several times)",
    )
    parser.add_argument(
        "--exclude",
        action="append",
        default=[],
        metavar="PATTERN",
        help="modules to leave as they are (may be given several times)",
    )
    parser.add_argument(
        "--separate-scales",
        action="store_true",
        help="no common scale for matrices that other programs fuse (gate and up; q, k and v)",
    )
    parser.add_argument(
        "--shard-size", type=_gigabytes, default=4.0, metavar="GB", help="size of a weight file"
    )
    parser.add_argument("--prompt", help="sample prompt to compare the two models with")
    parser.add_argument("--no-compare", action="store_true", help="do not compare predictions")
    parser.add_argument(
        "--restart", action="store_true", help="do not continue an unfinished copy: start over"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    return parser


def _gigabytes(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0.001 <= value <= 1000:
        raise argparse.ArgumentTypeError(f"not a size in GB from 0.001 to 1000: {text!r}")
    return value
