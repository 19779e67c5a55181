"""Comparing a copy's predictions with the original's, one module in memory at a time."""

from __future__ import annotations

import threading
from pathlib import Path

import psutil
import pytest
import torch
from folder_maker import copy_folder, edit_tensors, write_tokenizer
from safetensors.torch import load_file
from test_dense_checkpoints import FAMILIES, write_folder
from tiny import load

from engine.checkpoint import open_checkpoint
from engine.checkpoint.quantiser import Choice, QuantiseOptions, quantise
from engine.errors import RequestError, RuntimeFailure
from engine.logit_distance import compare_logits
from engine.models.layers import MaskAttend, block_causal_mask
from engine.types import LoadProgress

VOCAB, MASK = 512, 503  # of llada2-tiny
HEAD = "model.transformer.ff_out"  # of LLaDA (dense)


@pytest.fixture
def quantised(tiny_folder: Path, tmp_path: Path) -> Path:
    quantise(tiny_folder, tmp_path / "copy", QuantiseOptions())
    return tmp_path / "copy"


def first_step_logits(folder: Path, ids: list[int]) -> torch.Tensor:
    """Of the answer's masks in the prompt's last block, by a plain forward over everything."""
    model = load(folder)
    block, mask = model.spec.block_length, model.spec.mask_token_id
    length = -(-(len(ids) + 1) // block) * block
    canvas = torch.tensor([ids + [mask] * (length - len(ids))])
    positions = torch.arange(length).unsqueeze(0)
    attend = MaskAttend(block_causal_mask(positions, block))
    with torch.inference_mode():
        return model.logits(model(model.embed(canvas), positions, attend))[0, len(ids) :]


@pytest.mark.parametrize(
    ("name", "length"),
    [("llada2-tiny", 40), ("llada2-tiny", 64), ("llada2-tiny", 5), ("sdar-tiny", 22)],
)
def test_the_distance_is_that_of_the_whole_models(
    shared_fixtures: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, length: int
) -> None:
    source, copy = shared_fixtures / name, tmp_path / "copy"
    quantise(source, copy, QuantiseOptions())
    spec = load(source).spec
    ids = torch.randint(100, (length,), generator=torch.Generator().manual_seed(3)).tolist()
    monkeypatch.setattr("engine.logit_distance._prompt_ids", lambda *_: (ids, "these"))
    found = compare_logits(source, copy)
    keep = [token for token in range(spec.vocab_size) if token != spec.mask_token_id]
    p, q = (first_step_logits(folder, ids)[:, keep] for folder in (source, copy))
    log_p, log_q = p.double().log_softmax(-1), q.double().log_softmax(-1)
    kl = (log_p.exp() * (log_p - log_q)).sum(-1)
    assert found.positions == kl.numel() == spec.block_length - length % spec.block_length
    assert found.mean_kl == pytest.approx(float(kl.mean()), rel=1e-3)
    assert found.largest_kl == pytest.approx(float(kl.max()), rel=1e-3)
    assert found.same_best == float((p.argmax(-1) == q.argmax(-1)).double().mean())
    assert found.mean_kl > 0.01


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_can_be_copied_and_compared(tmp_path: Path, family: str) -> None:
    """Whole-sequence canvases, shifted logits, biases, tied heads."""
    source = write_folder(tmp_path / family, family)
    for words in ("w3 w4 w5", "w3 w4 w5 w6 w7 w8 w9 w10"):
        same = compare_logits(source, source, words)
        assert (same.mean_kl, same.same_best) == (0.0, 1.0)
        assert same.positions > 0
    report = quantise(source, tmp_path / "copy", QuantiseOptions(), compare=compare_logits)
    assert report.choice == "all linear modules"
    assert report.logits is not None
    assert 0 < report.logits.mean_kl < 10
    checkpoint = open_checkpoint(tmp_path / "copy")
    checkpoint.release()
    forms = {name: stored.form for name, stored in checkpoint.inventory.matrices.items()}
    packed = {name for name, form in forms.items() if form == "modelopt"}
    assert packed == set(report.modules) == set(checkpoint.spec.table.linears) - {"lm_head", HEAD}


def test_a_model_has_no_distance_from_itself(tiny_folder: Path) -> None:
    found = compare_logits(tiny_folder, tiny_folder)
    assert (found.mean_kl, found.largest_kl, found.same_best) == (0.0, 0.0, 1.0)
    assert found.prompt == "random token ids"


def test_a_better_copy_is_closer(tiny_folder: Path, quantised: Path, tmp_path: Path) -> None:
    choice = Choice(modules=("model.layers.1.mlp.experts.0.*",))
    quantise(tiny_folder, tmp_path / "better", QuantiseOptions(choice=choice))
    one = compare_logits(tiny_folder, quantised).mean_kl
    assert 0 <= compare_logits(tiny_folder, tmp_path / "better").mean_kl < one / 2


def test_the_prompt_is_asked_in_the_models_own_template(tmp_path: Path, repo_root: Path) -> None:
    demo = repo_root / "assets" / "demo"
    found = compare_logits(demo, demo, "What is 2 plus 2?")
    assert (found.prompt, found.mean_kl) == ("What is 2 plus 2?", 0.0)
    with pytest.raises(RequestError):
        compare_logits(demo, demo, "half a character: \udcc3")


def test_no_more_than_one_large_module_is_in_memory(
    tiny_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Counted where weights are put in place: all that came before are gone again."""
    from engine import logit_distance

    place, model, most = logit_distance.place_module, [], 0
    build = logit_distance.empty_model

    def built(checkpoint):
        model.append(build(checkpoint))
        return model[-1]

    def counted(name, module, checkpoint, placement) -> None:
        nonlocal most
        place(name, module, checkpoint, placement)
        here = [
            name
            for name, module in model[-1].named_modules()
            if isinstance(module, logit_distance._STREAMED)
            and any(not value.is_meta for value in module.parameters(recurse=False))
        ]
        most = max(most, len(here))

    monkeypatch.setattr(logit_distance, "empty_model", built)
    monkeypatch.setattr(logit_distance, "place_module", counted)
    compare_logits(tiny_folder, tiny_folder)
    assert most == 1


def test_too_little_memory_is_said_before_it_runs_out(
    tiny_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory = psutil.virtual_memory()._replace(available=100_000_000)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: memory)
    with pytest.raises(RuntimeFailure) as caught:
        compare_logits(tiny_folder, tiny_folder)
    assert caught.value.code == "compare.no_memory"
    assert "0.1 GB are free" in caught.value.message


def test_it_can_be_stopped(tiny_folder: Path) -> None:
    stop = threading.Event()
    seen: list[LoadProgress] = []

    def progress(at: LoadProgress) -> None:
        seen.append(at)
        stop.set()

    with pytest.raises(RuntimeFailure) as caught:
        compare_logits(tiny_folder, tiny_folder, progress=progress, stop=stop)
    assert caught.value.code == "compare.stopped"
    assert len(seen) == 1


def test_a_prompt_without_a_template_leaves_the_copy_and_says_why(
    tiny_folder: Path, tmp_path: Path
) -> None:
    folder = copy_folder(tiny_folder, tmp_path / "source")
    write_tokenizer(folder, VOCAB, {"<|mask|>": MASK, "<|endoftext|>": 500})

    def compare(source: Path, copy: Path):
        return compare_logits(source, copy)

    report = quantise(folder, tmp_path / "copy", QuantiseOptions(), compare=compare)
    assert report.logits is None
    assert report.not_compared
    assert (tmp_path / "copy" / "model.safetensors").is_file()


def test_predictions_that_are_not_finite_are_not_a_distance(
    tiny_folder: Path, quantised: Path
) -> None:
    edit_tensors(quantised, lambda tensors: tensors["model.norm.weight"].fill_(3e38))
    assert load_file(quantised / "model.safetensors")["model.norm.weight"].isfinite().all()
    with pytest.raises(RuntimeFailure) as caught:
        compare_logits(tiny_folder, quantised)
    assert caught.value.code == "runtime.nonfinite"
