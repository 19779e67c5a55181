"""`unblur serve`: the local server without a window. No Qt.

It knows arguments and what is printed. A model that fails to load, or a port that is taken, is told
on stderr, with exit status 1.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Sequence

from app.backend.settings import DEFAULT_PORT
from app.server.alone import EngineThread
from app.server.guard import check_key
from app.server.http import LocalServer
from engine.cli import add_model_options, engine_from, guarded, stopping_on_interrupt

KEY_VARIABLE = "UNBLUR_SERVER_KEY"  # a command line can be read by every user of a computer


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="unblur serve",
        description="Let programs on this computer ask a model, in the words of OpenAI's API.",
        epilog="It listens on 127.0.0.1 alone. docs/server.md says what can be asked.",
    )
    parser.add_argument(
        "--port", type=_port, default=DEFAULT_PORT, help="0 takes any that is free (%(default)s)"
    )
    parser.add_argument(
        "--key",
        help=f"what clients must send as their API key (or the variable {KEY_VARIABLE}); "
        "nothing if omitted",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object once it listens")
    add_model_options(parser)
    return parser


def main(argv: Sequence[str]) -> int:
    """Exit status of `unblur serve ARGV`: 0 ended by Ctrl+C, 1 a failure, 2 wrong usage."""
    return guarded(lambda: _serve(make_parser().parse_args(argv)))


def _serve(options: argparse.Namespace) -> int:
    key = options.key if options.key is not None else os.environ.get(KEY_VARIABLE)
    if key is not None:
        check_key(key)
    with stopping_on_interrupt() as stop:
        source = EngineThread(lambda: engine_from(options))
        try:
            info = source.wait_until_loaded()
            server = LocalServer(source, options.port, key)
            server.start()
            try:
                if options.json:
                    started = {"url": server.url, "model": info.name, "key": key is not None}
                    print(json.dumps(started), flush=True)
                else:
                    print(f"{info.name} answers at {server.url}", flush=True)
                    print("Ctrl+C ends it.", flush=True)
                while not stop.wait(0.5):  # a wait without end could not be interrupted everywhere
                    pass
            finally:
                server.stop()
        finally:
            source.close()
    return 0


def _port(text: str) -> int:
    if not text.isdigit() or not text.isascii() or int(text) > 65535:
        raise argparse.ArgumentTypeError(f"not a port from 0 to 65535: {text!r}")
    return int(text)
