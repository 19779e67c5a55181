"""`unblur`, and `python -m app`: the process starts here. It knows only what must come first."""

from __future__ import annotations

import multiprocessing
import signal
import sys
from collections.abc import Sequence

from app.streams import ensure_streams


def main(argv: Sequence[str] | None = None) -> int:
    """Exit status of the `unblur` command. argv: without the program's name; None = the process's
    own.
    """
    ensure_streams()
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        # Ctrl+C ends the process without a traceback, until the window or a reply handles it.
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from app.cli import run

    return run(list(sys.argv[1:] if argv is None else argv))


if __name__ == "__main__":
    multiprocessing.freeze_support()
    sys.exit(main())
