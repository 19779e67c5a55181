"""What a checkpoint says of its residual input: what a step adds to the embeddings from what the
step before knew.

Knows the field `residual_input` of config.json and the tensors that belong to it (orl.md section
1). Knows no torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, cast

from engine.models.config_fields import ConfigFields

FIELD = "residual_input"
Kind = Literal["rcd", "orl"]
_FIELDS = {
    "rcd": ("kind", "top_k"),
    "orl": ("kind", "top_k", "norm_cap", "adapter_size"),
}


@dataclass(frozen=True)
class ResidualSpec:
    """kind "rcd": a masked position's embedding is interpolated with what the model expected there,
    by its normalised entropy; no weights. "orl": the output of a learned adapter is added.

    top_k: tokens the expectation is taken over, renormalised; 0 = the whole vocabulary. norm_cap:
    the adapter's output is at most this share of the token embedding's norm. adapter_size: its
    inner width.
    """

    kind: Kind
    top_k: int = 64
    norm_cap: float = 0.5
    adapter_size: int = 0

    def linears(self, hidden: int) -> dict[str, tuple[int, int]]:
        """Matrices, name without `.weight` -> (out, in)."""
        if self.kind == "rcd":
            return {}
        wide = (self.adapter_size, hidden)
        return {
            "residual.gate_proj": wide,
            "residual.up_proj": wide,
            "residual.down_proj": (hidden, self.adapter_size),
        }

    def tensors(self, hidden: int) -> dict[str, tuple[int, ...]]:
        """Everything else, full name -> shape."""
        if self.kind == "rcd":
            return {}
        return {"residual.norm.weight": (hidden,), "residual.alpha": (1,)}


def read_residual(c: ConfigFields, hidden: int) -> ResidualSpec | None:
    """The field of config.json; None without one. Raises CheckpointError for a kind or a field that
    is not known: either would change the maths."""
    value = c.get(FIELD)
    if value is None:
        return None
    if not isinstance(value, Mapping):
        raise c.refusal("checkpoint.config_value", FIELD, f"is {value!r:.60}; it must be an object")
    kind = value.get("kind")
    if kind not in _FIELDS:
        raise c.refusal(
            "checkpoint.unsupported_value",
            FIELD,
            f"has the kind {kind!r:.60}; known are {' and '.join(_FIELDS)}",
            "Use a checkpoint whose residual input is one of these.",
        )
    unknown = sorted(set(value) - set(_FIELDS[kind]))
    if unknown:
        raise c.refusal(
            "checkpoint.unsupported_value",
            FIELD,
            f"has the field {unknown[0]}, which means nothing for {kind}",
        )
    r = ConfigFields(value, f"{c.file}: {FIELD}")
    return ResidualSpec(
        kind=cast(Kind, kind),
        top_k=r.integer("top_k", default=64, minimum=0),
        norm_cap=r.number("norm_cap", default=0.5, above=0.0),
        adapter_size=r.integer("adapter_size", default=max(1, hidden // 8), minimum=1),
    )
