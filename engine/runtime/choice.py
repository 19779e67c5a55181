"""Chooses how a reply's steps are run on a device, and says why.

Knows what each runtime needs (CUDA 12.4 and cuda-bindings for one graph per reply, a GPU for one
graph per step) and builds the one that is possible. The table in words is
`engine.hardware.loop_path`.
"""

from __future__ import annotations

import importlib.util
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

from engine.errors import RuntimeFailure
from engine.hardware import LoopPath, loop_path
from engine.runtime.cache import BlockAttention
from engine.runtime.conditional import bindings_version, driver_calls
from engine.runtime.eager import EagerRuntime
from engine.runtime.pieces import ReplyPieces, make_pieces
from engine.runtime.ring import SLOTS, RecordKernel
from engine.runtime.rows import Row, StepMark
from engine.runtime.step import StepProgram

ASKED_FOR = "It was asked for."


class Runtime(Protocol):
    """Runs replies of one batch: `prefill`, then `run`. prepare: captures what a reply with the
    checkpoint's own settings needs ahead of the first one. close: gives captured memory back; the
    runtime is then unusable."""

    pieces: ReplyPieces

    def prepare(self) -> None: ...

    def prefill(self, rows: Sequence[Row], stop: threading.Event | None = None) -> int: ...

    def run(
        self, rows: Sequence[Row], stop: threading.Event | None = None, record: bool = True
    ) -> Iterator[StepMark]: ...

    def close(self) -> None: ...


@dataclass(frozen=True)
class LoopChoice:
    """path: which runtime; reason: why this one, in words."""

    path: LoopPath
    reason: str


def choose_loop(device: torch.device, wanted: LoopPath | None = None) -> LoopChoice:
    """The best runtime the device allows.

    wanted: a simpler one, to compare or to look for a fault; one the device does not allow is not
    taken. Builds the loop's kernels once to be sure of them.
    """
    if device.type != "cuda":
        return LoopChoice(*loop_path(device.type, None, None))
    if wanted == "eager":
        return LoopChoice("eager", ASKED_FOR)
    try:
        bindings: tuple[int, ...] | None = bindings_version()
    except ImportError:
        bindings = None
    path, reason = loop_path(device.type, _driver_cuda() if bindings else None, bindings)
    if wanted == "one graph per step" and path != wanted:
        return LoopChoice("one graph per step", ASKED_FOR)
    if path == "one graph per reply":
        try:
            torch.cuda.synchronize(device)  # makes the device's context current
            driver_calls(device.index or 0)
        except RuntimeFailure as failure:
            why = f"The loop's kernels could not be built: {failure.message}"
            return LoopChoice("one graph per step", why)
    return LoopChoice(path, reason)


def make_runtime(program: StepProgram, stop_after_block: bool, choice: LoopChoice) -> Runtime:
    """The chosen runtime over a program, with buffers of its own."""
    if choice.path == "eager":
        on_gpu = program.state.tokens.device.type == "cuda" and has_triton()
        return EagerRuntime(make_pieces(program, stop_after_block, one_launch=on_gpu))
    from engine.runtime.backend import CudaBackend
    from engine.runtime.graph import GraphRuntime, PerStepGraphRuntime
    from engine.runtime.reader import staging_words

    # A step ahead doubles the tokens of a forward: on a GPU that costs far less than a second one.
    pieces = make_pieces(
        program,
        stop_after_block,
        slots=SLOTS,
        kernel=record_kernel(),
        ahead=True,
        one_launch=has_triton(),
    )
    backend = CudaBackend(program.state.tokens.device, staging_words(pieces))
    if choice.path == "one graph per step":
        return PerStepGraphRuntime(pieces, backend)
    return GraphRuntime(pieces, backend)


def has_triton() -> bool:
    return importlib.util.find_spec("triton") is not None


def record_kernel() -> RecordKernel | None:
    """Writes a trace record in one launch; None without Triton."""
    if not has_triton():
        return None
    from engine.runtime.ring_kernel import record_in_one_launch

    return record_in_one_launch


def block_attention(
    device: torch.device, head_dim: int, rotary_dim: int, theta: float
) -> BlockAttention | None:
    """The attention kernels where they run: on a GPU, with heads and rotated parts of a power of
    two, heads of at least 16. None: SDPA under a mask."""
    fits = head_dim >= 16 and head_dim & (head_dim - 1) == 0
    fits = fits and rotary_dim >= 2 and rotary_dim & (rotary_dim - 1) == 0
    if device.type != "cuda" or not fits or not has_triton():
        return None
    from engine.runtime.attention import TritonAttention

    return TritonAttention(rotary_dim, theta)


def give_attention(
    program: StepProgram, head_dim: int, rotary_dim: int, theta: float, *, block_causal: bool = True
) -> None:
    """The kernels of `block_attention` for a program's cache, where they run and their mask (each
    sees its own block and all before it) is the program's; and which of the two it is, in words."""
    device, found = program.state.tokens.device, None
    if block_causal:
        found = block_attention(device, head_dim, rotary_dim, theta)
    program.cache.attention = found
    if found is not None:
        program.attends = "Attention runs as kernels, which rotate and keep keys too."
        return
    why = "no kernel has its mask" if not block_causal else f"no kernel takes heads of {head_dim}"
    if not has_triton():
        why = "Triton is not installed"
    program.attends = f"Attention is PyTorch's own: {why}."


def _driver_cuda() -> tuple[int, int]:
    """CUDA version the driver supports."""
    from cuda.bindings import driver  # pyright: ignore[reportAttributeAccessIssue] (compiled)

    from engine.kernels.nvrtc import check

    version = int(check(driver.cuDriverGetVersion()))
    return version // 1000, version % 1000 // 10
