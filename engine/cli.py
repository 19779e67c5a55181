"""The engine's command line: `inspect`, `generate`, `quantize` and `bench`.

Knows arguments, exit codes and how errors are worded on a terminal. Imports torch only once a
command needs it, and Qt never.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from io import TextIOWrapper
from types import FrameType
from typing import TYPE_CHECKING, Literal

from engine.errors import UnblurError
from engine.hardware import LoopPath
from engine.openmp import let_threads_sleep
from engine.types import Capture, DecodeSettings, GenerateRequest, Message, ModelInfo

if TYPE_CHECKING:  # it needs torch
    from engine.engine import TorchEngine

LOOPS: dict[str, LoopPath | None] = {
    "best": None,
    "step": "one graph per step",
    "eager": "eager",
}
INTERRUPTED = 130  # what a shell reports for a process that Ctrl+C ended


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command and returns the exit status: 0 done, 1 a failure (printed, but for a reader
    of the output that went away), 2 wrong usage, 130 stopped by Ctrl+C."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    return guarded(lambda: _run(arguments))


def guarded(command: Callable[[], int]) -> int:
    """Runs a command of a terminal; whatever fails is told on stderr. Returns the exit status."""
    _prepare_streams()
    let_threads_sleep()
    try:
        status = command()
        sys.stdout.flush()  # here, where a failure can still be told
        return status
    except UnblurError as error:
        return _failed(error)
    except BrokenPipeError:  # `| head` has seen enough
        _drop_output()
        return 1
    except OSError as error:
        _drop_output()
        reason = error.strerror or str(error)
        return _failed(
            UnblurError(
                "output.failed",
                f"The system did not take the output ({reason}).",
                "Check that what it goes to can be written and has room, then try again.",
            )
        )
    except MemoryError:
        return _failed(
            UnblurError(
                "memory.exhausted",
                "This computer ran out of memory.",
                "Close other programs, or open a smaller model.",
            )
        )


def _run(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m engine",
        description="Inspect checkpoints, generate text, make NVFP4 copies, measure this machine.",
    )
    parser.add_argument("command", choices=("inspect", "generate", "quantize", "bench"))
    parser.add_argument("rest", nargs=argparse.REMAINDER, help="see COMMAND --help")
    if not arguments or arguments[0] in ("-h", "--help"):
        parser.print_help()
        return 0 if arguments else 2
    command = parser.parse_args(arguments[:1]).command
    if command == "inspect":
        from engine.cli_inspect import run

        return run(arguments[1:])
    if command == "quantize":
        return quantize(arguments[1:])
    if command == "bench":
        from engine.cli_bench import run as bench

        bench(arguments[1:])
        return 0
    return generate(arguments[1:])


def _failed(error: UnblurError) -> int:
    print(f"{error.message}\n{error.action}  [{error.code}]", file=sys.stderr)
    return 1


def _prepare_streams() -> None:
    """Streams that exist and take every character: one may be closed (`>&-`), or not be UTF-8."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115 - for life
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _drop_output() -> None:
    """What is still buffered goes nowhere; Python would fail on it again when it ends."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


@contextlib.contextmanager
def stopping_on_interrupt() -> Iterator[threading.Event]:
    """An event that Ctrl+C sets once; a second Ctrl+C ends the process."""
    stop = threading.Event()
    before = signal.getsignal(signal.SIGINT)

    def set_stop(_number: int, _frame: FrameType | None) -> None:
        stop.set()
        signal.signal(signal.SIGINT, signal.SIG_DFL)

    if before is not signal.SIG_IGN:  # as for a process in the background
        signal.signal(signal.SIGINT, set_stop)
    try:
        yield stop
    finally:
        signal.signal(signal.SIGINT, before)


def quantize(argv: Sequence[str]) -> int:
    """`quantize SRC DST`: an NVFP4 copy; Ctrl+C keeps what is done."""
    from engine.cli_quantize import run

    with stopping_on_interrupt() as stop:
        try:
            run(argv, stop)
        except UnblurError as error:
            status = _failed(error)
            return INTERRUPTED if stop.is_set() else status
    return 0


def generate(argv: Sequence[str]) -> int:
    """`generate [--model DIR] PROMPT`: one reply, its live canvas on a terminal, then its
    figures."""
    parser = generate_parser()
    options = parser.parse_args(argv)
    if (options.prompt is None) == (options.prompt_flag is None):
        parser.error("one prompt is needed")
    prompt = options.prompt if options.prompt_flag is None else options.prompt_flag

    from engine.canvas_terminal import show_reply

    engine = engine_from(options)
    try:
        request = request_from(options, prompt, engine.info)
        with stopping_on_interrupt() as stop:
            show_reply(engine, request, sys.stdout, plain=options.plain, stop=stop)
    finally:
        engine.unload()
    return INTERRUPTED if stop.is_set() else 0


def generate_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="generate", description="Answer one prompt and show how the text was denoised."
    )
    parser.add_argument("prompt", nargs="?", help="what to ask")
    parser.add_argument("--prompt", dest="prompt_flag", help="the same as an option")
    parser.add_argument("--system", default="", help="system prompt")
    parser.add_argument("--max-new-tokens", type=int, default=256)
    add_settings_options(parser)
    add_model_options(parser)
    parser.add_argument("--plain", action="store_true", help="no live canvas, only the answer")
    return parser


def add_settings_options(parser: argparse.ArgumentParser) -> None:
    """What `changed_settings` reads."""
    parser.add_argument("--threshold", type=float, help="accept above this confidence, 0 to 1")
    parser.add_argument(
        "--editing-threshold",
        type=_number_or_off,
        help="replace accepted tokens above this confidence, or 'off'",
    )
    parser.add_argument("--steps", type=int, help="steps per block under the quota rule")
    parser.add_argument(
        "--entropy-bound", type=float, help="nats that the tokens kept in a step of noise may hold"
    )
    parser.add_argument("--temperature", type=float)
    parser.add_argument("--top-k", type=int)
    parser.add_argument("--top-p", type=float)
    parser.add_argument("--seed", type=int)


def add_model_options(parser: argparse.ArgumentParser) -> None:
    """What `engine_from` reads."""
    parser.add_argument("--model", help="checkpoint folder (the shipped demo model if omitted)")
    parser.add_argument("--device", help="cpu or cuda (chosen if omitted)")
    parser.add_argument(
        "--loop",
        choices=LOOPS,
        default="best",
        help="on a GPU: how steps are run, to compare (best: a whole reply as one CUDA graph)",
    )
    parser.add_argument(
        "--arithmetic",
        choices=("stored", "fp8", "fp4"),
        default="stored",
        help="on a GPU: multiply linear layers with fewer digits than they are stored with",
    )
    parser.add_argument(
        "--kv-fp8", action="store_true", help="keep keys and values in FP8 (DiffusionGemma)"
    )


def engine_from(options: argparse.Namespace) -> TorchEngine:
    """The model that the options name, loaded."""
    from engine.engine import load_engine
    from engine.paths import demo_folder

    return load_engine(
        demo_folder() if options.model is None else options.model,
        device=options.device,
        loop=LOOPS[options.loop],
        arithmetic=options.arithmetic,
        kv_fp8=options.kv_fp8,
    )


def _number_or_off(text: str) -> float | Literal["off"]:
    if text.strip().lower() == "off":
        return "off"
    try:
        return float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"neither a number nor 'off': {text!r}") from None


def request_from(
    options: argparse.Namespace, prompt: str, info: ModelInfo, capture: Capture | None = None
) -> GenerateRequest:
    """What the options ask of a model."""
    messages = (Message("system", options.system),) if options.system else ()
    return GenerateRequest(
        (*messages, Message("user", prompt)),
        options.max_new_tokens,
        settings_from(options, info),
        capture or Capture(),
    )


def settings_from(options: argparse.Namespace, info: ModelInfo) -> DecodeSettings:
    """The checkpoint's own settings with what the command line changes."""
    return changed_settings(options, info.defaults)


def changed_settings(options: argparse.Namespace, base: DecodeSettings) -> DecodeSettings:
    """`base` with what the command line changes."""
    from dataclasses import replace

    names = ("threshold", "steps", "temperature", "top_k", "top_p", "seed")
    changes = {name: getattr(options, name) for name in names if getattr(options, name) is not None}
    editing = options.editing_threshold
    if editing is not None:
        changes["editing_threshold"] = None if editing == "off" else editing
    if options.entropy_bound is not None:
        changes["noise"] = replace(base.noise, entropy_bound=options.entropy_bound)
    return replace(base, **changes)
