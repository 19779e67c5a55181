"""The status bar: figures with units and definitions, dashes with reasons, the truth on the GPU."""

from __future__ import annotations

from pathlib import Path

import pytest
from PySide6.QtCore import Qt
from pytestqt.qtbot import QtBot

from app.models.gpu_meter import GpuReading, read
from app.models.lifecycle import Lifecycle
from app.models.snapshot import LiveFigures, Snapshot
from engine.errors import CheckpointError
from engine.fake import FakeLoader, FakeScript
from engine.hardware import GpuSample, HardwareReport

UNREADABLE = CheckpointError(
    "checkpoint.config", "<b>R&D</b> has no config.json.", "Open another folder."
)
NO_DRIVER = GpuSample(None, None, None, None, None, "No NVIDIA driver was found.")
BUSY_GPU = GpuSample(81.0, 12_025_908_429, 34_190_917_632, 288.4, 61.0)
CPU_BUILD = HardwareReport(
    cpu_name="", cpu_cores=2, ram_total=1, ram_free=1, gpu=None, gpu_count=1, gpu_reason="",
    driver="1", torch="2", device="cpu", kernel_path="", reason="PyTorch is a CPU build.",
)  # fmt: skip


def test_nothing_measured_is_a_dash_with_its_reason_and_never_zero(open_window) -> None:
    bar = open_window().window.status_bar
    for figure in (bar.rate, bar.tpf, bar.step, bar.block):
        assert "–" in figure.text()
        assert "0" not in figure.text()
        assert "No answer has been written" in figure.toolTip()


def test_every_figure_has_its_definition(open_window) -> None:
    bar = open_window().window.status_bar
    assert "per second" in bar.rate.toolTip()
    assert "divided by the forward passes" in bar.tpf.toolTip()
    assert "current block" in bar.step.toolTip()
    assert "VRAM" in bar.device.toolTip()


def test_live_figures_carry_their_units(open_window) -> None:
    bar = open_window().window.status_bar
    figures = LiveFigures(300, 36, 0.12, 2431.4, 8.36, 5, 3, 8)
    bar.show_snapshot(Snapshot("r", path="eager, float32 on the CPU", figures=figures))
    assert bar.rate.text() == "2,431 tok/s"
    assert bar.tpf.text() == "TPF 8.4"
    assert bar.step.text() == "step 5"
    assert bar.block.text() == "block 3"
    assert "at most 8 blocks" in bar.block.toolTip()
    assert bar.path.full == "eager, float32 on the CPU"


def test_a_reply_of_no_block_yet_shows_dashes(open_window) -> None:
    bar = open_window().window.status_bar
    bar.show_snapshot(Snapshot("r"))
    assert (bar.step.text(), bar.block.text()) == ("step –", "block –")


def test_figures_stay_where_they_are_when_they_grow(open_window, qtbot: QtBot) -> None:
    bar = open_window().window.status_bar
    places = []
    for rate in (1.0, 12345.0):
        bar.show_snapshot(Snapshot("r", figures=LiveFigures(1, 1, 1.0, rate, 1.0, 1, 1, 8)))
        qtbot.wait(20)
        places.append((bar.rate.x(), bar.tpf.x(), bar.device.x()))
    assert places[0] == places[1]


def test_the_final_figures_are_the_engines(open_window, qtbot: QtBot) -> None:
    desktop = open_window()
    desktop.chat.send("hello")
    qtbot.waitUntil(lambda: not desktop.engine.busy, timeout=5000)
    figures = desktop.chat.current.messages[-1].figures
    assert figures is not None
    assert desktop.window.status_bar.tpf.text() == f"TPF {figures.tpf:.1f}"
    assert desktop.window.status_bar.rate.text() == f"{figures.tokens_per_second:,.0f} tok/s"
    # what the answer took, and not what it was allowed
    assert desktop.window.status_bar.step.text() == f"{figures.forwards} forwards"
    assert desktop.window.status_bar.block.text() == f"{figures.blocks} blocks"


def test_a_long_folder_name_is_shortened_and_its_signs_are_shown(
    open_window, qtbot: QtBot, tmp_path: Path
) -> None:
    desktop = open_window(loader=FakeLoader(error=UNREADABLE), loaded=False)
    bar, width = desktop.window.status_bar, desktop.window.width()
    folder = tmp_path / ("<b>R&D<b> " + "long " * 40)
    desktop.engine.load(str(folder))
    qtbot.waitUntil(lambda: desktop.engine.state is Lifecycle.FAILED)
    qtbot.wait(20)
    assert desktop.window.width() == width
    assert bar.chip.width() < 400
    assert "R&&D" in bar.chip.text()  # "&&" is drawn as one sign, not as an underline
    assert bar.chip.text().endswith("· Failed")
    assert folder.name in bar.chip.accessibleName()
    assert bar.path.textFormat() is Qt.TextFormat.PlainText
    assert "<b>" not in bar.path.toolTip()
    assert "&lt;b&gt;R&amp;D" in bar.path.toolTip()


def test_loading_shows_its_progress_in_words_and_can_be_stopped(open_window, qtbot: QtBot) -> None:
    desktop = open_window(loader=FakeLoader(chunks=100, seconds_per_chunk=0.02), loaded=False)
    bar = desktop.window.status_bar
    desktop.engine.load_demo()
    qtbot.waitUntil(lambda: "of 20.0 MB" in bar.path.full, timeout=2000)
    assert bar.progress.isVisible()
    assert bar.chip.text() == "demo · Loading"
    assert bar.stop_action.isVisible()
    bar.stop_action.trigger()
    qtbot.waitUntil(lambda: desktop.engine.state is Lifecycle.NO_MODEL, timeout=2000)
    assert not bar.progress.isVisible()
    assert bar.chip.text() == "No model"


def test_the_models_state_is_a_word_and_not_only_a_colour(open_window, qtbot: QtBot) -> None:
    desktop = open_window(FakeScript(seconds_per_step=0.02))
    chip = desktop.window.status_bar.chip
    assert chip.text() == "scripted demo · Ready"
    desktop.chat.send("hello")
    assert chip.text() == "scripted demo · Answering"
    desktop.chat.stop()
    assert chip.text() == "scripted demo · Stopping"
    qtbot.waitUntil(lambda: not desktop.engine.busy)
    desktop.engine.unload()
    qtbot.waitUntil(lambda: chip.text() == "No model")


def test_without_a_gpu_it_says_cpu_and_why(open_window) -> None:
    bar = open_window().window.status_bar
    bar.show_reading(read(NO_DRIVER, None, ""))
    assert bar.device.text() == "CPU"
    assert "No NVIDIA driver was found." in bar.device.toolTip()


@pytest.mark.parametrize(
    ("sample", "report", "device", "expected", "reason"),
    [
        (None, None, "", "", ""),
        (NO_DRIVER, None, "", "CPU", "No NVIDIA driver was found."),
        (BUSY_GPU, None, "cuda:0", "GPU", ""),
        (NO_DRIVER, None, "cuda:0", "GPU", "No NVIDIA driver was found."),  # of its meters only
        (BUSY_GPU, None, "", "GPU", ""),
        (BUSY_GPU, CPU_BUILD, "cpu", "CPU", "PyTorch is a CPU build."),
    ],
)
def test_the_reading_tells_where_the_model_runs(sample, report, device, expected, reason) -> None:
    reading = read(sample, report, device)
    assert (reading.device, reading.reason) == (expected, reason)


def test_a_gpu_is_shown_with_memory_and_power(open_window) -> None:
    bar = open_window().window.status_bar
    bar.show_reading(read(BUSY_GPU, None, "cuda:0"))
    assert bar.device.text() == "GPU 81 %  VRAM 11.2/31.8 GiB  288 W"
    bar.show_reading(GpuReading(device="GPU", utilisation=5.0))
    assert bar.device.text() == "GPU 5 %"  # what the driver does not give is left out, not 0
