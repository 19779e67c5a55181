"""What the machine's GPU is doing, as words and numbers a status bar can show.

It knows samples and the reason when there are none. It refuses to know labels and colours.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Protocol

from PySide6.QtCore import QObject, QTimer, Signal, Slot

from app.models.engine_model import EngineModel
from app.models.lifecycle import Lifecycle
from engine.hardware import GpuSample, HardwareReport

POLL_MS = 500


class Sampler(Protocol):
    """What a meter needs of `app.backend.gpu.GpuSampler`."""

    @property
    def latest(self) -> GpuSample | None: ...

    @property
    def report(self) -> HardwareReport | None: ...

    def start(self) -> None: ...

    def ask_for_report(self) -> None: ...

    def stop(self) -> None: ...


@dataclass(frozen=True)
class GpuReading:
    """device: "GPU", "CPU" or "" (nothing known yet). reason: why the CPU, or why there is no
    figure.
    """

    device: str = ""
    reason: str = ""
    utilisation: float | None = None  # per cent
    used_bytes: int | None = None
    total_bytes: int | None = None
    power: float | None = None  # watts


class GpuMeter(QObject):
    changed = Signal(object)  # GpuReading

    def __init__(
        self, engine: EngineModel, sampler: Sampler, parent: QObject | None = None
    ) -> None:
        super().__init__(parent)
        self.reading = GpuReading()
        self._engine = engine
        self._sampler = sampler
        self._timer = QTimer(self)
        self._timer.setInterval(POLL_MS)
        self._timer.timeout.connect(self._poll)
        engine.state_changed.connect(self._on_state)
        sampler.start()
        self._timer.start()

    def close(self) -> None:
        self._timer.stop()
        self._sampler.stop()

    @Slot(object)
    def _on_state(self, state: Lifecycle) -> None:
        # the report imports torch: only the engine's load may be the one who pays for that
        loaded = state is Lifecycle.READY and "torch" in sys.modules
        if loaded and self._sampler.report is None:
            self._sampler.ask_for_report()

    @Slot()
    def _poll(self) -> None:
        reading = read(self._sampler.latest, self._sampler.report, self._model_device())
        if reading != self.reading:
            self.reading = reading
            self.changed.emit(reading)

    def _model_device(self) -> str:
        return self._engine.info.device if self._engine.info else ""


def read(sample: GpuSample | None, report: HardwareReport | None, device: str) -> GpuReading:
    """The reading to show. device: where the loaded model runs, "" when none is loaded: then the
    machine has a GPU for one if its meters could be read.
    """
    if sample is None:
        return GpuReading()
    on_cpu = device == "cpu" or (not device and bool(sample.reason))
    reason = sample.reason
    if on_cpu and not reason:
        reason = report.reason if report else ""
    return GpuReading(
        device="CPU" if on_cpu else "GPU",
        reason=reason,
        utilisation=sample.utilisation,
        used_bytes=sample.used_bytes,
        total_bytes=sample.total_bytes,
        power=sample.power,
    )
