"""Pretraining: from batches to updates, with what a run needs to be cut, resumed and judged.

Knows the order of a step and the state of a run. The command line is `trainer.pretrain`; data,
noise, model, optimiser and files are modules of their own. Noise follows from (seed, step), so a
run that is cut and resumed on a CPU gives the same weights, bit for bit.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from engine.errors import RuntimeFailure
from trainer.batches import Packer, Plan
from trainer.curve import Curve, Point
from trainer.demo_config import BLOCK_LENGTH, DemoConfig, Vocabulary, spec_of
from trainer.example_store import ExampleStore, fixed_batches
from trainer.master import MasterWeights
from trainer.noise import DevicePlan, NoiseSettings, add_noise
from trainer.pretrain_files import (
    BIAS,
    load_carried,
    load_exact,
    read_state,
    save_carried,
    save_exact,
)
from trainer.pretrain_model import ComputePath, Losses, TrainingModel
from trainer.shards import ShardFeed, ShardPlan, tokenizer_fingerprint

VALID_BATCHES = 3
VALID_NOISE = NoiseSettings(edited_blocks=0.0, kept_rate=0.0)


@dataclass(frozen=True)
class Goal:
    """When a run is complete: after `steps` updates, or after `seconds` of training time (of all
    its pieces together)."""

    steps: int | None = None
    seconds: float | None = None

    def progress(self, step: int, seconds: float) -> float:
        """Share of the run that is done, in [0, 1]."""
        if self.steps is not None:
            return min(1.0, step / self.steps)
        assert self.seconds is not None
        return min(1.0, seconds / self.seconds)


@dataclass(frozen=True)
class Cadence:
    """log: steps between points of the curve. valid, save: seconds between validations and between
    checkpoints. stop_at: `time.monotonic()` at which a piece ends, None for no limit."""

    log: int = 50
    valid: float = 60.0
    save: float = 240.0
    stop_at: float | None = None


class Data:
    """The training and validation examples of a recipe, being made in worker processes."""

    def __init__(self, config: DemoConfig, tokenizer: Path, folder: Path, workers: int) -> None:
        def feed(split: Any, examples: int, shard: int, chat: float) -> ShardFeed:
            plan = ShardPlan(
                tokenizer,
                config.seed,
                split,
                examples,
                shard,
                BLOCK_LENGTH,
                config.longest_chat,
                chat,
            )
            return ShardFeed(plan, folder, workers)

        valid_shard = max(1, config.valid_examples // 8)
        self.valid = feed("valid", config.valid_examples, valid_shard, config.chat_share)
        self.train = feed("train", config.examples, config.shard, config.chat_share)

    def close(self) -> None:
        self.valid.close()
        self.train.close()


class Validation:
    """Fixed held-out batches with fixed noise."""

    def __init__(self, config: DemoConfig, feed: ShardFeed, device: torch.device) -> None:
        self.store, self.plans = fixed_batches(
            feed, config.window, device, VALID_BATCHES, config.seed
        )
        self.seed = config.seed

    def measure(self, model: TrainingModel) -> tuple[float, float]:
        """Mean loss (as in training, without editing noise) and share of masked positions right.

        Gradients stay enabled, so that the graph compiled for training serves here too.
        """
        total, right, counted = 0.0, 0.0, 0.0
        for number, plan in enumerate(self.plans):
            batch = prepare(self.store, plan, model, VALID_NOISE, self.seed, number, guesses=False)
            losses, _ = batch.run(model)
            total += float(losses.loss.detach())
            right += float(losses.correct)
            counted += float(losses.counted)
        return total / len(self.plans), right / max(1.0, counted)


def new_model(
    config: DemoConfig, vocabulary: Vocabulary, device: torch.device, path: ComputePath
) -> TrainingModel:
    """A model of the recipe's shape; its weights are not set yet (`MasterWeights` does that)."""
    slots = int(config.tokens_per_step * config.loss_share)
    spec = spec_of(config.shape, vocabulary)
    return TrainingModel(spec, config.windows, config.window_blocks, slots, path, device)


@dataclass(frozen=True, eq=False)
class Batch:
    """One noised batch on the device, [N, L] each."""

    plan: DevicePlan
    clean: Tensor
    ids: Tensor
    weight: Tensor
    masked: Tensor

    def run(self, model: TrainingModel) -> tuple[Losses, Tensor]:
        """Forward and loss; see `TrainingModel.losses`."""
        model.set_masks(self.plan)
        return model.losses(self.ids, self.plan, self.clean, self.weight, self.masked)


def prepare(
    store: ExampleStore,
    plan: Plan,
    model: TrainingModel,
    noise: NoiseSettings,
    seed: int,
    step: int,
    guesses: bool = True,
) -> Batch:
    """Tokens and noise of a plan; the noise follows from (seed, step) and the plan."""
    generator = torch.Generator(model.device).manual_seed(seed * 1_000_003 + step)
    on_device = DevicePlan.of(plan, model.device)
    clean = store.clean(on_device)
    guess = store.guesses(on_device) if guesses else None
    noisy = add_noise(clean, on_device, guess, model.spec.mask_token_id, noise, generator)
    return Batch(on_device, clean, noisy.ids, noisy.weight, noisy.masked)


class Pretrainer:
    """One run: model, optimiser, data cursor and record. `say` gets lines for a person."""

    def __init__(
        self,
        config: DemoConfig,
        model: TrainingModel,
        data: Data,
        run: Path,
        say: Callable[[str], None],
    ) -> None:
        self.config = config
        self.run = run
        self.say = say
        self.model = model
        self.spec = model.spec
        device = model.device
        parts = frozenset(config.quantised)
        self.master = MasterWeights(self.model.model, self.spec, config.optimiser, parts)
        self.master.initialise(config.seed)
        self.store = ExampleStore(data.train, config.window, device)
        self.packer = Packer(self.store.rows, config.window, config.seed, self.store.more)
        self.valid = Validation(config, data.valid, device)
        self.tokenizer = tokenizer_fingerprint(data.train.plan.tokenizer)
        self.curve = Curve(run / "curve.json")
        self.step = 0
        self.seconds = 0.0
        self.warm_from = 0
        self.tokens = 0
        self.answer_tokens = 0

    # --- state -----------------------------------------------------------------------------

    def _tensors(self) -> dict[str, Tensor]:
        return {
            **self.master.tensors(),
            BIAS: self.model.expert_bias,
            "guess": self.store.guess[: self.store.used],
        }

    def state(self) -> dict[str, Any]:
        return {
            "step": self.step,
            "seconds": self.seconds,
            "warm_from": self.warm_from,
            "adam_steps": self.master.steps,
            "tokens": self.tokens,
            "answer_tokens": self.answer_tokens,
            "packer": self.packer.state(),
            "config": self.config.as_json(),
            "vocabulary": {"size": self.spec.vocab_size, "mask_id": self.spec.mask_token_id},
            "tokenizer": self.tokenizer,
        }

    def save(self) -> None:
        """Writes the exact checkpoint and the curve into the run folder."""
        save_exact(self.run, self._tensors(), self.state())
        self.curve.save()

    def carry(self, folder: Path) -> list[Path]:
        """Writes the small checkpoint and the curve into `folder`."""
        files = save_carried(folder, self.master.masters(), self.model.expert_bias, self.state())
        copy = Curve(folder / "curve.json")
        copy.points, copy.pieces = self.curve.points, self.curve.pieces
        copy.save()
        return [*files, copy.path]

    def resume(self) -> bool:
        """Continues the run folder's exact checkpoint; False when it has none."""
        state = read_state(self.run)
        if state is None or "tensors" not in state:
            return False
        if state["config"]["seed"] != self.config.seed:
            raise RuntimeFailure(
                "pretrain.other_seed",
                f"the run has seed {state['config']['seed']}, not {self.config.seed}.",
                "Resume with the run's seed, or start another run folder.",
            )
        self._take(state)
        self.master.steps = int(state["adam_steps"])
        tensors = {**self._tensors(), "guess": self.store.guess}
        load_exact(self.run, state["tensors"], tensors)
        self.curve.load(self.step)
        return True

    def adopt(self, folder: Path) -> None:
        """Continues from files carried away: weights and cursor, with fresh optimiser state. Under
        another seed than theirs it takes that seed's examples from the first one on."""
        state = read_state(folder)
        if state is None or "carried" not in state:
            raise RuntimeFailure(
                "pretrain.nothing_to_adopt",
                f"{folder} holds no carried checkpoint (state.json with its master files).",
                "Name the folder that --carry wrote.",
            )
        masters, bias = load_carried(folder, state)
        for name, stack in self.master.stacks.items():
            stack.master.copy_(masters[name])
        self.model.expert_bias.copy_(bias)
        self._take(state, cursor=state["config"]["seed"] == self.config.seed)
        self.warm_from = self.step
        self.curve.path = folder / "curve.json"
        self.curve.load(self.step)
        self.curve.path = self.run / "curve.json"

    def _take(self, state: dict[str, Any], cursor: bool = True) -> None:
        if state["config"]["shape"] != self.config.as_json()["shape"]:
            raise RuntimeFailure(
                "pretrain.other_shape",
                f"the checkpoint is of a model of another shape: {state['config']['shape']}.",
                "Resume with the same --config and --set, or start another run folder.",
            )
        if state.get("tokenizer", self.tokenizer) != self.tokenizer:  # older states do not say
            raise RuntimeFailure(
                "pretrain.other_tokenizer",
                "the checkpoint was trained with another tokenizer: its ids mean other texts.",
                "Resume with the tokenizer it was begun with, or start another run folder.",
            )
        self.step, self.seconds = int(state["step"]), float(state["seconds"])
        self.warm_from = int(state["warm_from"])
        self.tokens, self.answer_tokens = int(state["tokens"]), int(state["answer_tokens"])
        if cursor:
            self.packer.restore(state["packer"])

    # --- training --------------------------------------------------------------------------

    def update(self, progress: float) -> tuple[Losses, Tensor]:
        """One step. Returns the losses and the gradient's norm, all still on the device."""
        self.master.write(quantised=progress >= self.config.qat_from)
        plan = self.packer.next()
        batch = prepare(
            self.store, plan, self.model, self.config.noise, self.config.seed, self.step
        )
        losses, slots = batch.run(self.model)
        losses.loss.backward()
        factor = self.config.learning_rate_factor(self.step, progress, self.warm_from)
        norm = self.master.step(factor)
        self.model.balance(self.config.balance * factor)
        self.store.remember(batch.plan, slots, losses.guess, batch.clean, batch.masked)
        self.step += 1
        self.tokens += self.config.tokens_per_step
        self.answer_tokens += int(plan.noisy.sum()) * BLOCK_LENGTH
        return losses, norm

    def train(self, goal: Goal, cadence: Cadence, carry: Path | None) -> bool:
        """Trains until the goal or the piece's end, saving as it goes; True when the run is
        complete. Raises RuntimeFailure when the loss is not finite (the last checkpoint stays)."""
        watch = _Watch(self, cadence)
        while (progress := goal.progress(self.step, self.seconds)) < 1.0:
            if cadence.stop_at is not None and time.monotonic() >= cadence.stop_at:
                break
            began = time.perf_counter()
            losses, norm = self.update(progress)
            watch.count(losses, norm)
            if self.step % cadence.log == 0 or goal.steps == self.step:
                watch.report(progress, goal)
            if watch.save_due():
                self.save()
                if carry is not None:
                    self.carry(carry)
            self.seconds += time.perf_counter() - began
        watch.report(goal.progress(self.step, self.seconds), goal)
        self.save()
        if carry is not None:
            self.carry(carry)
        return goal.progress(self.step, self.seconds) >= 1.0

    def measure_both(self) -> dict[str, tuple[float, float]]:
        """Validation loss and accuracy of the masters as bfloat16 and through NVFP4."""
        out = {}
        for name, quantised in (("bf16", False), ("nvfp4", True)):
            self.master.write(quantised)
            out[name] = self.valid.measure(self.model)
        return out


class _Watch:
    """Sums between two points of the curve, and the clocks of validation and saving."""

    def __init__(self, run: Pretrainer, cadence: Cadence) -> None:
        self.run = run
        self.cadence = cadence
        self.saved = self.validated = time.monotonic()
        self._reset()

    def _reset(self) -> None:
        self.began = time.perf_counter()
        self.tokens = self.run.tokens
        self.steps = 0
        self.sums: Tensor | None = None

    def count(self, losses: Losses, norm: Tensor) -> None:
        """Adds a step, without waiting for the device."""
        now = torch.stack((losses.loss.detach(), losses.correct, losses.counted, norm))
        self.sums = now if self.sums is None else self.sums + now
        self.steps += 1

    def report(self, progress: float, goal: Goal) -> None:
        """Adds a point to the curve and says it. Waits for the device."""
        if self.sums is None:
            return
        run = self.run
        loss, right, counted, norm = self.sums.tolist()
        elapsed = time.perf_counter() - self.began
        if not all(value == value and abs(value) != float("inf") for value in (loss, norm)):
            raise RuntimeFailure(
                "pretrain.not_finite",
                f"the loss or its gradient is not finite at step {run.step}.",
                "Resume from the last checkpoint with a lower learning rate.",
            )
        valid: tuple[float | None, float | None] = (None, None)
        over = goal.progress(run.step, run.seconds) >= 1.0
        if over or time.monotonic() - self.validated >= self.cadence.valid:
            valid = run.valid.measure(run.model)
            self.validated = time.monotonic()
        share = run.model.load / run.model.load.mean(-1, keepdim=True).clamp(min=1e-6)
        run.curve.add(
            point := Point(
                step=run.step,
                seconds=run.seconds,
                progress=progress,
                rate=run.config.learning_rate_factor(run.step, progress, run.warm_from),
                loss=loss / self.steps,
                accuracy=right / max(1.0, counted),
                grad_norm=norm / self.steps,
                tokens_per_second=(run.tokens - self.tokens) / max(elapsed, 1e-9),
                tokens=run.tokens,
                epochs=run.packer.epochs_seen,
                load_entropy=float(run.model.load_entropy().mean()),
                load_min=float(share.min()),
                quantised=progress >= run.config.qat_from,
                valid_loss=valid[0],
                valid_accuracy=valid[1],
            )
        )
        run.say(point.line())
        self._reset()

    def save_due(self) -> bool:
        """Whether it is time for a checkpoint; resets the clock when it is."""
        if time.monotonic() - self.saved < self.cadence.save:
            return False
        self.saved = time.monotonic()
        return True
