"""float32 master weights of a bfloat16 training model, stacked over layers, and their optimiser.

Knows which weights are matrices (Muon) and which are not (AdamW), and how masters become the
model's weights: rounded, or through the NVFP4 grid first (quantisation-aware training with a
straight-through gradient: the model computes with quantised weights, the masters take its
gradient). Knows no data and no schedule.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from engine.models.llada2_spec import LLaDA2Spec
from trainer.adamw import adamw_step
from trainer.muon import muon_step
from trainer.qat import quantise_masters

_LAYER = re.compile(r"layers\.\d+\.")
ADAM_EPS = 1e-10

# Stacks that Muon updates: every matrix inside the transformer but the router. Embedding, head,
# router and norms take AdamW.
_MUON = (
    "attention.query_key_value.weight",
    "attention.dense.weight",
    ".experts.gate",
    ".experts.up",
    ".experts.down",
    "gate_proj.weight",
    "up_proj.weight",
    "down_proj.weight",
)


@dataclass(frozen=True)
class OptimiserSettings:
    """muon_lr and adam_lr are peak values; the schedule multiplies both."""

    muon_lr: float = 2e-3
    muon_beta: float = 0.95
    muon_weight_decay: float = 0.1
    adam_lr: float = 2e-3
    adam_betas: tuple[float, float] = (0.9, 0.95)
    clip: float = 1.0


@dataclass
class Stack:
    """The weights of one name over all layers that have it: master float32 [L, *shape].

    first: Muon momentum or AdamW's first moment; second: AdamW's second moment, else None.
    """

    name: str
    params: list[nn.Parameter]
    master: Tensor
    first: Tensor
    second: Tensor | None


class MasterWeights:
    """All parameters of a model as float32 stacks.

    quantised_parts: which modules pass through NVFP4 when `write(quantised=True)`; names as in
    `trainer.qat.part_of`.
    """

    def __init__(
        self,
        model: nn.Module,
        spec: LLaDA2Spec,
        settings: OptimiserSettings,
        quantised_parts: frozenset[str],
    ) -> None:
        self.settings = settings
        self.spec = spec
        self.quantised_parts = quantised_parts
        self.steps = 0
        grouped: dict[str, list[nn.Parameter]] = {}
        for name, parameter in model.named_parameters():
            grouped.setdefault(_LAYER.sub("layers.*.", name), []).append(parameter)
        self.stacks = {name: _stack(name, params) for name, params in grouped.items()}

    def initialise(self, seed: int) -> None:
        """Random masters: matrices N(0, 0.02) with the residual outputs scaled down, norms 1."""
        generator = torch.Generator("cpu").manual_seed(seed)
        residual = (2 * self.spec.num_layers) ** -0.5
        for name in sorted(self.stacks):
            stack = self.stacks[name]
            if name.endswith("norm.weight"):
                stack.master.fill_(1.0)
                continue
            draw = torch.empty(stack.master.shape).normal_(std=0.02, generator=generator)
            if name.endswith(("attention.dense.weight", "down_proj.weight", ".experts.down")):
                draw *= residual
            stack.master.copy_(draw)

    @torch.no_grad()
    def write(self, quantised: bool) -> None:
        """Copies the masters into the model's parameters, rounding to their dtype once."""
        masters = self.masters()
        if quantised:
            masters = quantise_masters(masters, self.quantised_parts)
        for name, stack in self.stacks.items():
            for parameter, value in zip(stack.params, masters[name], strict=True):
                parameter.copy_(value)

    @torch.no_grad()
    def step(self, factor: float) -> Tensor:
        """One update from the parameters' gradients, which are then dropped.

        factor: the schedule's. Returns the gradient norm before clipping, float32 [] on the device
        (not synchronised).
        """
        self.steps += 1
        norm, grads = self._clipped()
        s = self.settings
        for stack, grad in zip(self.stacks.values(), grads, strict=True):
            if stack.second is None:
                self._muon(stack, grad, s.muon_lr * factor)
            else:
                self._adam(stack, stack.second, grad, s.adam_lr * factor)
        return norm

    def _clipped(self) -> tuple[Tensor, list[Tensor]]:
        grads = []
        for stack in self.stacks.values():
            found = []
            for parameter in stack.params:
                if parameter.grad is None:
                    raise RuntimeError(f"no gradient reached {stack.name}: it is not being trained")
                found.append(parameter.grad)
                parameter.grad = None
            grads.append(torch.stack(found))
        norm = nn.utils.get_total_norm(grads)
        scale = (self.settings.clip / (norm + 1e-6)).clamp(max=1.0)
        return norm.float(), [grad * scale.to(grad.dtype) for grad in grads]

    def _muon(self, stack: Stack, grad: Tensor, lr: float) -> None:
        s = self.settings
        for piece in self._matrices(stack.name):
            muon_step(
                piece(stack.master),
                piece(stack.first),
                piece(grad),
                lr=lr,
                weight_decay=s.muon_weight_decay,
                beta=s.muon_beta,
            )

    def _matrices(self, name: str) -> list[Callable[[Tensor], Tensor]]:
        """Views of a stack as the matrices that Muon treats alone: q, k and v apart."""
        if name.endswith("query_key_value.weight"):
            head = self.spec.head_dim
            q, kv = self.spec.num_heads * head, self.spec.num_kv_heads * head
            bounds = ((0, q), (q, q + kv), (q + kv, q + 2 * kv))
            return [lambda t, a=a, b=b: t[..., a:b, :] for a, b in bounds]
        return [lambda t: t]

    def _adam(self, stack: Stack, second: Tensor, grad: Tensor, lr: float) -> None:
        adamw_step(
            stack.master,
            stack.first,
            second,
            grad,
            lr=lr,
            betas=self.settings.adam_betas,
            step=self.steps,
            eps=ADAM_EPS,
        )

    def tensors(self) -> dict[str, Tensor]:
        """Masters and optimiser state by name, for an exact checkpoint (no copies)."""
        out: dict[str, Tensor] = {}
        for name, stack in self.stacks.items():
            out[f"master/{name}"] = stack.master
            out[f"first/{name}"] = stack.first
            if stack.second is not None:
                out[f"second/{name}"] = stack.second
        return out

    def masters(self) -> dict[str, Tensor]:
        """Masters alone by stack name, float32 [L, *shape]."""
        return {name: stack.master for name, stack in self.stacks.items()}


def _stack(name: str, params: list[nn.Parameter]) -> Stack:
    master = torch.stack([p.detach().float() for p in params])
    second = None if name.endswith(_MUON) else torch.zeros_like(master)
    return Stack(name, params, master, torch.zeros_like(master), second)
