"""The GPU is sampled on a thread of its own, and the report is made only when asked for."""

from __future__ import annotations

import threading

import pytest
from pytestqt.qtbot import QtBot

import engine.hardware
from app.backend.gpu import GpuSampler
from app.models.engine_model import EngineModel
from app.models.gpu_meter import GpuMeter, GpuReading
from engine.fake import FakeLoader
from engine.hardware import GpuSample

SAMPLE = GpuSample(50.0, 2**30, 2**31, 100.0, 40.0)


@pytest.fixture
def threads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Stands in for the driver; the names of the threads that asked it."""
    asked: list[str] = []

    def sample() -> GpuSample:
        asked.append(threading.current_thread().name)
        return SAMPLE

    monkeypatch.setattr(engine.hardware, "sample_gpu", sample)
    monkeypatch.setattr(engine.hardware, "describe_hardware", lambda: asked.append("report"))
    return asked


def test_samples_come_from_another_thread_until_it_is_stopped(
    threads: list[str], qtbot: QtBot
) -> None:
    sampler = GpuSampler(seconds=0.01)
    sampler.start()
    qtbot.waitUntil(lambda: len(threads) >= 3, timeout=2000)
    sampler.stop()
    assert set(threads) == {"gpu-sampler"}
    assert sampler.latest == SAMPLE
    count = len(threads)
    qtbot.wait(50)
    assert len(threads) == count


def test_the_report_is_made_when_asked_for_and_not_before(threads: list[str], qtbot: QtBot) -> None:
    sampler = GpuSampler(seconds=60)
    sampler.start()
    qtbot.waitUntil(lambda: bool(threads), timeout=2000)
    assert "report" not in threads
    sampler.ask_for_report()  # wakes the thread, whatever its interval
    qtbot.waitUntil(lambda: "report" in threads, timeout=2000)
    sampler.stop()


def test_a_driver_that_raises_ends_the_sampling_and_nothing_else(
    monkeypatch: pytest.MonkeyPatch, qtbot: QtBot
) -> None:
    def fail() -> GpuSample:
        raise OSError("the driver is gone")

    monkeypatch.setattr(engine.hardware, "sample_gpu", fail)
    sampler = GpuSampler(seconds=0.01)
    sampler.start()
    qtbot.waitUntil(lambda: not sampler._thread.is_alive(), timeout=2000)
    sampler.stop()
    assert sampler.latest is not None  # and no old reading stays on the screen
    assert "OSError" in sampler.latest.reason
    assert sampler.latest.utilisation is None


def test_the_meter_tells_the_window_when_a_reading_changes(qtbot: QtBot) -> None:
    class Sampler:
        latest: GpuSample | None = None
        report = None
        stopped = False

        def start(self) -> None: ...

        def ask_for_report(self) -> None: ...

        def stop(self) -> None:
            self.stopped = True

    sampler, engine_model = Sampler(), EngineModel(FakeLoader())
    meter = GpuMeter(engine_model, sampler)
    seen: list[GpuReading] = []
    meter.changed.connect(seen.append)
    sampler.latest = SAMPLE
    qtbot.waitUntil(lambda: bool(seen), timeout=2000)
    assert (seen[0].device, seen[0].used_bytes) == ("GPU", 2**30)
    meter.close()
    assert sampler.stopped
    engine_model.close()
    engine_model.deleteLater()
    meter.deleteLater()
