"""Builds the CUDA C++ kernels for the CPU (one fiber a thread) so that tests can run them without a
GPU.

Needs a C++ compiler; knows how to call it and how to pass tensors. The machine instructions are
emulated in `cuda_on_cpu/primitives.h`.
"""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest
from torch import Tensor

HERE = Path(__file__).resolve().parent
SOURCES = HERE.parent.parent / "engine" / "kernels" / "cuda"


def build(folder: Path, wrapper: str, defines: Mapping[str, int | str]) -> ctypes.CDLL:
    """Compiles `cuda_on_cpu/<wrapper>` with the given macros and loads it. Skips the test where no
    compiler is."""
    compiler = shutil.which("g++") or shutil.which("clang++")
    if compiler is None:
        pytest.skip("running CUDA kernels on the CPU needs a C++ compiler (g++ or clang++)")
    library = folder / f"{Path(wrapper).stem}_{abs(hash(tuple(sorted(defines.items()))))}.so"
    command = [
        compiler,
        "-std=c++17",
        "-O1",
        "-fno-exceptions",
        "-w",
        "-fPIC",
        "-shared",
        "-fno-strict-aliasing",
    ]
    command += [f"-I{SOURCES}", *(f"-D{name}={value}" for name, value in defines.items())]
    command += [str(HERE / "cuda_on_cpu" / wrapper), "-o", str(library)]
    subprocess.run(command, check=True)
    return ctypes.CDLL(str(library))


def call(library: ctypes.CDLL, function: str, *arguments: Tensor | int) -> None:
    """Passes tensors as their addresses (they must be contiguous) and integers as they are."""
    passed = []
    for argument in arguments:
        if isinstance(argument, Tensor):
            assert argument.is_contiguous()
            passed.append(ctypes.c_void_p(argument.data_ptr()))
        else:
            passed.append(ctypes.c_int(argument))
    getattr(library, function)(*passed)
