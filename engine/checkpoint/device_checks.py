"""Checks values where they were loaded to, with no synchronisation until the end.

Knows what `engine.checkpoint.values` demands of weights and scales, as device operations over whole
stacks: a checkpoint need not be read a second time. Which element is wrong is not known here; the
slower pass over the file says that, once something is.
"""

from __future__ import annotations

import torch
from torch import Tensor

from engine.checkpoint.inventory import Form
from engine.kernels.nvfp4 import PackedExperts, PackedWeight

_NAN = 0x7F  # of E4M3, without its sign
_ONE = 0x38  # 1.0 in E4M3


class DeviceChecks:
    """Gathers a verdict over tensors on one device."""

    def __init__(self, device: torch.device) -> None:
        self._bad = torch.zeros((), dtype=torch.bool, device=device)

    def dense(self, values: Tensor) -> None:
        """Every element must be finite."""
        self._bad.logical_or_(~torch.isfinite(values).all())

    def packed(self, stored: PackedWeight | PackedExperts, form: Form) -> None:
        """Block scales finite and positive, global scales too and on the right side of 1 (as
        stored: before a divisor is turned). ModelOpt's spelling of an all-zero matrix (codes 0,
        global scale 0, scales NaN) becomes the same matrix in valid numbers, in place."""
        codes, scales = stored.codes, stored.scales.view(torch.uint8)
        scale = stored.global_scale
        inner = tuple(range(scale.dim(), codes.dim()))
        zero = scale == 0
        zero &= ((scales & _NAN) == _NAN).all(inner[-1]).all(inner[0])
        zero &= (codes == 0).all(inner[-1]).all(inner[0])
        if form != "modelopt":
            zero = torch.zeros_like(zero)
        wrong = ((scales == 0) | (scales >= _NAN)).any(inner[-1]).any(inner[0])
        wrong |= ~(torch.isfinite(scale) & (scale > 0))
        wrong |= scale > 1 if form == "modelopt" else scale < 1
        self._bad.logical_or_((wrong & ~zero).any())
        scales.masked_fill_(zero.reshape((*zero.shape, 1, 1)), _ONE)
        scale.masked_fill_(zero, 1.0)

    def passed(self) -> bool:
        """Waits for the device."""
        return not bool(self._bad)
