"""GELU in its tanh form times another matrix: DiffusionGemma's activation.

Knows one function, for kernels that end with it (`gelu_tanh`) and by itself.
"""

# Triton's annotations describe its compiler, not the tensors a kernel computes with.
# pyright: reportArgumentType=false, reportCallIssue=false, reportOperatorIssue=false
# pyright: reportGeneralTypeIssues=false, reportIndexIssue=false, reportAttributeAccessIssue=false

from __future__ import annotations

import torch.nn.functional as F
import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def gelu_tanh(x):
    """The tanh form, float32."""
    inner = 0.7978845608028654 * (x + 0.044715 * x * x * x)
    return x / (1.0 + tl.exp(-2.0 * inner))


def gelu_mul_reference(gate_up: Tensor) -> Tensor:
    """[T, 2 I] (gate, then up) -> [T, I], rounded once."""
    gate, up = gate_up.float().chunk(2, dim=-1)
    return (F.gelu(gate, approximate="tanh") * up).to(gate_up.dtype)


def gelu_mul(gate_up: Tensor, out: Tensor) -> None:
    """`gelu_mul_reference` in one launch, into out [T, I]; gate_up contiguous."""
    tokens, inter = out.shape
    _gelu_mul_kernel[(tokens, triton.cdiv(inter, 1024))](gate_up, out, INTER=inter, WIDTH=1024)


@triton.jit
def _gelu_mul_kernel(gate_up, out, INTER: tl.constexpr, WIDTH: tl.constexpr):
    token = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * WIDTH + tl.arange(0, WIDTH)
    live = column < INTER
    row = gate_up + token * 2 * INTER + column
    gate = tl.load(row, mask=live, other=0.0).to(tl.float32)
    up = tl.load(row + INTER, mask=live, other=0.0).to(tl.float32)
    tl.store(
        out + token * INTER + column, (gelu_tanh(gate) * up).to(out.dtype.element_ty), mask=live
    )
