"""The `unblur` command: what its arguments mean, and which part of the project answers.

It knows arguments only. It imports neither Qt nor torch: a subcommand that needs no window goes to
the engine's own command line, and everything else is imported once it is known to be needed.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

ENGINE_COMMANDS = ("generate", "inspect", "quantize")
MODELS_COMMAND = "models"
TRACE_COMMAND = "trace"
SERVE_COMMAND = "serve"
TRAINER_FLAG = "--trainer"  # how a frozen app, which has no `python -m`, starts its trainer
NO_SCREEN = (
    "The window cannot open: there is no screen (neither DISPLAY nor WAYLAND_DISPLAY is set).\n"
    "Without one, these work: unblur generate PROMPT, and unblur --screenshot out.png"
)
QT_PACKAGES = "libxcb-cursor0 libxcb-icccm4 libxcb-keysyms1 libegl1 libxkbcommon-x11-0"


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="unblur",
        allow_abbrev=False,  # run.py must know these names too
        description="Run, inspect and finetune open diffusion language models on one local GPU.",
        epilog="unblur generate PROMPT answers in the terminal; unblur inspect FOLDER checks a "
        "model folder; unblur models finds, gets and removes models; unblur trace records, "
        "shows, forks and compares replies; unblur serve answers other programs. Each has its own "
        "--help.",
    )
    parser.add_argument(
        "trace", nargs="?", metavar="TRACE", help="open this .dntrace file in the inspector"
    )
    parser.add_argument("--version", action="store_true", help="print the version and end")
    parser.add_argument("--model", metavar="FOLDER", help="open this model instead of the demo")
    parser.add_argument(
        "--screenshot",
        metavar="PNG",
        type=Path,
        help="answer one prompt on the demo without a screen; save the window at the end, and "
        "beside it in mid-denoise",
    )
    parser.add_argument("--prompt", metavar="TEXT", help="what --screenshot asks")
    parser.add_argument(
        "--screenshots",
        metavar="FOLDER",
        type=Path,
        help="save every page and state, light, dark and at 125 %%",
    )
    parser.add_argument(
        "--startup-time", action="store_true", help="print how long the window took, and close it"
    )
    return parser


def run(argv: Sequence[str]) -> int:
    """Exit status of `unblur ARGV`."""
    if argv and argv[0] in ENGINE_COMMANDS:
        from engine.cli import main as engine_main

        return engine_main(list(argv))
    if argv and argv[0] == TRAINER_FLAG:
        from trainer.__main__ import main as trainer_main

        return trainer_main(list(argv)[1:])
    if argv and argv[0] == MODELS_COMMAND:
        from app.cli_models import main as models_main

        return models_main(list(argv)[1:])
    if argv and argv[0] == TRACE_COMMAND:
        from app.cli_trace import main as trace_main

        return trace_main(list(argv)[1:])
    if argv and argv[0] == SERVE_COMMAND:
        from app.cli_serve import main as serve_main

        return serve_main(list(argv)[1:])
    parser = make_parser()
    options = parser.parse_args(argv)
    if options.prompt is not None and options.screenshot is None:
        parser.error("--prompt belongs to --screenshot; to ask without a window: unblur generate")
    problem = trace_problem(options.trace)
    if problem:
        parser.error(problem)
    if options.version:
        print(f"unblur {version()}")
        return 0
    try:
        return _run_window(options)
    except ImportError as error:
        if "PySide6" not in str(error) and ".so" not in str(error):
            raise
        print(missing_qt(error), file=sys.stderr)
        return 1


def trace_problem(path: str | None) -> str:
    """Why an argument without a dash is no trace file, "" when it is one or there is none."""
    if path is None or (path.lower().endswith(".dntrace") and Path(path).exists()):
        return ""
    if path.lower().endswith(".dntrace"):
        return f"there is no file {path}"
    return f"{path} is no .dntrace file and no command; --help lists the commands"


def _run_window(options: argparse.Namespace) -> int:
    if options.screenshots is not None:
        from app.screenshots import save_pages

        return save_pages(options.screenshots)
    if options.screenshot is not None:
        from app.screenshots import save_answer

        return save_answer(options.screenshot, options.model, options.prompt)
    if no_screen():
        print(NO_SCREEN, file=sys.stderr)
        return 1
    from app.desktop import run_window

    return run_window(startup_time=options.startup_time, model=options.model, trace=options.trace)


def no_screen() -> bool:
    """Whether Qt would find nothing to open a window on (it would end the process with a crash)."""
    return sys.platform == "linux" and not any(
        os.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY", "QT_QPA_PLATFORM")
    )


def version() -> str:
    """The installed version; from pyproject.toml when run from a checkout that is not installed."""
    from importlib.metadata import PackageNotFoundError
    from importlib.metadata import version as installed

    try:
        return installed("unblur")
    except PackageNotFoundError:
        import tomllib

        project = Path(__file__).resolve().parent.parent / "pyproject.toml"
        return str(tomllib.loads(project.read_text(encoding="utf-8"))["project"]["version"])


def missing_qt(error: ImportError) -> str:
    """A sentence for an import of Qt that failed."""
    return (
        f"The window cannot open: {error}.\n"
        f"On Debian or Ubuntu, install what Qt needs: sudo apt install {QT_PACKAGES}\n"
        "Without a window, this works as it is: unblur generate PROMPT"
    )
