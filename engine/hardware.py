"""What this machine can do, in facts and in words: processor, memory, GPU, and which path the
engine takes and why.

Knows the operating system, NVML and the capability table. Does not import torch before
`describe_hardware` is called, chooses nothing for the engine beyond saying what it will choose, and
never guesses: an unknown fact is None, with the reason.
"""

from __future__ import annotations

import os
import platform
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import psutil


@dataclass(frozen=True)
class GpuInfo:
    """One NVIDIA GPU as NVML reports it (index: NVML's own order). Bytes, watts, degrees Celsius;
    None = not reported.
    """

    index: int
    name: str
    capability: tuple[int, int]
    total_bytes: int | None
    free_bytes: int | None
    power_limit: float | None
    temperature: float | None
    uuid: str


@dataclass(frozen=True)
class HardwareReport:
    """The machine. gpu: the one the engine would use, None with `gpu_reason` in words when there is
    none to be seen.

    device: "cuda:0" or "cpu", as the engine chooses. kernel_path: how weights are multiplied there.
    reason: why this device and path. torch: its version and CUDA build, "" when it is not
    installed.
    """

    cpu_name: str
    cpu_cores: int
    ram_total: int
    ram_free: int
    gpu: GpuInfo | None
    gpu_count: int
    gpu_reason: str
    driver: str | None
    torch: str
    device: str
    kernel_path: str
    reason: str

    @property
    def sentences(self) -> tuple[str, ...]:
        """The report for a person, one fact a line."""
        gib = 2**30
        lines = [
            f"Processor: {self.cpu_name}, {self.cpu_cores} cores.",
            f"Memory: {self.ram_free / gib:.1f} of {self.ram_total / gib:.1f} GiB free.",
        ]
        if self.gpu is None:
            lines.append(f"GPU: none. {self.gpu_reason}")
        else:
            major, minor = self.gpu.capability
            free, total = self.gpu.free_bytes, self.gpu.total_bytes
            if free is None or total is None:
                memory = "which shares the machine's memory"
            else:
                memory = f"{free / gib:.1f} of {total / gib:.1f} GiB free"
            lines.append(
                f"GPU: {self.gpu.name} (compute capability {major}.{minor}), {memory}, driver"
                f" {self.driver}."
            )
        lines.append(f"Runs on {self.device}: {self.kernel_path}. {self.reason}")
        return tuple(lines)


@dataclass(frozen=True)
class GpuSample:
    """One reading for a status bar. utilisation: percent. Bytes, watts, degrees Celsius.

    A value NVML does not give is None. reason: why there is no reading at all, "" otherwise.
    """

    utilisation: float | None
    used_bytes: int | None
    total_bytes: int | None
    power: float | None
    temperature: float | None
    reason: str = ""


# First capability with the feature: bfloat16 tensor cores; FP4 tensor cores (sm_100, 103, 120,
# 121).
BFLOAT16_CORES = (8, 0)
FP4_CORES = (10, 0)
OLDEST = (7, 5)
TRIED = (9, 0)  # what the kernels have been run on


def kernel_path(capability: tuple[int, int]) -> tuple[str, str]:
    """How NVFP4 weights are multiplied on a GPU of this capability, and why: (path, reason).

    Weight-only everywhere: it is exact with respect to the checkpoint, while FP4 activations change
    results. Run on sm_90 so far; the others are untested, FP4 tensor cores above all, which are
    off unless they are asked for and a check on the card passes (`engine.kernels.native_fp4`).
    """
    name = f"sm_{capability[0]}{capability[1]}"
    path = "NVFP4 weights stay packed and are expanded to bfloat16 as they are used"
    if capability >= FP4_CORES:
        fp4 = "it has FP4 tensor cores, which are not used, to stay exact (--arithmetic fp4 does)"
        return path, f"On {name}, which this project has not tried: {fp4}."
    if capability == TRIED:
        return path, f"{name} has no FP4 tensor cores."
    if capability >= BFLOAT16_CORES:
        return path, f"{name}, which this project has not tried, has no FP4 tensor cores."
    return path, f"{name} has neither FP4 nor bfloat16 tensor cores, so this is slow."


LoopPath = Literal["eager", "one graph per step", "one graph per reply"]
CONDITIONAL_CUDA = (12, 4)  # first driver whose graphs can repeat a part of themselves


def loop_path(
    device: str, driver_cuda: tuple[int, int] | None, bindings: tuple[int, ...] | None
) -> tuple[LoopPath, str]:
    """How the steps of a reply are run, and why: (path, reason).

    device: "cpu" or "cuda". driver_cuda: CUDA version of the driver. bindings: version of
    cuda-bindings, None where it is not installed.
    """
    if device != "cuda":
        return "eager", "There is no GPU to capture the steps on."
    if bindings is None:
        return "one graph per step", "The Python package cuda-bindings is not installed."
    if driver_cuda is None or driver_cuda < CONDITIONAL_CUDA:
        found = "an unknown CUDA" if driver_cuda is None else "CUDA {}.{}".format(*driver_cuda)
        return (
            "one graph per step",
            f"The NVIDIA driver supports {found}; a whole reply in one graph needs CUDA 12.4.",
        )
    return "one graph per reply", "The driver can repeat parts of a graph by itself."


def describe_hardware() -> HardwareReport:
    """Looks at the machine. Imports torch if it is installed, so the first call takes seconds: not
    for a GUI thread.
    """
    memory = psutil.virtual_memory()
    driver, gpus, gpu_reason, driver_cuda = _query_gpus()
    choice = _choose(gpus, gpu_reason, driver_cuda)
    return HardwareReport(
        cpu_name=_cpu_name(),
        cpu_cores=_usable_cores(),
        ram_total=memory.total,
        ram_free=memory.available,
        gpu=choice.gpu,
        gpu_count=len(gpus),
        gpu_reason=gpu_reason,
        driver=driver,
        torch=choice.torch,
        device=choice.device,
        kernel_path=choice.path,
        reason=choice.reason,
    )


def sample_gpu(index: int = 0) -> GpuSample:
    """Reads the GPU's meters (well under a millisecond once NVML is up). Never raises: see
    `GpuSample.reason`.
    """
    nvml, handle, reason = _session.handle(index)
    if handle is None:
        return GpuSample(None, None, None, None, None, reason)
    memory = _reading(nvml, "nvmlDeviceGetMemoryInfo", handle)
    rates = _reading(nvml, "nvmlDeviceGetUtilizationRates", handle)
    power = _reading(nvml, "nvmlDeviceGetPowerUsage", handle)
    temperature = _reading(nvml, "nvmlDeviceGetTemperature", handle, nvml.NVML_TEMPERATURE_GPU)
    if (memory, rates, power, temperature) == (None, None, None, None):
        _session.reset()  # a device that was lost may come back under a new handle
        return GpuSample(None, None, None, None, None, "The GPU does not answer.")
    return GpuSample(
        utilisation=None if rates is None else float(rates.gpu),
        used_bytes=None if memory is None else int(memory.used),
        total_bytes=None if memory is None else int(memory.total),
        power=None if power is None else power / 1000,
        temperature=None if temperature is None else float(temperature),
    )


class _NvmlSession:
    """NVML, started at most once and shared by threads. A start that fails is tried again at the
    next call.
    """

    def __init__(self) -> None:
        self._nvml: Any = None
        self._lock = threading.Lock()

    def start(self) -> tuple[Any, str]:
        """The NVML module once it is up, or None and why it is not."""
        with self._lock:
            if self._nvml is not None:
                return self._nvml, ""
            try:
                import pynvml
            except ImportError:
                return None, "The Python package nvidia-ml-py is not installed."
            try:
                pynvml.nvmlInit()
            except pynvml.NVMLError as error:
                return None, _nvml_reason(pynvml, error)
            self._nvml = pynvml
            return pynvml, ""

    def handle(self, index: int) -> tuple[Any, Any, str]:
        """NVML and a device handle, or None twice and the reason."""
        nvml, reason = self.start()
        if nvml is None:
            return None, None, reason
        try:
            if index >= nvml.nvmlDeviceGetCount():
                return None, None, "The NVIDIA driver is running, but it sees no such GPU."
            return nvml, nvml.nvmlDeviceGetHandleByIndex(index), ""
        except nvml.NVMLError as error:
            self.reset()
            return None, None, _nvml_reason(nvml, error)

    def reset(self) -> None:
        """Forgets NVML, so that the next call starts it afresh."""
        with self._lock:
            self._nvml = None


_session = _NvmlSession()


def _nvml_reason(nvml: Any, error: Exception) -> str:
    """An NVML error in words."""
    value = getattr(error, "value", None)
    words = {
        nvml.NVML_ERROR_LIBRARY_NOT_FOUND: "No NVIDIA driver was found on this machine.",
        nvml.NVML_ERROR_DRIVER_NOT_LOADED: "The NVIDIA driver is installed but not loaded.",
        nvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH: (
            "The NVIDIA driver was updated while running: its two halves differ in version."
            " Restart the machine."
        ),
        nvml.NVML_ERROR_NO_PERMISSION: "This account may not use the NVIDIA driver.",
        nvml.NVML_ERROR_GPU_IS_LOST: "The GPU was lost. Restart the machine.",
    }
    return words.get(value, f"The NVIDIA driver reports: {error}.")


def _reading(nvml: Any, function: str, *arguments: Any) -> Any:
    """One NVML reading; None where this GPU or driver does not give it."""
    try:
        return getattr(nvml, function)(*arguments)
    except nvml.NVMLError:
        return None


def _query_gpus() -> tuple[str | None, list[GpuInfo], str, tuple[int, int] | None]:
    """Driver version, GPUs, the reason for an empty list, the CUDA version the driver supports."""
    nvml, reason = _session.start()
    if nvml is None:
        return None, [], reason, None
    driver = _reading(nvml, "nvmlSystemGetDriverVersion")
    cuda = _reading(nvml, "nvmlSystemGetCudaDriverVersion_v2")
    count = _reading(nvml, "nvmlDeviceGetCount") or 0
    gpus = [gpu for index in range(count) if (gpu := _gpu_info(index)) is not None]
    if not gpus:
        reason = "The NVIDIA driver is running, but it sees no GPU."
    return driver, gpus, reason, None if cuda is None else (cuda // 1000, cuda % 1000 // 10)


def _gpu_info(index: int) -> GpuInfo | None:
    nvml, handle, _ = _session.handle(index)
    if handle is None:
        return None
    capability = _reading(nvml, "nvmlDeviceGetCudaComputeCapability", handle)
    if capability is None:
        return None
    memory = _reading(nvml, "nvmlDeviceGetMemoryInfo", handle)
    power = _reading(nvml, "nvmlDeviceGetEnforcedPowerLimit", handle)
    temperature = _reading(nvml, "nvmlDeviceGetTemperature", handle, nvml.NVML_TEMPERATURE_GPU)
    return GpuInfo(
        index=index,
        name=str(_reading(nvml, "nvmlDeviceGetName", handle) or "NVIDIA GPU"),
        capability=(int(capability[0]), int(capability[1])),
        total_bytes=None if memory is None else int(memory.total),
        free_bytes=None if memory is None else int(memory.free),
        power_limit=None if power is None else power / 1000,
        temperature=None if temperature is None else float(temperature),
        uuid=str(_reading(nvml, "nvmlDeviceGetUUID", handle) or ""),
    )


@dataclass(frozen=True)
class _Choice:
    torch: str
    gpu: GpuInfo | None
    device: str
    path: str
    reason: str


def _choose(gpus: list[GpuInfo], gpu_reason: str, driver_cuda: tuple[int, int] | None) -> _Choice:
    """The device the engine will take, with the path and the reason in words."""
    cpu_path = "NVFP4 weights are expanded at load where memory allows; plain PyTorch kernels"
    first = gpus[0] if gpus else None
    try:
        import torch
    except ImportError:
        why = "PyTorch is not installed yet, so nothing can run."
        return _Choice("", first, "cpu", cpu_path, why)
    cuda = torch.version.cuda
    words = f"{torch.__version__} ({f'CUDA {cuda}' if cuda else 'CPU build'})"
    if first is None:
        why = gpu_reason
    elif cuda is None:
        why = "There is a GPU, but the PyTorch installed here is a CPU build. Install a CUDA build."
    elif not torch.cuda.is_available():
        why = _unavailable(cuda, driver_cuda)
    else:
        # CUDA numbers devices in its own order; the identifier says which of NVML's this is.
        uuid = str(torch.cuda.get_device_properties(0).uuid)
        gpu = next((gpu for gpu in gpus if gpu.uuid.endswith(uuid)), first)
        if gpu.capability >= OLDEST:
            return _Choice(words, gpu, "cuda:0", *kernel_path(gpu.capability))
        first, why = gpu, f"The {gpu.name} is older than what PyTorch supports."
    return _Choice(words, first, "cpu", cpu_path, why)


def _unavailable(built_for: str, driver_cuda: tuple[int, int] | None) -> str:
    """Why a CUDA build of PyTorch sees no GPU although the driver does."""
    if driver_cuda is not None and driver_cuda[0] < int(built_for.split(".")[0]):
        supported = f"{driver_cuda[0]}.{driver_cuda[1]}"
        return (
            f"The NVIDIA driver supports CUDA {supported}, but PyTorch needs CUDA {built_for}."
            " Update the driver."
        )
    if os.environ.get("CUDA_VISIBLE_DEVICES") in ("", "-1"):
        return "CUDA_VISIBLE_DEVICES hides the GPU from this program."
    return "There is a GPU, but PyTorch cannot start CUDA on it. Restart the machine."


def _usable_cores() -> int:
    """Cores this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    for line in lines:
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
