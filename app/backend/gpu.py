"""Samples the GPU on a thread of its own, so that a slow driver never holds the window up.

It knows `engine.hardware` and a clock. It refuses to know how figures are shown. Nothing here
imports torch before a model was loaded: `ask_for_report` is called by then.
"""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING

from engine.hardware import GpuSample

if TYPE_CHECKING:
    from engine.hardware import HardwareReport

log = logging.getLogger("unblur.gpu")


class GpuSampler:
    """Keeps the latest sample and the latest report. `start` once, `stop` once."""

    def __init__(self, seconds: float = 1.0) -> None:
        self.latest: GpuSample | None = None
        self.report: HardwareReport | None = None
        self._seconds = seconds
        self._wake = threading.Event()
        self._ended = threading.Event()
        self._report_wanted = threading.Event()
        self._thread = threading.Thread(target=self._run, name="gpu-sampler", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def ask_for_report(self) -> None:
        """Asks for `describe_hardware`, which imports torch; the result appears in `report`."""
        self._report_wanted.set()
        self._wake.set()

    def stop(self) -> None:
        """Ends the thread; waits at most 5 s for a reading in progress."""
        self._ended.set()
        self._wake.set()
        if self._thread.is_alive():
            self._thread.join(5)

    def _run(self) -> None:
        try:
            from engine.hardware import describe_hardware, sample_gpu

            while not self._ended.is_set():
                self.latest = sample_gpu()
                if self._report_wanted.is_set():
                    self._report_wanted.clear()
                    self.report = describe_hardware()
                self._wake.wait(self._seconds)
                self._wake.clear()
        except Exception as error:  # the thread's root: meters may fail, the app goes on
            log.exception("GPU sampling ended")
            self.latest = GpuSample(
                None,
                None,
                None,
                None,
                None,
                f"Reading the GPU failed ({type(error).__name__}); the log file has the details.",
            )
