"""The tensors a run trains: float32 masters, their optimiser, and how they become the model's.

Knows AdamW and Muon over any set of named parameters, clipping, and the NVFP4 grid that written
weights may have to lie on. The model's parameters are overwritten in place, so that a captured
rollout sees every update. Knows no loss and no schedule.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from engine.errors import RuntimeFailure
from trainer.adamw import adamw_step
from trainer.muon import muon_step
from trainer.qat import quantise_masters

EPS = 1e-8
BETAS = (0.9, 0.95)
MUON_BETA = 0.95
_NOT_MUON = ("word_embeddings.weight", "embed_tokens.weight", "lm_head.weight", "gate.weight")


@dataclass
class _Slot:
    """One parameter: master float32 like it; first, second: moments (second None under Muon)."""

    parameter: nn.Parameter
    master: Tensor
    first: Tensor
    second: Tensor | None
    rate: float  # times the run's learning rate


class Trained:
    """rate, muon: learning rates of AdamW and of Muon (0: AdamW for all). rates: factor by name's
    beginning. quantised: parts whose weights are rounded to NVFP4 when written (`trainer.qat`)."""

    def __init__(
        self,
        parameters: Mapping[str, nn.Parameter],
        rate: float,
        muon: float,
        weight_decay: float,
        clip: float,
        rates: Mapping[str, float],
        quantised: frozenset[str],
    ) -> None:
        self.rate, self.muon, self.weight_decay, self.clip = rate, muon, weight_decay, clip
        self.quantised = quantised
        self.steps = 0
        self.slots: dict[str, _Slot] = {}
        for name, parameter in parameters.items():
            parameter.requires_grad_(True)
            master = parameter.detach().float().clone()
            factor = next((f for start, f in rates.items() if name.startswith(start)), 1.0)
            matrix = muon > 0 and master.dim() >= 2 and not name.endswith(_NOT_MUON)
            second = None if matrix else torch.zeros_like(master)
            self.slots[name] = _Slot(parameter, master, torch.zeros_like(master), second, factor)

    @torch.no_grad()
    def write(self) -> None:
        """Copies the masters into the parameters, rounding once."""
        masters = {name: slot.master for name, slot in self.slots.items()}
        if self.quantised:
            masters = quantise_masters(masters, self.quantised)
        for name, slot in self.slots.items():
            slot.parameter.copy_(masters[name])

    def gradients(self) -> list[Tensor]:
        """In a fixed order, the parameters' own: what is added to them counts. Zeros where there
        were none."""
        for slot in self.slots.values():
            if slot.parameter.grad is None:
                slot.parameter.grad = torch.zeros_like(slot.parameter)
        return [slot.parameter.grad for slot in self.slots.values()]  # pyright: ignore[reportReturnType]

    def without_gradient(self) -> list[str]:
        """Names of tensors that got no gradient at all, or one of zeros."""
        return [
            name
            for name, slot in self.slots.items()
            if slot.parameter.grad is None or not bool(slot.parameter.grad.any())
        ]

    def drop_gradients(self) -> None:
        for slot in self.slots.values():
            slot.parameter.grad = None

    @torch.no_grad()
    def step(self, factor: float) -> float:
        """One update from the gradients, which are then dropped; returns their norm before
        clipping. Raises RuntimeFailure `train.nonfinite` and changes nothing when it is not
        finite."""
        grads = self.gradients()
        norm = float(nn.utils.get_total_norm(grads))
        if not norm < float("inf"):
            self.drop_gradients()
            raise RuntimeFailure(
                "train.nonfinite",
                f"The gradient of update {self.steps} is not finite.",
                "Lower the learning rate, or go on from the last good checkpoint.",
            )
        scale = min(1.0, self.clip / (norm + 1e-6))
        self.steps += 1
        for slot, grad in zip(self.slots.values(), grads, strict=True):
            self._move(slot, grad.float() * scale, factor)
        self.drop_gradients()
        self.write()
        return norm

    def _move(self, slot: _Slot, grad: Tensor, factor: float) -> None:
        if slot.second is None:
            muon_step(
                slot.master,
                slot.first,
                grad,
                lr=self.muon * slot.rate * factor,
                weight_decay=self.weight_decay,
                beta=MUON_BETA,
            )
            return
        adamw_step(
            slot.master,
            slot.first,
            slot.second,
            grad,
            lr=self.rate * slot.rate * factor,
            betas=BETAS,
            step=self.steps,
            eps=EPS,
            weight_decay=self.weight_decay,
        )

    def masters(self) -> dict[str, Tensor]:
        """float32 by name, not copies."""
        return {name: slot.master for name, slot in self.slots.items()}

    def state(self) -> dict[str, Tensor]:
        """Everything an exact continuation needs, by name; not copies."""
        out: dict[str, Tensor] = {"steps": torch.tensor(self.steps)}
        for name, slot in self.slots.items():
            out[f"master/{name}"], out[f"first/{name}"] = slot.master, slot.first
            if slot.second is not None:
                out[f"second/{name}"] = slot.second
        return out

    @torch.no_grad()
    def load(self, state: Mapping[str, Tensor]) -> None:
        """Takes over what `state` gave. Raises RuntimeFailure `train.other_run` for another set."""
        own = self.state()
        if set(own) != set(state) or any(own[n].shape != state[n].shape for n in own):
            raise RuntimeFailure(
                "train.other_run",
                "The saved state belongs to another model or another recipe.",
                "Resume with the settings the run was started with.",
            )
        self.steps = int(state["steps"])
        for name, tensor in own.items():
            if name != "steps":
                tensor.copy_(state[name])
        self.write()
