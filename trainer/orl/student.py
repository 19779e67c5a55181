"""The model in training: loaded once, rolled out and trained through the same weights, beside the
frozen model it began as.

Knows what trains (LoRA over a frozen base, or everything), the residual adapter a model gets, and
the staircase forward over packed states. Knows no rollout, no verdict and no loss.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import cast

import torch
from torch import Tensor, nn

from engine.checkpoint import Checkpoint, open_checkpoint
from engine.errors import RequestError
from engine.loading import Placement, build_model, choose_device, choose_placement, use_device
from engine.memory import free_memory
from engine.models.backbone import AnyBackbone
from engine.models.dense_spec import DenseSpec
from engine.models.experts import Experts
from engine.models.llada2_spec import LLaDA2Spec
from engine.models.registry import family_of
from engine.models.residual import ResidualInput
from engine.models.residual_spec import ResidualSpec
from engine.tokenizer import ChatTokenizer
from trainer.data.encoding import encode_answer
from trainer.data.task import Task
from trainer.lora import Adapters
from trainer.moe_train import GroupedExperts
from trainer.orl.experts import FrozenGrouped
from trainer.orl.recipe import Recipe
from trainer.orl.trained import Trained
from trainer.qat import part_of
from trainer.staircase import DenseStaircase

_EXPERT = re.compile(r"\.experts\.\d+\.(gate|up|down)_proj$")
RESIDUAL = "residual."


@dataclass(frozen=True, eq=False)
class States:
    """A packed forward on the device: ids int64 [W, T]; positions int64 [W, T]; expected [W, T, H]
    and doubt float32 [W, T, 1], zero where nothing was carried, or None; query, key: block codes
    (`trainer.staircase`)."""

    ids: Tensor
    positions: Tensor
    expected: Tensor | None
    doubt: Tensor | None
    query: Tensor
    key: Tensor


class Student:
    """One model, what of it trains, and its frozen start. dtype: bfloat16 on a GPU, float32 on a
    CPU."""

    def __init__(self, folder: Path, recipe: Recipe, device: str | None, seed: int) -> None:
        self.folder, self.recipe = folder, recipe
        self.device = choose_device(device)
        use_device(self.device)
        checkpoint = open_checkpoint(folder)
        try:
            _check_trainable(checkpoint)
            self.packed_parts = _packed_parts(checkpoint)
            self.packed_modules = tuple(
                name for name, kept in checkpoint.inventory.matrices.items() if kept.form != "dense"
            )
            family = family_of(checkpoint.family)
            self.tokenizer = ChatTokenizer.open(folder, family.template)
            self.placement = self._placement(checkpoint)
            self.model: AnyBackbone = build_model(checkpoint, self.placement)
        finally:
            checkpoint.release()
        self.spec = self.model.spec
        self.dtype = self.placement.dtype
        self._compute_experts()
        self.start_residual = copy.deepcopy(self.model.residual)
        self.start = self.model if recipe.trains == "lora" else copy.deepcopy(self.model)
        if recipe.residual and self.model.residual is None:
            self._give_residual(seed)
        self.adapters: Adapters | None = None
        self.trained = self._train(seed)

    def _placement(self, checkpoint: Checkpoint) -> Placement:
        dtype = torch.bfloat16 if self.device.type == "cuda" else torch.float32
        chosen = choose_placement(checkpoint, self.device, free_memory(self.device), dtype)
        return replace(chosen, expand=True) if self.recipe.trains == "all" else chosen

    def _compute_experts(self) -> None:
        """Experts without host synchronisation, for rollouts and training alike, on a GPU."""
        if self.device.type != "cuda":
            return
        for module in self.model.modules():
            if isinstance(module, Experts):
                dense = isinstance(module.gate, Tensor)
                kind = GroupedExperts if dense else FrozenGrouped
                module.compute = kind(module.num_experts).to(self.device)

    def _give_residual(self, seed: int) -> None:
        """A zero-initialised ORL adapter: outputs stay as they are, to the last bit."""
        recipe, spec = self.recipe, cast(LLaDA2Spec | DenseSpec, self.spec)
        hidden = self.model.embedding.shape[1]
        size = recipe.adapter_size or max(1, hidden // 8)
        wanted = ResidualSpec("orl", recipe.top_k, recipe.norm_cap, size)
        self.spec = replace(spec, residual=wanted)
        self.model.spec = self.spec
        residual = ResidualInput(wanted, hidden, 1e-6)
        generator = torch.Generator("cpu").manual_seed(seed)
        for name, parameter in residual.named_parameters():
            if name in ("gate_proj.weight", "up_proj.weight"):
                parameter.data.normal_(std=hidden**-0.5, generator=generator)
            elif name == "down_proj.weight":
                parameter.data.zero_()
        self.model.residual = residual.to(device=self.device, dtype=self.dtype)

    def _train(self, seed: int) -> Trained:
        recipe = self.recipe
        parameters: dict[str, nn.Parameter] = {}
        quantised: frozenset[str] = frozenset()
        if recipe.trains == "all":
            parameters.update(self.model.named_parameters())
            if recipe.quantised:
                quantised = self.packed_parts
        else:
            modules = recipe.lora_modules
            self.adapters = Adapters(self.model, modules, recipe.lora_rank, recipe.lora_scale)
            self.adapters.initialise(seed)
            parameters.update(self.adapters.parameters())
            if self.model.residual is not None:
                for name, parameter in self.model.residual.named_parameters():
                    parameters[RESIDUAL + name] = parameter
        trained = Trained(
            parameters,
            recipe.learning_rate,
            recipe.muon,
            recipe.weight_decay,
            recipe.clip,
            {RESIDUAL: recipe.adapter_rate},
            quantised,
        )
        trained.write()
        return trained

    def text(self, ids: Sequence[int]) -> str:
        """Text of a reply without stop tokens."""
        stops = frozenset(self.spec.stop_ids)
        return self.tokenizer.decode([token for token in ids if token not in stops])

    def with_answer(self, task: Task) -> tuple[int, list[int]]:
        """See `trainer.data.encoding.encode_answer`."""
        return encode_answer(self.tokenizer, self.spec.stop_ids, task)

    @contextmanager
    def as_it_began(self) -> Iterator[AnyBackbone]:
        """The frozen start model."""
        if self.adapters is None:
            yield self.start
            return
        mine = self.model.residual
        self.model.residual = self.start_residual
        try:
            with self.adapters.off():
                yield self.model
        finally:
            self.model.residual = mine

    def attention(self, windows: int, blocks: int) -> DenseStaircase:
        """The mask's buffers for forwards of this shape."""
        return DenseStaircase(windows, blocks, self.spec.block_length, self.device)

    def hidden(self, model: AnyBackbone, states: States, attend: DenseStaircase) -> Tensor:
        """Hidden states [W, T, H] after the final norm."""
        attend.set(states.query, states.key)
        embeds = model.embed(states.ids)
        if model.residual is not None and states.expected is not None:
            assert states.doubt is not None
            embeds = model.residual(embeds, states.expected, states.doubt)
        return model(embeds, states.positions, attend)


def _check_trainable(checkpoint: Checkpoint) -> None:
    spec = checkpoint.spec
    if spec.whole_sequence or not spec.on_grid or spec.mask_token_id is None:
        raise RequestError(
            "train.family",
            f"{checkpoint.title} models do not denoise masks in blocks on a grid, and this trainer "
            "replays such blocks only.",
            "Choose a LLaDA2, SDAR or QwenDLM model.",
        )


def _packed_parts(checkpoint: Checkpoint) -> frozenset[str]:
    """Parts whose matrices the checkpoint keeps in NVFP4. Raises RequestError for packed matrices
    this trainer has no name for, if everything is to be trained."""
    parts: set[str] = set()
    for name, stored in checkpoint.inventory.matrices.items():
        if stored.form == "dense":
            continue
        part = "experts" if _EXPERT.search(name) else part_of(f"{name}.weight")
        if part is not None:
            parts.add(part)
    if any(checkpoint.layer_is_packed(layer) for layer in checkpoint.inventory.stacks):
        parts.add("experts")
    return frozenset(parts)
