"""How torch's CPU threads wait for each other. It must be said before torch is imported.

Knows one environment variable of OpenMP. Knows no torch.
"""

from __future__ import annotations

import os


def let_threads_sleep() -> None:
    """Makes OpenMP's threads sleep while they wait, unless OMP_WAIT_POLICY says otherwise.

    They spin by default, and as soon as anything else needs a core (a window, another program) all
    of them lose. OpenMP reads the variable once, when torch is imported.
    """
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
