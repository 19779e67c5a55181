"""The engine's command line: `inspect` and `generate`.

Knows arguments, exit codes and how errors are worded on a terminal. Imports torch only once a
command needs it, and Qt never.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from engine.errors import UnblurError
from engine.types import DecodeSettings, GenerateRequest, Message, ModelInfo


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command and returns the exit status: 0 done, 1 a typed error (printed), 2 wrong
    usage."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    parser = argparse.ArgumentParser(
        prog="python -m engine", description="Inspect checkpoints and generate text."
    )
    parser.add_argument("command", choices=("inspect", "generate"))
    parser.add_argument("rest", nargs=argparse.REMAINDER, help="see COMMAND --help")
    if not arguments or arguments[0] in ("-h", "--help"):
        parser.print_help()
        return 0 if arguments else 2
    command = parser.parse_args(arguments[:1]).command
    try:
        if command == "inspect":
            from engine.cli_inspect import run

            return run(arguments[1:])
        return generate(arguments[1:])
    except UnblurError as error:
        print(f"{error.message}\n{error.action}  [{error.code}]", file=sys.stderr)
        return 1


def generate(argv: Sequence[str]) -> int:
    """`generate [--model DIR] PROMPT`: one reply, its live canvas on a terminal, then its
    figures."""
    options = generate_parser().parse_args(argv)
    prompt = options.prompt_flag if options.prompt_flag is not None else options.prompt
    if prompt is None:
        generate_parser().error("a prompt is needed")

    from engine.canvas_terminal import show_reply
    from engine.engine import load_engine
    from engine.paths import demo_folder

    engine = load_engine(
        options.model or demo_folder(), device=options.device, graphs=options.graphs
    )
    try:
        messages = (Message("system", options.system),) if options.system else ()
        request = GenerateRequest(
            (*messages, Message("user", prompt)),
            options.max_new_tokens,
            settings_from(options, engine.info),
        )
        show_reply(engine, request, sys.stdout, plain=options.plain)
    finally:
        engine.unload()
    return 0


def generate_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="generate", description="Answer one prompt and show how the text was denoised."
    )
    parser.add_argument("prompt", nargs="?", help="what to ask")
    parser.add_argument("--prompt", dest="prompt_flag", help="the same as an option")
    parser.add_argument("--model", help="checkpoint folder (the shipped demo model if omitted)")
    parser.add_argument("--system", default="", help="system prompt")
    parser.add_argument("--max-new-tokens", type=int, default=256)
    parser.add_argument("--threshold", type=float, help="accept above this confidence, 0 to 1")
    parser.add_argument(
        "--editing-threshold", help="replace accepted tokens above this confidence, or 'off'"
    )
    parser.add_argument("--steps", type=int, help="steps per block under the quota rule")
    parser.add_argument("--temperature", type=float)
    parser.add_argument("--top-k", type=int)
    parser.add_argument("--top-p", type=float)
    parser.add_argument("--seed", type=int)
    parser.add_argument("--device", help="cpu or cuda (chosen if omitted)")
    parser.add_argument(
        "--graphs",
        action="store_true",
        help="on a GPU: run a reply as one CUDA graph (checked on a CPU stand-in only)",
    )
    parser.add_argument("--plain", action="store_true", help="no live canvas, only the answer")
    return parser


def settings_from(options: argparse.Namespace, info: ModelInfo) -> DecodeSettings:
    """The checkpoint's own settings with what the command line changes."""
    from dataclasses import replace

    names = ("threshold", "steps", "temperature", "top_k", "top_p", "seed")
    changes = {name: getattr(options, name) for name in names if getattr(options, name) is not None}
    editing = options.editing_threshold
    if editing is not None:
        changes["editing_threshold"] = None if editing == "off" else float(editing)
    return replace(info.defaults, **changes)
