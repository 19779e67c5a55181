"""The desktop app: a window over the engine. Importing this imports neither Qt nor torch."""

import logging

# Until `app.backend.logs` opens files, what is logged goes nowhere, not to the terminal.
logging.getLogger("unblur").addHandler(logging.NullHandler())
