"""AdamW for one float32 tensor, in place (Loshchilov and Hutter, arXiv 1711.05101).

Knows the update of one tensor. Knows nothing of which tensors there are, of schedules or clipping.
"""

from __future__ import annotations

from torch import Tensor


def adamw_step(
    master: Tensor,
    first: Tensor,
    second: Tensor,
    grad: Tensor,
    *,
    lr: float,
    betas: tuple[float, float],
    step: int,
    eps: float,
    weight_decay: float = 0.0,
) -> None:
    """master and its moments float32, grad of any dtype; step: from 1, for the bias correction.
    Decoupled weight decay."""
    b1, b2 = betas
    grad = grad.float()
    first.lerp_(grad, 1.0 - b1)
    second.lerp_(grad.square(), 1.0 - b2)
    root = (second / (1.0 - b2**step)).sqrt_().add_(eps)
    if weight_decay:
        master.mul_(1.0 - lr * weight_decay)
    master.addcdiv_(first, root, value=-lr / (1.0 - b1**step))
