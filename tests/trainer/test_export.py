"""What a run leaves behind opens in the engine and answers as the student did."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from engine.checkpoint import open_checkpoint
from engine.engine import load_engine
from engine.errors import CheckpointError, RequestError
from engine.types import Message
from trainer.cli_export import export
from trainer.data.skills import generate_examples
from trainer.data.task import Task
from trainer.export import load_adapter, write_adapter, write_merged, write_nvfp4
from trainer.orl.learner import Learner
from trainer.orl.recipe import Recipe
from trainer.run_dir import RunDir
from trainer.spec import DataSpec, TrainSpec
from trainer.verify.registry import make_verifier
from trainer.verify.verifier_spec import VerifierSpec

DEMO = Path(__file__).parents[2] / "assets" / "demo"
RECIPE = Recipe(
    rollouts=2, rows=2, window=16, micro_blocks=32, learning_rate=1e-3, warmup=0, teach_rate=1.0
)


def _tasks() -> list[Task]:
    return [
        Task(e.template, (Message("user", e.prompt),), e.answer, e.skill, e.check)
        for e in generate_examples(3, 0, 2, "heldout_templates")
    ]


def _learner(recipe: Recipe = RECIPE, seed: int = 1) -> Learner:
    return Learner(DEMO, recipe, make_verifier(VerifierSpec("demo")), seed, 10, "cpu")


@pytest.fixture(scope="module")
def taught() -> Learner:
    learner = _learner()
    residual = learner.student.trained.slots["residual.down_proj.weight"]
    residual.master.normal_(std=0.02, generator=torch.Generator().manual_seed(1))
    learner.teach(_tasks())
    return learner


def _weights(folder: Path) -> torch.Tensor:
    checkpoint = open_checkpoint(folder)
    try:
        return checkpoint.dense("residual.down_proj.weight").float()
    finally:
        checkpoint.release()


def test_a_merged_checkpoint_holds_what_was_learnt(taught: Learner, tmp_path: Path) -> None:
    write_merged(taught.student, tmp_path / "m")
    engine = load_engine(tmp_path / "m", device="cpu")
    assert engine.info.quantisation == "bf16"
    wanted = taught.student.trained.slots["residual.down_proj.weight"].master
    torch.testing.assert_close(_weights(tmp_path / "m"), wanted, atol=1e-3, rtol=1e-2)
    task = _tasks()[0]
    (mine,) = taught.evaluate([task], taught.settings, 64)
    prompt = taught.student.tokenizer.encode_chat(task.messages)
    (theirs,) = engine.generate_batch([prompt], taught.settings, 64, 1)
    same = sum(a == b for a, b in zip(mine.ids, theirs.ids, strict=False))
    assert same >= 0.8 * len(mine.ids)  # bfloat16 may turn a close decision
    assert taught.student.adapters is not None
    name, adapter = next(iter(taught.student.adapters.adapters.items()))
    kept = torch.empty(adapter.folded().shape)
    checkpoint = open_checkpoint(tmp_path / "m")
    checkpoint.linear_into(taught.student.spec.checkpoint_name(name), kept)
    checkpoint.release()
    torch.testing.assert_close(kept, adapter.folded().bfloat16().float())
    assert bool(adapter.b.any())


def test_an_nvfp4_checkpoint_is_packed_where_its_base_was(taught: Learner, tmp_path: Path) -> None:
    write_nvfp4(taught.student, tmp_path / "n")
    made, base = open_checkpoint(tmp_path / "n"), open_checkpoint(DEMO)
    try:
        packed = {n for n, s in made.inventory.matrices.items() if s.form != "dense"}
        assert packed == {n for n, s in base.inventory.matrices.items() if s.form != "dense"}
        assert made.spec.residual is not None
    finally:
        made.release()
        base.release()
    assert not (tmp_path / "n.merged").exists()


def test_an_adapter_goes_back_onto_its_own_base_alone(taught: Learner, tmp_path: Path) -> None:
    write_adapter(taught.student, tmp_path / "a")
    other = _learner(seed=9)
    load_adapter(other.student, tmp_path / "a")
    for name, tensor in taught.trained_tensors().items():
        assert torch.equal(tensor, other.trained_tensors()[name]), name
    with pytest.raises(CheckpointError, match=r"adapter\.other_shape"):
        load_adapter(_learner(replace(RECIPE, lora_rank=4)).student, tmp_path / "a")
    about = tmp_path / "a" / "adapter.json"
    value = json.loads(about.read_text())
    about.write_text(json.dumps({**value, "base_config": "0" * 64}))
    with pytest.raises(CheckpointError, match=r"adapter\.other_base"):
        load_adapter(other.student, tmp_path / "a")
    about.write_text("{")
    with pytest.raises(CheckpointError, match=r"adapter\.unreadable"):
        load_adapter(other.student, tmp_path / "a")


def test_nothing_is_written_over(taught: Learner, tmp_path: Path) -> None:
    (tmp_path / "m").mkdir()
    for write in (write_merged, write_nvfp4, write_adapter):
        with pytest.raises(RequestError, match=r"export\.exists"):
            write(taught.student, tmp_path / "m")
    assert list((tmp_path / "m").iterdir()) == []


def test_a_run_is_exported_with_a_card_that_says_what_got_worse(tmp_path: Path) -> None:
    spec = TrainSpec(
        str(DEMO), DataSpec(("x.jsonl",)), VerifierSpec("demo"), RECIPE, 4, device="cpu"
    )
    run = RunDir.create(tmp_path / "run", spec, {"data": {"x.jsonl": "ab12"}, "rows": 9})
    with pytest.raises(RequestError, match=r"export\.nothing"):
        export(run, "adapter", tmp_path / "a")
    learner = _learner()
    figures = {"accuracy": 0.5, "tpf": 4.0, "forwards": 3.0}
    meta = {"update": 2, "start": figures, "best": {**figures, "accuracy": 0.4, "tpf": 8.0}}
    run.save(2, learner.state_dict(), meta)
    export(run, "adapter", tmp_path / "a")
    card = (tmp_path / "a" / "README.md").read_text(encoding="utf-8")
    assert "Fewer answers are right." in card
    assert "ab12" in card
    assert (tmp_path / "a" / "adapter.safetensors").exists()
