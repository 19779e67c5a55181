"""`python -m trainer`: the command line. Knows which commands there are, and how errors end."""

from __future__ import annotations

import argparse
import io
import os
import sys

from engine.errors import UnblurError
from trainer import cli_data, cli_eval, cli_export, cli_run


def parser() -> argparse.ArgumentParser:
    """All commands."""
    p = argparse.ArgumentParser(prog="python -m trainer", description="Train a model with ORL.")
    commands = p.add_subparsers(required=True, metavar="COMMAND")
    cli_run.add_arguments(commands)
    cli_export.add_arguments(commands)
    cli_eval.add_arguments(commands)
    cli_data.add_arguments(commands)
    return p


def main(arguments: list[str] | None = None) -> int:
    """Returns the exit status: 0, 1 for an error, 3 for a run that was stopped before its end."""
    args = parser().parse_args(arguments)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a console of few characters is no reason to fail
    try:
        return args.do(args)
    except UnblurError as error:
        print(error, file=sys.stderr)
        return 1
    except BrokenPipeError:  # whoever read the output has gone, as `head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except KeyboardInterrupt:
        print("Stopped. What was saved is kept.", file=sys.stderr)
        return 3


if __name__ == "__main__":
    sys.exit(main())
