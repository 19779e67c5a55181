"""`python -m engine`: the engine from a terminal, without any window."""

import signal
import sys

if __name__ == "__main__":
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        # Ctrl+C while modules and weights load ends the process, without a traceback.
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from engine.cli import main

    sys.exit(main())
