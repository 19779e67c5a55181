"""Muon for stacks of matrices: one momentum step, orthogonalised, for any number of matrices at
once.

Knows the update of one stack [..., rows, cols]. Knows nothing of parameters' names, of learning
rate schedules or of which weights are matrices (that is `trainer.master`). `torch.optim.Muon` takes
only single 2-D tensors, one by one; the experts here are 3-D stacks and there are hundreds of them.
Source: Jordan et al., "Muon: an optimizer for hidden layers in neural networks" (2024); the scale
that matches AdamW's update size is from Liu et al., arXiv 2502.16982.
"""

from __future__ import annotations

import torch
from torch import Tensor

# Quintic iteration a X + b (X X^T) X + c (X X^T)^2 X: pushes every singular value into about
# [0.7, 1.2] within five rounds.
COEFFICIENTS = (3.4445, -4.7750, 2.0315)
ROUNDS = 5
RMS_TARGET = 0.2  # AdamW's usual update size per element


def orthogonalise(matrices: Tensor, rounds: int = ROUNDS) -> Tensor:
    """Replaces every matrix of a stack [..., r, c] by (nearly) its closest semi-orthogonal one.

    Computes in bfloat16 on a GPU, in float32 elsewhere; returns that dtype. Zero stays zero.
    """
    shape = matrices.shape
    x = matrices.reshape(-1, *shape[-2:])
    x = x.to(torch.bfloat16 if x.device.type == "cuda" else torch.float32)
    tall = shape[-2] > shape[-1]
    if tall:
        x = x.transpose(1, 2)
    x = x / (x.float().square().sum((1, 2), keepdim=True).sqrt() + 1e-7).to(x.dtype)
    a, b, c = COEFFICIENTS
    for _ in range(rounds):
        gram = x @ x.transpose(1, 2)
        poly = torch.baddbmm(gram, gram, gram, beta=b, alpha=c)
        x = torch.baddbmm(x, poly, x, beta=a)
    return (x.transpose(1, 2) if tall else x).reshape(shape)


def matched_scale(rows: int, cols: int) -> float:
    """Factor that gives an orthogonal update the element size of AdamW's: 0.2 sqrt(max(r, c))."""
    return RMS_TARGET * max(rows, cols) ** 0.5


def muon_step(
    master: Tensor,
    momentum: Tensor,
    grad: Tensor,
    *,
    lr: float,
    weight_decay: float,
    beta: float,
) -> None:
    """One update of a stack [..., r, c], in place: master and momentum float32, grad of any dtype.

    Nesterov momentum as a running mean, decoupled weight decay, update scaled by `matched_scale`.
    """
    grad = grad.float()
    momentum.lerp_(grad, 1.0 - beta)
    update = orthogonalise(grad.lerp(momentum, beta))
    master.mul_(1.0 - lr * weight_decay)
    master.add_(update, alpha=-lr * matched_scale(*master.shape[-2:]))
