"""One update on real models: replay says what decoding said, an untrained adapter changes nothing,
everything that trains moves, and a run continues to the bit."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from engine.errors import RequestError, RuntimeFailure
from engine.types import Message
from trainer.data.skills import generate_examples
from trainer.data.task import Task
from trainer.orl.collect import collect
from trainer.orl.learner import Learner
from trainer.orl.packing import pack
from trainer.orl.recipe import Recipe
from trainer.orl.replay import Replay
from trainer.orl.rollout import Roller
from trainer.orl.student import Student
from trainer.verify.registry import make_verifier
from trainer.verify.verifier_spec import VerifierSpec

DEMO = Path(__file__).parents[2] / "assets" / "demo"
SMALL = Recipe(rollouts=4, rows=3, window=16, micro_blocks=48, max_new_tokens=64, floor=0.5)
VERIFIER = make_verifier(VerifierSpec("demo"))


def _tasks(split: str, count: int) -> list[Task]:
    examples = generate_examples(3, 0, count, split)  # type: ignore[arg-type]
    return [
        Task(e.template, (Message("user", e.prompt),), e.answer, e.skill, e.check) for e in examples
    ]


def _learner(recipe: Recipe = SMALL, updates: int = 10) -> Learner:
    return Learner(DEMO, recipe, VERIFIER, 1, updates, "cpu")


def test_replay_says_of_every_state_what_decoding_said() -> None:
    recipe = replace(SMALL, residual=True, states_per_block=9)
    student = Student(DEMO, recipe, "cpu", 1)
    residual = student.model.residual
    assert residual is not None
    with torch.no_grad():  # an adapter that does something: what was consumed must count
        residual.down_proj.weight.normal_(std=0.2, generator=torch.Generator().manual_seed(0))
    tasks = _tasks("heldout_templates", 3)
    roller = Roller(student.model, 2, 512, 160, torch.float32)
    settings = replace(student.spec.defaults, threshold=0.97)
    prompts = [student.tokenizer.encode_chat(task.messages) for task in tasks]
    replies, recorded = roller.run(prompts, [settings] * 3, 64)
    assert recorded is not None
    accept = make_verifier(VerifierSpec("accept_all"))
    pieces = collect(student, recipe, accept, tasks, replies, recorded).pieces
    mask_id = student.spec.mask_token_id
    assert mask_id is not None
    forwards, lost = pack(pieces, 16, 4, 32, mask_id)
    assert lost == 0
    replay = Replay(student, recipe)
    checked = carried = 0
    for packed in forwards:
        states = replay.states(packed, roller.tap)
        attend = student.attention(*packed.position.shape)
        with torch.no_grad():
            logits = student.model.logits(student.hidden(student.model, states, attend))
        logits[..., mask_id] = -torch.inf
        best = logits.argmax(-1).view(packed.ids.shape).numpy()
        for at in np.argwhere(packed.noisy):
            window, block = int(at[0]), int(at[1])
            slot, row = packed.slot[window, block], packed.row[window, block]
            after = _canvas_after(recorded, int(slot), int(row))
            if after is None:
                continue
            accepted = (recorded.canvas[slot, row] == mask_id) & (after != mask_id)
            assert (best[window, block][accepted] == after[accepted]).all()
            checked += int(accepted.sum())
            carried += int(recorded.step[slot, row] > 0)
    assert checked > 20
    assert carried > 3


def _canvas_after(recorded, slot: int, row: int) -> np.ndarray | None:
    """The canvas the row's next step found, when it was still in the same block."""
    for later in range(slot + 1, len(recorded.canvas)):
        same = recorded.owner[later, row] == recorded.owner[slot, row]
        if not same or recorded.start[later, row] != recorded.start[slot, row]:
            return None
        if recorded.active[later, row]:
            return recorded.canvas[later, row]
    return None


def test_an_untrained_adapter_leaves_every_reply_as_it_was() -> None:
    tasks = _tasks("heldout_templates", 3)
    texts = []
    for residual in (False, True):
        learner = _learner(replace(SMALL, residual=residual))
        replies = learner.evaluate(tasks, learner.student.spec.defaults, 64)
        texts.append([(reply.ids, reply.forwards) for reply in replies])
    assert texts[0] == texts[1]


@pytest.mark.parametrize("trains", ["lora", "all"])
def test_every_tensor_that_trains_moves_and_the_loss_falls(trains: str) -> None:
    recipe = replace(SMALL, trains=trains, learning_rate=1e-3 if trains == "lora" else 2e-4)
    learner = _learner(replace(recipe, residual=False, teach_rate=1.0, warmup=0))
    tasks = _tasks("heldout_templates", 4)
    before = {name: tensor.clone() for name, tensor in learner.trained_tensors().items()}
    losses = [learner.teach(tasks)["loss"] for _ in range(3)]
    assert losses[-1] < losses[0]
    still = [n for n, t in learner.trained_tensors().items() if torch.equal(t, before[n])]
    assert still == []


def test_an_adapter_trains_through_what_was_carried() -> None:
    learner = _learner(replace(SMALL, warmup=0, learning_rate=1e-3, thresholds=(0.95, 0.97)))
    tasks = _tasks("heldout_templates", 4)
    accept = make_verifier(VerifierSpec("accept_all"))
    learner.verifier = accept
    before = {name: tensor.clone() for name, tensor in learner.trained_tensors().items()}
    for _ in range(2):
        learner.update(tasks)
    moved = {
        name
        for name, tensor in learner.trained_tensors().items()
        if name.startswith("residual.") and not torch.equal(tensor, before[name])
    }
    assert "residual.down_proj.weight" in moved
    assert "residual.gate_proj.weight" in moved


def test_a_run_continues_to_the_bit() -> None:
    tasks = _tasks("heldout_templates", 4)
    whole, cut = _learner(), _learner()
    whole.update(tasks)
    cut.update(tasks)
    kept = {name: tensor.clone() for name, tensor in cut.state_dict().items()}
    whole.teach(tasks)
    again = _learner()
    again.load_state_dict(kept)
    assert again.done == 1
    again.teach(tasks)
    for name, tensor in whole.state_dict().items():
        assert torch.equal(tensor, again.state_dict()[name]), name


def test_a_state_of_another_recipe_is_refused() -> None:
    other = _learner(replace(SMALL, lora_rank=4)).state_dict()
    with pytest.raises(RuntimeFailure, match=r"train\.other_run"):
        _learner().load_state_dict(other)


def test_teaching_without_a_reference_is_refused() -> None:
    tasks = [replace(task, reference=None) for task in _tasks("train", 2)]
    with pytest.raises(RequestError, match=r"train\.no_reference"):
        _learner().teach(tasks)


def test_a_prompt_that_leaves_no_room_is_refused_by_its_length() -> None:
    long = Task("long", (Message("user", "17 * 24 " * 400),))
    with pytest.raises(RequestError, match=r"train\.too_long"):
        _learner().update([long, long])


def test_a_gradient_that_is_not_finite_changes_nothing() -> None:
    learner = _learner()
    before = {name: tensor.clone() for name, tensor in learner.trained_tensors().items()}
    for slot in learner.student.trained.slots.values():
        slot.parameter.grad = torch.full_like(slot.parameter, float("nan"))
    with pytest.raises(RuntimeFailure, match=r"train\.nonfinite"):
        learner.student.trained.step(1.0)
    for name, tensor in learner.trained_tensors().items():
        assert torch.equal(tensor, before[name])


def test_a_family_without_mask_blocks_is_refused_before_its_weights_are_read(
    tmp_path: Path,
) -> None:
    source = Path(__file__).parents[2].parent / "shared" / "fixtures" / "diffusion-gemma-tiny"
    folder = tmp_path / "gemma"
    shutil.copytree(source, folder)
    with pytest.raises(RequestError, match=r"train\.family"):
        Student(folder, SMALL, "cpu", 1)
