"""The engine's LLaDA2 module, prepared for pretraining: compute paths, compilation, router balance
and the loss.

Knows how to make the engine's own module fast to train; has no second transformer. Knows no data
and no optimiser.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from engine.models.llada2 import DecoderLayer, LLaDA2, SparseMLP
from engine.models.llada2_spec import LLaDA2Spec
from trainer.moe_train import KINDS, choose_by_rank
from trainer.noise import DevicePlan
from trainer.staircase import DenseStaircase, FlexStaircase, block_codes


@dataclass(frozen=True)
class ComputePath:
    """How a step is computed. experts: "grouped" or "wide" (`trainer.moe_train`); attention: "flex"
    or "dense" (`trainer.staircase`); compiled: through torch.compile."""

    experts: str = "grouped"
    attention: str = "flex"
    compiled: bool = True

    @classmethod
    def of(cls, device: torch.device, compiled: bool, **given: str | None) -> ComputePath:
        """The path for a device; names given as None are chosen: flex needs a compiler."""
        attention = given.get("attention") or ("flex" if compiled else "dense")
        return cls(given.get("experts") or "grouped", attention, compiled)


@dataclass(frozen=True, eq=False)
class Losses:
    """loss: weighted mean cross entropy. guess int64 [N]: the model's choice at each loss position;
    correct and counted: float32 [] sums over masked positions."""

    loss: Tensor
    guess: Tensor
    correct: Tensor
    counted: Tensor


class TrainingModel:
    """A LLaDA2 on a device, its attention mask and its router balance.

    Parameters are bfloat16 on a GPU and float32 on a CPU; expert biases stay float32.
    """

    def __init__(
        self,
        spec: LLaDA2Spec,
        windows: int,
        window_blocks: int,
        loss_slots: int,
        path: ComputePath,
        device: torch.device,
        dtype: torch.dtype | None = None,
    ) -> None:
        self.spec = spec
        self.path = path
        self.device = device
        self.windows, self.window_blocks = windows, window_blocks
        self.loss_slots = loss_slots
        self.dtype = dtype or (torch.bfloat16 if device.type == "cuda" else torch.float32)
        self.model = LLaDA2(spec).to(device)
        for parameter in self.model.parameters():
            parameter.data = parameter.data.to(self.dtype)
        staircase = FlexStaircase if path.attention == "flex" else DenseStaircase
        self.attend = staircase(windows, window_blocks, spec.block_length, device)
        self._prepare_experts()
        self._head: Callable[..., Losses] = head_losses
        if path.compiled:
            self._compile()

    def _prepare_experts(self) -> None:
        spec = self.spec
        layers = [layer.mlp for layer in self.decoder_layers if isinstance(layer.mlp, SparseMLP)]
        shape = (len(layers), spec.num_experts)
        self.expert_bias = torch.zeros(shape, device=self.device)
        self.load = torch.zeros(shape, device=self.device)
        choose = partial(
            choose_by_rank,
            n_group=spec.n_group,
            topk_group=spec.topk_group,
            top_k=spec.num_experts_per_tok,
        )
        for index, mlp in enumerate(layers):
            compute = KINDS[self.path.experts](spec.num_experts).to(self.device)
            compute.load = self.load[index]
            mlp.experts.compute = compute
            mlp.gate.expert_bias = self.expert_bias[index]
            mlp.gate.choose = choose

    @property
    def decoder_layers(self) -> list[DecoderLayer]:
        return [layer for layer in self.model.layers if isinstance(layer, DecoderLayer)]

    def _compile(self) -> None:
        """Compiles layers and head apart, so that one compiled layer serves all of a kind.

        The training attention takes no notice of the layer's index; giving all the same one keeps
        the compiler from specialising on it.
        """
        for layer in self.decoder_layers:
            layer.attention.layer = 0
            layer.compile(fullgraph=True, dynamic=False)
        self._head = torch.compile(head_losses, fullgraph=True, dynamic=False)

    def set_masks(self, plan: DevicePlan) -> None:
        """Loads who sees whom in the next batch."""
        shape = (self.windows, self.window_blocks)
        self.attend.set(
            *block_codes(
                plan.segment.view(shape), plan.position.view(shape), plan.noisy.view(shape)
            )
        )

    def losses(
        self, ids: Tensor, plan: DevicePlan, targets: Tensor, weight: Tensor, masked: Tensor
    ) -> tuple[Losses, Tensor]:
        """Forward of one batch: ids, targets int64 [N, L], weight float32, masked bool [N, L]; call
        `set_masks` first. Also returns the flat positions int64 [loss_slots] that carried loss (N *
        L where a slot is empty)."""
        length = self.spec.block_length
        column = torch.arange(length, device=self.device)
        positions = plan.position.unsqueeze(1) * length + column
        window = (self.windows, self.window_blocks * length)
        hidden = self.model(self.model.embed(ids.view(window)), positions.view(window), self.attend)
        slots = select_positions(weight.flatten() > 0, self.loss_slots)
        safe = slots.clamp(max=weight.numel() - 1)
        real = slots < weight.numel()
        head = self.model.lm_head or self.model.word_embeddings
        losses = self._head(
            hidden.flatten(0, 1)[safe],
            head.weight,
            targets.flatten()[safe],
            weight.flatten()[safe] * real,
            masked.flatten()[safe] & real,
        )
        return losses, slots

    @torch.no_grad()
    def balance(self, rate: float) -> None:
        """Moves every expert's selection bias one step towards even load (no gradient)."""
        mean = self.load.mean(-1, keepdim=True)
        self.expert_bias.add_((mean - self.load).sign_(), alpha=rate)
        self.expert_bias.sub_(self.expert_bias.mean(-1, keepdim=True))

    def load_entropy(self) -> Tensor:
        """float32 [moe layers]: entropy of the last batch's load over its maximum; 1 is even."""
        share = self.load / self.load.sum(-1, keepdim=True).clamp(min=1.0)
        entropy = -(share * share.clamp(min=1e-12).log()).sum(-1)
        return entropy / torch.log(torch.tensor(float(self.spec.num_experts)))


def select_positions(wanted: Tensor, slots: int) -> Tensor:
    """int64 [slots]: indices of the True entries of a flat bool tensor, in order, its length where
    there are fewer. Entries beyond the slots are left out. No host synchronisation."""
    total = wanted.shape[0]
    place = wanted.cumsum(0) - 1
    place = torch.where(wanted & (place < slots), place, slots)
    out = torch.full((slots + 1,), total, dtype=torch.int64, device=wanted.device)
    out.scatter_(0, place, torch.arange(total, device=wanted.device))
    return torch.where(torch.arange(slots, device=wanted.device) < wanted.sum(), out[:slots], total)


def head_losses(
    hidden: Tensor, head: Tensor, targets: Tensor, weight: Tensor, masked: Tensor
) -> Losses:
    """hidden [N, H], head [V, H], targets int64 [N], weight float32 [N], masked bool [N]."""
    logits = F.linear(hidden, head).float()
    loss = F.cross_entropy(logits, targets, reduction="none")
    guess = logits.argmax(-1)
    right = (guess == targets) & masked
    total = (loss * weight).sum() / weight.sum().clamp(min=1e-6)
    return Losses(total, guess, right.sum().float(), masked.sum().float())
