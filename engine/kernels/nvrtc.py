"""Builds the CUDA C++ sources in `engine/kernels/cuda` at run time and launches them on torch's
current stream.

Knows NVRTC and the driver's launch call through cuda-bindings; needs neither nvcc nor a C++
compiler. Knows nothing of what a kernel computes. Compiling needs no GPU; loading and launching do.
Launches may be captured into a CUDA graph.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from cuda.bindings import driver, nvrtc  # pyright: ignore[reportAttributeAccessIssue] (compiled)
from torch import Tensor

from engine.errors import RuntimeFailure

SOURCES = Path(__file__).parent / "cuda"
ARCHITECTURES = ("sm_80", "sm_89", "sm_90", "sm_100", "sm_120")  # that CI compiles for

Argument = Tensor | int | float
Define = int | str


def compile_cubin(source: str, defines: Mapping[str, Define], architecture: str) -> bytes:
    """Machine code of `cuda/<source>` for one architecture ("sm_90"). Raises RuntimeFailure with
    the compiler's log."""
    return _compile(source, tuple(sorted(defines.items())), architecture)


@lru_cache(maxsize=64)
def _compile(source: str, defines: tuple[tuple[str, Define], ...], architecture: str) -> bytes:
    headers = sorted(SOURCES.glob("*.cuh"))
    result, program = nvrtc.nvrtcCreateProgram(
        (SOURCES / source).read_bytes(),
        source.encode(),
        len(headers),
        [header.read_bytes() for header in headers],
        [header.name.encode() for header in headers],
    )
    _check_nvrtc(result, source)
    options = [f"--gpu-architecture={architecture}".encode(), b"--std=c++17", b"--fmad=true"]
    options += [f"-D{name}={value}".encode() for name, value in defines]
    (result,) = nvrtc.nvrtcCompileProgram(program, len(options), options)
    if result != nvrtc.nvrtcResult.NVRTC_SUCCESS:
        _, size = nvrtc.nvrtcGetProgramLogSize(program)
        log = b" " * size
        nvrtc.nvrtcGetProgramLog(program, log)
        raise _refusal(source, log.decode(errors="replace").strip("\0 \n"))
    result, size = nvrtc.nvrtcGetCUBINSize(program)
    _check_nvrtc(result, source)
    code = b" " * size
    (result,) = nvrtc.nvrtcGetCUBIN(program, code)
    _check_nvrtc(result, source)
    nvrtc.nvrtcDestroyProgram(program)
    return code


def _check_nvrtc(result: nvrtc.nvrtcResult, source: str) -> None:
    if result != nvrtc.nvrtcResult.NVRTC_SUCCESS:
        raise _refusal(source, str(result))


def _refusal(source: str, log: str) -> RuntimeFailure:
    return RuntimeFailure(
        "kernel.compile",
        f"The CUDA kernel {source} could not be built: {log}",
        "Update the GPU driver and torch; the app can run without this kernel, more slowly.",
    )


def device_architecture(device: torch.device | int | None = None) -> str:
    """The compile target of a CUDA device, e.g. "sm_90"."""
    major, minor = torch.cuda.get_device_capability(device)
    return f"sm_{major}{minor}"


class CudaModule:
    """A compiled source loaded into the current device's context; kernels by name."""

    def __init__(self, source: str, defines: Mapping[str, Define]) -> None:
        torch.cuda.current_stream().synchronize()  # makes torch's context current on this thread
        self.code = compile_cubin(source, defines, device_architecture())
        self._module = check(driver.cuModuleLoadData(self.code))

    def kernel(self, name: str, shared_bytes: int = 0) -> CudaKernel:
        """A kernel with its dynamic shared memory fixed (bytes)."""
        function = check(driver.cuModuleGetFunction(self._module, name.encode()))
        if shared_bytes > 48 * 1024:
            attribute = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
            check(driver.cuFuncSetAttribute(function, attribute, shared_bytes))
        return CudaKernel(function, shared_bytes)

    def symbol(self, name: str) -> int:
        """Device address of a `__device__` variable."""
        address, _ = check(driver.cuModuleGetGlobal(self._module, name.encode()))
        return int(address)


class CudaKernel:
    """One loaded function."""

    def __init__(self, function: driver.CUfunction, shared_bytes: int) -> None:
        self.function = function
        self.shared_bytes = shared_bytes

    def registers(self) -> int:
        """Registers a thread uses."""
        attribute = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_NUM_REGS
        return int(check(driver.cuFuncGetAttribute(attribute, self.function)))

    def launch(
        self,
        grid: tuple[int, int],
        threads: int,
        arguments: Sequence[Argument],
        dependent: bool = False,
    ) -> None:
        """Enqueues on torch's current stream. Tensors pass as their address, ints as int32 (int64
        addresses: pass a tensor), floats as float32. dependent: may start before the kernel ahead
        is complete (programmatic dependent launch, sm_90 and later); the kernel itself waits where
        it must."""
        config = driver.CUlaunchConfig()
        config.gridDimX, config.gridDimY, config.gridDimZ = grid[0], grid[1], 1
        config.blockDimX, config.blockDimY, config.blockDimZ = threads, 1, 1
        config.sharedMemBytes = self.shared_bytes
        config.hStream = driver.CUstream(torch.cuda.current_stream().cuda_stream)
        if dependent:
            attribute = driver.CUlaunchAttribute()
            attribute.id = (
                driver.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
            )
            attribute.value.programmaticStreamSerializationAllowed = 1
            config.attrs = [attribute]
            config.numAttrs = 1
        else:
            config.numAttrs = 0
        values: list[int | float] = []
        types: list[type[ctypes._SimpleCData[int] | ctypes._SimpleCData[float]]] = []
        for argument in arguments:
            if isinstance(argument, Tensor):
                values.append(argument.data_ptr())
                types.append(ctypes.c_void_p)  # pyright: ignore[reportArgumentType]
            else:
                values.append(argument)
                types.append(ctypes.c_float if isinstance(argument, float) else ctypes.c_int)
        check(driver.cuLaunchKernelEx(config, self.function, (tuple(values), tuple(types)), 0))


def check(result: tuple[Any, ...]) -> Any:
    """Unwraps a driver call's (status, value...) or raises RuntimeFailure."""
    status, *values = result
    if status != driver.CUresult.CUDA_SUCCESS:
        raise RuntimeFailure(
            "cuda.driver",
            f"The GPU driver refused a call: {status}.",
            "Close other programs that use the GPU, or update its driver.",
        )
    return values[0] if len(values) == 1 else tuple(values)
