"""A run of pretraining: cut and resumed bit for bit, carried in small files, exported, opened."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from pretrain_tiny import pretrainer, small_config

from engine.checkpoint import open_checkpoint
from engine.errors import CheckpointError, RuntimeFailure
from trainer import pretrain, pretrain_files
from trainer.curve import Curve, svg
from trainer.demo_config import CONFIGS, DemoConfig, model_config
from trainer.demo_export import export
from trainer.pretrain_files import (
    CARRIED_BYTES,
    load_carried,
    load_exact,
    read_state,
    save_carried,
    save_exact,
)
from trainer.pretrain_loop import Cadence, Goal, Pretrainer

# Quantised from half the run on, so that the cut lies after the change.
CONFIG = small_config(examples="32", shard="16", qat_from="0.4", **{"noise.guesses": "1.0"})
STEPS = 14  # more than an epoch of 32 examples, so that the model's own mistakes come into play
CUT = 9


@pytest.fixture(scope="module")
def tokenizer(repo_root: Path) -> Path:
    return repo_root / "assets" / "demo"


@pytest.fixture(scope="module")
def uncut(tmp_path_factory: pytest.TempPathFactory, tokenizer: Path) -> Pretrainer:
    run = pretrainer(CONFIG, tmp_path_factory.mktemp("uncut"), tokenizer)
    assert run.train(Goal(steps=STEPS), Cadence(log=2, valid=1e9), carry=None)
    return run


def _same(one: Pretrainer, other: Pretrainer) -> None:
    for (name, mine), (_, theirs) in zip(
        one._tensors().items(), other._tensors().items(), strict=True
    ):
        assert torch.equal(mine, theirs), name


def test_a_cut_run_ends_with_the_same_bits(
    tmp_path: Path, tokenizer: Path, uncut: Pretrainer
) -> None:
    first = pretrainer(CONFIG, tmp_path, tokenizer)
    for _ in range(CUT):
        first.update(Goal(steps=STEPS).progress(first.step, 0.0))
    first.save()
    second = pretrainer(CONFIG, tmp_path, tokenizer)
    assert second.resume()
    assert second.step == CUT
    _same(first, second)
    assert second.train(Goal(steps=STEPS), Cadence(log=2, valid=1e9), carry=None)
    assert second.packer.state() == uncut.packer.state()
    assert second.packer.epoch >= 1
    assert (second.store.guess != -1).any()
    _same(second, uncut)


def test_training_lowers_the_loss_and_keeps_every_expert_busy(uncut: Pretrainer) -> None:
    losses = [point["loss"] for point in uncut.curve.points]
    assert losses[-1] < losses[0] - 0.3
    assert uncut.curve.points[-1]["valid_loss"] > 0
    assert uncut.curve.points[-1]["quantised"]
    assert uncut.curve.points[-1]["load_entropy"] > 0.6


def test_every_parameter_gets_a_gradient(uncut: Pretrainer) -> None:
    start = pretrainer(CONFIG, uncut.run / "again", uncut.store.feed.plan.tokenizer)
    for name, master in uncut.master.masters().items():
        assert not torch.equal(master, start.master.masters()[name]), name


def test_a_missing_gradient_is_refused(uncut: Pretrainer) -> None:
    for stack in uncut.master.stacks.values():
        for parameter in stack.params:
            parameter.grad = None
    with pytest.raises(RuntimeError, match="no gradient reached"):
        uncut.master.step(1.0)
    uncut.master.steps -= 1


def test_a_carried_run_goes_on_from_bfloat16_with_fresh_momentum(
    tmp_path: Path, tokenizer: Path, uncut: Pretrainer
) -> None:
    files = uncut.carry(tmp_path / "carried")
    assert all(path.stat().st_size <= 16 * 2**20 for path in files)
    run = pretrainer(CONFIG, tmp_path / "new", tokenizer)
    run.adopt(tmp_path / "carried")
    assert run.step == run.warm_from == STEPS
    assert run.packer.state() == uncut.packer.state()
    for name, master in run.master.masters().items():
        assert torch.equal(master, uncut.master.masters()[name].to(torch.bfloat16).float())
        assert not run.master.stacks[name].first.any()
    assert (
        run.curve.points == json.loads((tmp_path / "carried" / "curve.json").read_text())["points"]
    )
    rate = CONFIG.learning_rate_factor(STEPS, 0.0, run.warm_from)
    assert rate == pytest.approx(1 / CONFIG.warmup)
    run.update(0.5)


def test_a_carried_run_may_go_on_with_fresh_examples(
    tmp_path: Path, tokenizer: Path, uncut: Pretrainer
) -> None:
    uncut.carry(tmp_path / "carried")
    other = CONFIG.with_changes({"seed": "99"})
    run = pretrainer(other, tmp_path / "new", tokenizer)
    run.adopt(tmp_path / "carried")
    assert run.step == STEPS
    assert run.packer.state() == {"epoch": 0, "offset": 0, "waiting": []}
    with pytest.raises(RuntimeFailure) as refused:
        pretrainer(other, uncut.run, tokenizer).resume()
    assert refused.value.code == "pretrain.other_seed"


def test_a_piece_ends_in_time_and_the_run_is_not_complete(tmp_path: Path, tokenizer: Path) -> None:
    run = pretrainer(CONFIG, tmp_path, tokenizer)
    assert not run.train(Goal(steps=STEPS), Cadence(stop_at=0.0), carry=None)
    assert read_state(tmp_path) is not None


def test_another_shape_is_refused(tmp_path: Path, tokenizer: Path, uncut: Pretrainer) -> None:
    uncut.carry(tmp_path / "carried")
    other = pretrainer(small_config(**{"shape.layers": "4"}), tmp_path / "new", tokenizer)
    with pytest.raises(RuntimeFailure) as refused:
        other._take(read_state(tmp_path / "carried") or {})
    assert refused.value.code == "pretrain.other_shape"


def test_another_tokenizer_of_the_same_size_is_refused(
    tmp_path: Path, tokenizer: Path, uncut: Pretrainer
) -> None:
    uncut.carry(tmp_path / "carried")
    copy = tmp_path / "tokenizer"
    shutil.copytree(tokenizer, copy, ignore=shutil.ignore_patterns("*.safetensors"))
    text = (copy / "tokenizer.json").read_text("utf-8")
    (copy / "tokenizer.json").write_text(text + "\n", "utf-8")
    other = pretrainer(CONFIG, tmp_path / "new", copy)
    with pytest.raises(RuntimeFailure) as refused:
        other.adopt(tmp_path / "carried")
    assert refused.value.code == "pretrain.other_tokenizer"


def test_a_kill_while_the_same_step_is_saved_again_leaves_its_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved = {"a": torch.arange(4.0)}
    save_exact(tmp_path, saved, {"step": 3})

    def killed(tensors: dict[str, torch.Tensor], path: Path) -> None:
        path.write_bytes(b"half")
        raise KeyboardInterrupt

    monkeypatch.setattr(pretrain_files, "save_file", killed)
    with pytest.raises(KeyboardInterrupt):
        save_exact(tmp_path, saved, {"step": 3})
    back = {"a": torch.zeros(4)}
    load_exact(tmp_path, (read_state(tmp_path) or {})["tensors"], back)
    assert torch.equal(back["a"], saved["a"])


def test_a_loss_that_is_not_finite_ends_the_run(tmp_path: Path, tokenizer: Path) -> None:
    run = pretrainer(CONFIG, tmp_path, tokenizer)
    run.master.stacks["norm.weight"].master.fill_(float("nan"))
    with pytest.raises(RuntimeFailure) as refused:
        run.train(Goal(steps=4), Cadence(log=1), carry=None)
    assert refused.value.code == "pretrain.not_finite"


def test_carried_files_are_bounded_and_whole(tmp_path: Path) -> None:
    masters = {"a": torch.randn(7, 1000, 1000), "b.*": torch.randn(3, 512)}
    bias = torch.randn(2, 4)
    files = save_carried(tmp_path, masters, bias, {"step": 3})
    assert len(files) == 1 + 7 * 1000 * 1000 * 2 // CARRIED_BYTES
    back, back_bias = load_carried(tmp_path, read_state(tmp_path) or {})
    assert torch.equal(back_bias, bias)
    for name, master in masters.items():
        assert torch.equal(back[name], master.to(torch.bfloat16))
    files[0].unlink()
    with pytest.raises(CheckpointError) as refused:
        load_carried(tmp_path, read_state(tmp_path) or {})
    assert refused.value.code == "pretrain.checkpoint_damaged"


def test_the_export_of_a_run_opens_and_its_two_forms_agree(
    tmp_path: Path, tokenizer: Path, uncut: Pretrainer
) -> None:
    said = export(uncut.run, tokenizer, tmp_path / "nvfp4", tmp_path / "bf16", 0.9, None)
    assert len(said) == 2
    packed, plain = open_checkpoint(tmp_path / "nvfp4"), open_checkpoint(tmp_path / "bf16")
    try:
        assert packed.spec.parameters == plain.spec.parameters == uncut.spec.parameters
        assert packed.spec.defaults.threshold == 0.9
        assert packed.spec.defaults.editing_threshold is None
        assert packed.spec.decoding == "llada2.1"
        assert packed.layout == "modelopt" or "modelopt" in str(packed.layout)
        assert plain.layout == "bf16"
        assert torch.equal(
            packed.dense("model.layers.1.mlp.gate.expert_bias"), uncut.model.expert_bias[0]
        )
    finally:
        packed.release()
        plain.release()


def test_the_config_has_the_released_field_names(uncut: Pretrainer) -> None:
    from pretrain_tiny import VOCABULARY

    config = model_config(CONFIG.shape, VOCABULARY)
    for field in ("moe_intermediate_size", "first_k_dense_replace", "n_group", "topk_group"):
        assert field in config
    assert config["model_type"] == "llada2_moe"


def test_fields_can_be_changed_by_name() -> None:
    config = DemoConfig().with_changes(
        {"shape.layers": "10", "optimiser.muon_lr": "0.001", "quantised": "experts+attention"}
    )
    assert config.shape.layers == 10
    assert config.optimiser.muon_lr == 0.001
    assert config.quantised == ("experts", "attention")
    for bad in ({"shape.depth": "3"}, {"windows": "many"}, {"shape": "big"}):
        with pytest.raises(ValueError):  # noqa: PT011 - three different sentences
            DemoConfig().with_changes(bad)


def test_every_width_of_the_recipes_suits_nvfp4() -> None:
    for config in CONFIGS.values():
        shape = config.shape
        widths = (shape.hidden, shape.expert_width, shape.dense_width, shape.heads * shape.head_dim)
        assert all(width % 16 == 0 for width in widths)


def test_the_rate_warms_up_stays_and_falls() -> None:
    config = DemoConfig()
    assert config.learning_rate_factor(0, 0.0) == pytest.approx(0.01)
    assert config.learning_rate_factor(5000, 0.29) == 1.0
    assert config.learning_rate_factor(5000, 0.65) == pytest.approx(0.51)
    assert config.learning_rate_factor(5000, 1.0) == pytest.approx(0.02)


def test_the_command_line_says_what_is_wrong(
    tmp_path: Path, tokenizer: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    common = ["--run", str(tmp_path), "--tokenizer", str(tokenizer)]
    for arguments, word in (
        (["--config", "none", "--steps", "1"], "--config"),
        (["--config", "tiny"], "--steps or --budget"),
        (["--config", "tiny", "--steps", "1", "--set", "shape.depth=2"], "depth"),
        (["--config", "tiny", "--steps", "1", "--set", "windows"], "FIELD=VALUE"),
    ):
        assert pretrain.main([*common, *arguments]) == 1
        assert word in capsys.readouterr().err
    assert pretrain.main(["--run", str(tmp_path), "--steps", "1", "--tokenizer", "nowhere"]) == 1
    assert "tokenizer.json" in capsys.readouterr().err


def test_the_command_trains_and_a_second_call_finds_the_run_complete(
    tmp_path: Path, tokenizer: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--config", "tiny", "--run", str(tmp_path), "--tokenizer", str(tokenizer)]
    arguments += ["--set", "windows=1", "--set", "examples=64", "--set", "valid_examples=64"]
    arguments += ["--workers", "0", "--device", "cpu", "--steps", "2"]
    assert pretrain.main(arguments) == 0
    assert "the run is complete" in capsys.readouterr().out
    assert pretrain.main(arguments) == 0
    out = capsys.readouterr().out
    assert "continuing" in out
    assert "at step 2" in out
    curve = json.loads((tmp_path / "curve.json").read_text())
    assert len(curve["pieces"]) == 2
    assert svg(curve["points"]).startswith("<svg")


def test_a_curve_drops_points_after_the_step_it_resumes_from(tmp_path: Path) -> None:
    curve = Curve(tmp_path / "curve.json")
    curve.points = [{"step": 10, "loss": 2.0}, {"step": 20, "loss": 1.0}]
    curve.save()
    again = Curve(tmp_path / "curve.json")
    again.load(up_to_step=15)
    assert [p["step"] for p in again.points] == [10]
