"""What every backbone offers: embed -> forward -> logits as separate calls, so that a residual can
be added to the embeddings and logits are computed only for the positions that need them.

Knows no family.
"""

from __future__ import annotations

from typing import Generic, TypeVar

from torch import Tensor, nn

from engine.models.family import FamilySpec
from engine.models.layers import Attend, RMSNorm
from engine.models.residual import ResidualInput

Spec = TypeVar("Spec", bound=FamilySpec, covariant=True)


class Backbone(nn.Module, Generic[Spec]):
    """spec: the checkpoint's numbers. norm: the final one; its weight says device and dtype.
    residual: what a step adds to its embeddings from the step before; None = nothing."""

    spec: Spec
    norm: RMSNorm

    def __init__(self) -> None:
        super().__init__()
        self.residual: ResidualInput | None = None

    @property
    def embedding(self) -> Tensor:
        """The embedding matrix [V, H]."""
        raise NotImplementedError  # a family's own

    def embed(self, ids: Tensor) -> Tensor:
        """ids int64 [B, T] -> [B, T, H]."""
        raise NotImplementedError  # a family's own

    def forward(self, embeds: Tensor, positions: Tensor, attend: Attend) -> Tensor:
        """embeds [B, T, H], absolute positions int64 [B, T] -> hidden states after the final norm
        [B, T, H]."""
        raise NotImplementedError  # a family's own

    def logits(self, hidden: Tensor) -> Tensor:
        """[..., H] -> float32 [..., V], as the head gives them: a shift is the program's
        business."""
        raise NotImplementedError  # a family's own


AnyBackbone = Backbone[FamilySpec]
