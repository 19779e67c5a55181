"""What is said about a machine, with NVML and torch played by stand-ins: no GPU is needed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

from engine import hardware
from engine.hardware import describe_hardware, kernel_path, sample_gpu

GIB = 2**30
UUID = "12345678-aaaa-bbbb-cccc-1234567890ab"


class NVMLError(Exception):
    def __init__(self, value: int) -> None:
        super().__init__(f"error {value}")
        self.value = value


class FakeNvml(ModuleType):
    """The part of pynvml that is used. `missing`: functions this GPU does not support."""

    NVMLError = NVMLError
    NVML_ERROR_LIBRARY_NOT_FOUND = 12
    NVML_ERROR_DRIVER_NOT_LOADED = 9
    NVML_ERROR_LIB_RM_VERSION_MISMATCH = 18
    NVML_ERROR_NO_PERMISSION = 4
    NVML_ERROR_GPU_IS_LOST = 15
    NVML_TEMPERATURE_GPU = 0

    def __init__(self, *, init_error: int | None = None, count: int = 1) -> None:
        super().__init__("pynvml")
        self.init_error = init_error
        self.count = count
        self.capability: tuple[int, int] = (9, 0)
        self.missing: set[str] = set()
        self.starts = 0

    def nvmlInit(self) -> None:
        self.starts += 1
        if self.init_error is not None:
            raise NVMLError(self.init_error)

    def _answer(self, name: str, value: Any) -> Any:
        if name in self.missing:
            raise NVMLError(3)
        return value

    def nvmlDeviceGetCount(self) -> int:
        return self._answer("count", self.count)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        return self._answer("handle", index)

    def nvmlSystemGetDriverVersion(self) -> str:
        return "575.51"

    def nvmlSystemGetCudaDriverVersion_v2(self) -> int:
        return self._answer("cuda", 12090)

    def nvmlDeviceGetName(self, handle: int) -> str:
        return f"Card {handle}"

    def nvmlDeviceGetUUID(self, handle: int) -> str:
        return "GPU-" + (UUID if handle == self.count - 1 else "another")

    def nvmlDeviceGetCudaComputeCapability(self, handle: int) -> tuple[int, int]:
        return self._answer("capability", self.capability)

    def nvmlDeviceGetMemoryInfo(self, handle: int) -> Any:
        info = SimpleNamespace(total=24 * GIB, free=20 * GIB, used=4 * GIB)
        return self._answer("memory", info)

    def nvmlDeviceGetUtilizationRates(self, handle: int) -> Any:
        return self._answer("rates", SimpleNamespace(gpu=37, memory=5))

    def nvmlDeviceGetPowerUsage(self, handle: int) -> int:
        return self._answer("power", 123_400)

    def nvmlDeviceGetEnforcedPowerLimit(self, handle: int) -> int:
        return self._answer("limit", 450_000)

    def nvmlDeviceGetTemperature(self, handle: int, sensor: int) -> int:
        return self._answer("temperature", 61)


@pytest.fixture(autouse=True)
def fresh_session(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hardware, "_session", hardware._NvmlSession())


def use(monkeypatch: pytest.MonkeyPatch, nvml: FakeNvml) -> FakeNvml:
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    return nvml


def use_cuda(monkeypatch: pytest.MonkeyPatch, cuda: str | None, available: bool) -> None:
    monkeypatch.setattr(torch.version, "cuda", cuda)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: available)
    properties = SimpleNamespace(uuid=UUID)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: properties)


def test_a_machine_without_a_driver_runs_on_the_cpu_and_says_why(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    use(monkeypatch, FakeNvml(init_error=12))
    report = describe_hardware()
    assert (report.device, report.gpu, report.driver) == ("cpu", None, None)
    assert report.gpu_reason == "No NVIDIA driver was found on this machine."
    assert report.reason == report.gpu_reason
    assert report.cpu_cores >= 1
    assert 0 < report.ram_free <= report.ram_total
    assert report.cpu_name
    assert any("No NVIDIA driver" in sentence for sentence in report.sentences)


@pytest.mark.parametrize(
    ("error", "words"),
    [(9, "not loaded"), (18, "Restart"), (4, "may not use"), (15, "lost"), (999, "error 999")],
)
def test_every_way_the_driver_fails_is_put_into_words(
    monkeypatch: pytest.MonkeyPatch, error: int, words: str
) -> None:
    use(monkeypatch, FakeNvml(init_error=error))
    assert words in describe_hardware().gpu_reason
    assert words in sample_gpu().reason


def test_a_missing_python_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert "nvidia-ml-py" in describe_hardware().gpu_reason


def test_a_driver_without_a_gpu_is_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    use(monkeypatch, FakeNvml(count=0))
    report = describe_hardware()
    assert report.gpu_reason == "The NVIDIA driver is running, but it sees no GPU."
    assert report.driver == "575.51"


def test_a_working_gpu_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    use(monkeypatch, FakeNvml())
    use_cuda(monkeypatch, "12.8", available=True)
    report = describe_hardware()
    assert report.device == "cuda:0"
    assert "no FP4 tensor cores" in report.reason
    gpu = report.gpu
    assert gpu is not None
    assert (gpu.name, gpu.capability, gpu.total_bytes) == ("Card 0", (9, 0), 24 * GIB)
    assert (gpu.power_limit, gpu.temperature) == (450.0, 61.0)
    assert "20.0 of 24.0 GiB free" in " ".join(report.sentences)


def test_with_several_gpus_the_one_torch_uses_is_reported(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    use(monkeypatch, FakeNvml(count=3))
    use_cuda(monkeypatch, "12.8", available=True)
    report = describe_hardware()
    assert report.gpu_count == 3
    assert report.gpu is not None
    assert report.gpu.name == "Card 2"


def test_memory_shared_with_the_processor_is_said_to_be(monkeypatch: pytest.MonkeyPatch) -> None:
    nvml = use(monkeypatch, FakeNvml())
    nvml.missing = {"memory", "limit"}
    use_cuda(monkeypatch, "12.8", available=True)
    report = describe_hardware()
    assert report.gpu is not None
    assert (report.gpu.total_bytes, report.gpu.power_limit) == (None, None)
    assert "shares the machine's memory" in " ".join(report.sentences)


@pytest.mark.parametrize(
    ("cuda", "driver_cuda", "hidden", "words"),
    [
        (None, 12090, None, "CPU build"),
        ("13.0", 12020, None, "supports CUDA 12.2, but PyTorch needs CUDA 13.0"),
        ("12.8", 12090, "", "CUDA_VISIBLE_DEVICES"),
        ("12.8", 12090, None, "cannot start CUDA"),
    ],
)
def test_a_gpu_that_torch_cannot_use_is_never_passed_over_in_silence(
    monkeypatch: pytest.MonkeyPatch,
    cuda: str | None,
    driver_cuda: int,
    hidden: str | None,
    words: str,
) -> None:
    nvml = use(monkeypatch, FakeNvml())
    monkeypatch.setattr(nvml, "nvmlSystemGetCudaDriverVersion_v2", lambda: driver_cuda)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if hidden is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", hidden)
    use_cuda(monkeypatch, cuda, available=False)
    report = describe_hardware()
    assert report.device == "cpu"
    assert words in report.reason
    assert report.gpu is not None


def test_a_gpu_too_old_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    nvml = use(monkeypatch, FakeNvml())
    nvml.capability = (6, 1)
    use_cuda(monkeypatch, "12.8", available=True)
    report = describe_hardware()
    assert report.device == "cpu"
    assert "Card 0 is older" in report.reason


def test_without_torch_the_report_still_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    use(monkeypatch, FakeNvml())
    monkeypatch.setitem(sys.modules, "torch", None)
    report = describe_hardware()
    assert report.torch == ""
    assert "not installed" in report.reason


@pytest.mark.parametrize(
    ("capability", "words"),
    [
        ((7, 5), "neither FP4 nor bfloat16"),
        ((8, 9), "no FP4"),
        ((9, 0), "no FP4"),
        ((10, 0), "has FP4 tensor cores"),
        ((12, 1), "has FP4 tensor cores"),
    ],
)
def test_the_capability_table_gives_a_path_and_its_reason(
    capability: tuple[int, int], words: str
) -> None:
    path, reason = kernel_path(capability)
    assert "stay packed" in path
    assert words in reason
    assert f"sm_{capability[0]}{capability[1]}" in reason


def test_a_sample_reads_the_meters(monkeypatch: pytest.MonkeyPatch) -> None:
    nvml = use(monkeypatch, FakeNvml())
    sample = sample_gpu()
    assert sample.reason == ""
    assert (sample.utilisation, sample.power, sample.temperature) == (37.0, 123.4, 61.0)
    assert (sample.used_bytes, sample.total_bytes) == (4 * GIB, 24 * GIB)
    sample_gpu()
    assert nvml.starts == 1


def test_meters_a_gpu_does_not_have_are_none(monkeypatch: pytest.MonkeyPatch) -> None:
    nvml = use(monkeypatch, FakeNvml())
    nvml.missing = {"power", "memory"}
    sample = sample_gpu()
    assert (sample.power, sample.used_bytes, sample.utilisation) == (None, None, 37.0)
    assert sample.reason == ""


def test_a_lost_gpu_is_said_and_comes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    nvml = use(monkeypatch, FakeNvml())
    nvml.missing = {"power", "memory", "rates", "temperature"}
    assert sample_gpu().reason == "The GPU does not answer."
    nvml.missing = {"handle"}
    assert "error 3" in sample_gpu().reason
    nvml.missing = set()
    assert sample_gpu().utilisation == 37.0
    assert sample_gpu(5).reason == "The NVIDIA driver is running, but it sees no such GPU."


def test_importing_the_module_does_not_import_torch(repo_root: Path) -> None:
    code = "import sys; import engine.hardware; sys.exit('torch' in sys.modules)"
    answer = subprocess.run([sys.executable, "-c", code], cwd=repo_root, check=False)
    assert answer.returncode == 0
