"""Proof, before a run spends its time, that the fast way of computing a step is right.

One batch goes through the chosen path and through the plain one (the engine's own expert sum, a
dense mask, no compiler); the hidden loss and every gradient must agree. A path that fails or does
not run is given up for the next one, and that is said.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from engine.errors import RuntimeFailure
from engine.models.llada2 import SparseMLP
from trainer.batches import Plan
from trainer.demo_config import DemoConfig, Vocabulary
from trainer.example_store import ExampleStore
from trainer.master import MasterWeights
from trainer.pretrain_loop import new_model, prepare
from trainer.pretrain_model import ComputePath, TrainingModel

# Norm of the difference over the norm. bfloat16 rounding flips near ties of the router, so that
# gradients of single experts differ by some per cent; a wrong mask or layout gives around 1.
LIMIT = {torch.bfloat16: 0.25, torch.float32: 1e-3}
LOSS_LIMIT = {torch.bfloat16: 5e-3, torch.float32: 1e-4}
CHECK_STD = 0.05  # larger than the initial weights, so that attention and experts matter

# What a compiler that cannot do its work raises; torch's own errors are RuntimeErrors.
_FAILURES = (RuntimeError, AssertionError, TypeError, ValueError, AttributeError, KeyError)


@dataclass(frozen=True, eq=False)
class Outcome:
    """The model that computes right, the largest gradient difference seen, the ways given up."""

    model: TrainingModel
    difference: float
    worst: str
    given_up: tuple[str, ...]


def alternatives(path: ComputePath) -> list[ComputePath]:
    """The path itself, then plainer ones in the order they are tried."""
    found = [path]
    for change in (
        {"experts": "wide"},
        {"experts": path.experts, "attention": "dense"},
        {"experts": "wide", "attention": "dense"},
        {"experts": "wide", "attention": "dense", "compiled": False},
    ):
        other = replace(path, **change)
        if other not in found:
            found.append(other)
    return found


def choose_path(
    config: DemoConfig,
    vocabulary: Vocabulary,
    store: ExampleStore,
    plan: Plan,
    device: torch.device,
    paths: Sequence[ComputePath],
    say: Callable[[str], None],
) -> Outcome:
    """The first of `paths` that computes the loss and the gradients of the plain path. The model is
    ready for a run: what it compiled is kept, its weights are to be set.

    Raises RuntimeFailure when none does.
    """
    plain_loss, plain = _gradients(_plain(config, vocabulary, device), config, store, plan)
    given_up: list[str] = []
    for path in paths:
        name = f"{path.experts} experts, {path.attention} attention, " + (
            "compiled" if path.compiled else "not compiled"
        )
        try:
            model = new_model(config, vocabulary, device, path)
            loss, grads = _gradients(model, config, store, plan)
        except _FAILURES as error:
            lines = [line for line in str(error).splitlines() if line.strip()]
            reason = f"{type(error).__name__}: {lines[0][:300] if lines else ''}"
        else:
            difference, worst = _compare(plain, grads)
            dtype = next(iter(plain.values())).dtype
            apart = abs(loss - plain_loss) / plain_loss
            say(
                f"check of {name}: loss differs by {apart:.1e}, gradient {difference:.1e} ({worst})"
            )
            if difference <= LIMIT[dtype] and apart <= LOSS_LIMIT[dtype]:
                return Outcome(model, difference, worst, tuple(given_up))
            reason = f"gradient of {worst} differs by {difference:.2g}, loss by {apart:.2g}"
        given_up.append(f"{name}: {reason}")
        say(f"FALLBACK: {given_up[-1]}")
    raise RuntimeFailure(
        "pretrain.no_path",
        "no way of computing a step agrees with the plain one: " + "; ".join(given_up),
        "Run with --check-only and look at the reasons.",
    )


def _plain(config: DemoConfig, vocabulary: Vocabulary, device: torch.device) -> TrainingModel:
    """The model with the engine's own expert sum, a dense mask and no compiler."""
    model = new_model(config, vocabulary, device, ComputePath("wide", "dense", compiled=False))
    for layer in model.decoder_layers:
        if isinstance(layer.mlp, SparseMLP):
            layer.mlp.experts.compute = None
    return model


def _gradients(
    model: TrainingModel, config: DemoConfig, store: ExampleStore, plan: Plan
) -> tuple[float, dict[str, Tensor]]:
    """Loss and gradients by stack of one batch, from weights that depend on the seed alone."""
    master = MasterWeights(model.model, model.spec, config.optimiser, frozenset())
    master.initialise(config.seed)
    for stack in master.stacks.values():
        if not stack.name.endswith("norm.weight"):
            stack.master.mul_(CHECK_STD / stack.master.std())
    master.write(quantised=False)
    batch = prepare(store, plan, model, config.noise, config.seed, 0)
    losses, _ = batch.run(model)
    losses.loss.backward()
    grads = {}
    for name, stack in master.stacks.items():
        grads[name] = torch.stack([p.grad for p in stack.params if p.grad is not None])
        for parameter in stack.params:
            parameter.grad = None
    return float(losses.loss.detach()), grads


def _compare(plain: dict[str, Tensor], other: dict[str, Tensor]) -> tuple[float, str]:
    """Largest relative difference over stacks, and the stack."""
    found = {
        name: float((other[name].float() - grad.float()).norm() / grad.float().norm())
        for name, grad in plain.items()
    }
    worst = max(found, key=lambda name: float("inf") if found[name] != found[name] else found[name])
    value = found[worst]
    return (float("inf") if value != value else value), worst
