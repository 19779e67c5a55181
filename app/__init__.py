"""The desktop app: a window over the engine. Importing this imports neither Qt nor torch."""

import logging
import time

STARTED = time.perf_counter()  # before Qt and everything else comes in

# Until `app.backend.logs` opens files, what is logged goes nowhere, not to the terminal.
logging.getLogger("unblur").addHandler(logging.NullHandler())
