"""Making a copy: what is asked for, what is written, and what is refused."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import torch
from folder_maker import INDEX, copy_folder, edit_tensors, shard, write_tokenizer
from quantise_runs import EXPERT, SMALL, StopAfter, contents, refused
from safetensors.torch import load_file

from engine.checkpoint import open_checkpoint
from engine.checkpoint.quantiser import Choice, QuantiseOptions, QuantiseReport, convert, quantise
from engine.checkpoint.quantiser.report import REPORT
from engine.errors import RuntimeFailure, UnblurError
from engine.types import LoadProgress


def test_small_pieces_and_small_files_hold_the_same_tensors(
    tiny_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    quantise(tiny_folder, tmp_path / "one", QuantiseOptions())
    monkeypatch.setattr(convert, "PIECE", 200)  # three rows of 64 inputs
    quantise(tiny_folder, tmp_path / "many", SMALL)
    index = json.loads((tmp_path / "many" / INDEX).read_text(encoding="utf-8"))
    files = sorted(set(index["weight_map"].values()))
    assert len(files) == 5
    assert files[0] == "model-00001-of-00005.safetensors"
    one = load_file(tmp_path / "one" / "model.safetensors")
    many = {k: v for name in files for k, v in load_file(tmp_path / "many" / name).items()}
    assert set(one) == set(many) == set(index["weight_map"])
    for name, tensor in one.items():
        raw, other = (value.reshape(-1).view(torch.uint8) for value in (tensor, many[name]))
        assert torch.equal(raw, other), name
    size = sum(tensor.nbytes for tensor in one.values())
    assert index["metadata"]["total_size"] == size


def test_a_sharded_source_gives_the_same_copy(tiny_folder: Path, tmp_path: Path) -> None:
    quantise(tiny_folder, tmp_path / "one", SMALL)
    folder = copy_folder(tiny_folder, tmp_path / "source")
    shard(folder, 3)
    quantise(folder, tmp_path / "copy", SMALL)
    assert contents(tmp_path / "copy") == contents(tmp_path / "one")


def test_the_report_is_returned_and_lies_in_the_folder(tiny_folder: Path, tmp_path: Path) -> None:
    report = quantise(tiny_folder, tmp_path / "copy", QuantiseOptions(choice=Choice("linears")))
    written = json.loads((tmp_path / "copy" / REPORT).read_text(encoding="utf-8"))
    assert written == json.loads(json.dumps(report.as_json()))
    assert len(report.modules) == 63
    errors = list(report.modules.values())
    assert errors == sorted(errors, reverse=True)
    assert all(0.05 < error < 0.15 for error in errors)
    assert {kind.name for kind in report.kinds} == {
        "attention",
        "dense MLP",
        "routed experts",
        "shared experts",
    }
    assert {layer.name for layer in report.layers} == {"0", "1", "2"}
    assert sum(kind.matrices for kind in report.kinds) == 63
    assert sum(report.left.values()) == 4  # two routers, the head, the embedding
    assert report.written_bytes < report.source_bytes / 1.5
    assert report.peak_bytes > 50_000_000
    assert report.logits is None
    assert report.not_compared


def test_the_reported_error_is_the_distance_of_what_the_reader_gives(
    tiny_folder: Path, tmp_path: Path
) -> None:
    report = quantise(tiny_folder, tmp_path / "copy", QuantiseOptions())
    weight = load_file(tiny_folder / "model.safetensors")[f"{EXPERT}.weight"].float()
    checkpoint = open_checkpoint(tmp_path / "copy")
    out = weight.clone()
    checkpoint.linear_into(EXPERT, out)
    checkpoint.release()
    assert report.modules[EXPERT] == pytest.approx(float((out - weight).norm() / weight.norm()))


@pytest.mark.parametrize(
    ("choice", "packed"),
    [
        (Choice(), 48),
        (Choice("experts"), 48),
        (Choice("linears", exclude=("*.attention.*", "model.layers.0.*")), 54),
        (Choice(modules=("lm_head",)), 1),
        (Choice(modules=("*.mlp.shared_experts.*", "*.0.mlp.*")), 9),
        (Choice(modules=("*",), exclude=("lm_head",)), 63),
    ],
)
def test_the_choice_decides_what_is_packed(
    tiny_folder: Path, tmp_path: Path, choice: Choice, packed: int
) -> None:
    quantise(tiny_folder, tmp_path / "copy", QuantiseOptions(choice=choice))
    checkpoint = open_checkpoint(tmp_path / "copy")
    checkpoint.release()
    forms = [stored.form for stored in checkpoint.inventory.matrices.values()]
    assert forms.count("modelopt") == packed


@pytest.mark.parametrize(
    ("choice", "code", "item"),
    [
        (Choice(modules=("*.nothing",)), "quantise.unknown_module", "*.nothing"),
        (Choice(exclude=("\x1b[31m",)), "quantise.unknown_module", "\\x1b[31m"),
        (Choice(modules=("*.mlp.gate",)), "quantise.module_stays", "*.mlp.gate"),
        (Choice(modules=("model.word_embeddings",)), "quantise.module_stays", None),
        (Choice(exclude=("*.experts.*",)), "quantise.nothing_chosen", None),
    ],
)
def test_a_choice_that_cannot_be_met_is_refused(
    tiny_folder: Path, tmp_path: Path, choice: Choice, code: str, item: str | None
) -> None:
    error = refused(tiny_folder, tmp_path / "copy", choice=choice)
    assert error.code == code
    assert item is None or item in error.message or item == error.item
    assert list(tmp_path.iterdir()) == []


def test_layers_whose_experts_all_stay_are_one_entry_of_the_config(
    tiny_folder: Path, tmp_path: Path
) -> None:
    for layout, entry in (
        ("modelopt", "model.layers.1.mlp.experts.*"),
        ("compressed-tensors", r"re:model\.layers\.1\.mlp\.experts\..*"),
    ):
        choice = Choice(modules=("model.layers.2.mlp.experts.*",))
        quantise(tiny_folder, tmp_path / layout, QuantiseOptions(layout=layout, choice=choice))
        config = json.loads((tmp_path / layout / "config.json").read_text(encoding="utf-8"))
        ignored = config["quantization_config"]["ignore"]
        assert entry in ignored
        assert not any("experts.0" in name for name in ignored)


def test_files_beside_the_weights_are_taken_over(tiny_folder: Path, tmp_path: Path) -> None:
    folder = copy_folder(tiny_folder, tmp_path / "source")
    write_tokenizer(folder, 512, {"<|mask|>": 503, "<|endoftext|>": 500})
    kept = ("LICENSE", "README.md", "chat_template.jinja", "modeling_x.py", "tokenizer_config.json")
    for name in (*kept, ".hidden", "pytorch_model.bin"):
        (folder / name).write_text(f'{{"of": "{name}"}}', encoding="utf-8")
    (folder / "assets").mkdir()
    report = quantise(folder, tmp_path / "copy", QuantiseOptions())
    assert set(report.copied) == {*kept, "tokenizer.json"}
    for name in (*report.copied, "generation_config.json"):
        assert (tmp_path / "copy" / name).read_bytes() == (folder / name).read_bytes()
    assert {path.name for path in (tmp_path / "copy").iterdir()} == {
        *report.copied,
        *("config.json", "generation_config.json", "hf_quant_config.json"),
        *("model.safetensors", REPORT),
    }


def test_a_decoding_rule_that_only_the_folders_name_gave_is_spelt_out(
    tiny_folder: Path, tmp_path: Path
) -> None:
    folder = copy_folder(tiny_folder, tmp_path / "LLaDA2.1-tiny")
    report = quantise(folder, tmp_path / "small one", QuantiseOptions())
    checkpoint = open_checkpoint(tmp_path / "small one")
    checkpoint.release()
    assert checkpoint.spec.decoding == "llada2.1"
    assert any("decoding llada2.1" in note for note in report.notes)
    generation = json.loads((folder / "generation_config.json").read_text(encoding="utf-8"))
    assert checkpoint.generation_config == {**generation, "decoding": "llada2.1"}
    unchanged = quantise(folder, tmp_path / "LLaDA2.1-tiny-NVFP4", QuantiseOptions())
    assert unchanged.notes == ()


def test_a_place_that_is_taken_is_left_alone(tiny_folder: Path, tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "mine").write_text("mine")
    assert refused(tiny_folder, folder).code == "quantise.target_exists"
    assert (folder / "mine").read_text() == "mine"
    (tmp_path / "file").write_text("mine")
    assert refused(tiny_folder, tmp_path / "file").code == "quantise.target_exists"
    assert refused(tiny_folder, "").code == "quantise.no_target"
    assert refused(folder, folder).code == "quantise.same_folder"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["file", "folder"]


def test_what_is_no_unfinished_copy_is_not_touched(tiny_folder: Path, tmp_path: Path) -> None:
    partial = tmp_path / "copy.partial"
    partial.mkdir()
    (partial / "mine").write_text("mine")
    for restart in (False, True):
        error = refused(tiny_folder, tmp_path / "copy", restart=restart)
        assert error.code == "quantise.foreign_partial"
    assert (partial / "mine").read_text() == "mine"


@pytest.mark.parametrize("layout", ["modelopt", "compressed-tensors"])
def test_a_source_that_is_quantised_already_is_refused(
    shared_fixtures: Path, tmp_path: Path, layout: str
) -> None:
    source = shared_fixtures / f"llada2-tiny-nvfp4-{layout}"
    assert refused(source, tmp_path / "copy").code == "quantise.already_nvfp4"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["broken/e_nan_norm", "broken/h_missing_shard", "no such folder"])
def test_a_source_that_cannot_be_read_is_refused_before_anything_is_written(
    shared_fixtures: Path, tmp_path: Path, name: str
) -> None:
    assert refused(shared_fixtures / name, tmp_path / "copy").code.startswith("checkpoint.")
    assert list(tmp_path.iterdir()) == []


def test_values_beyond_the_format_are_refused_with_the_way_out(
    tiny_folder: Path, tmp_path: Path
) -> None:
    folder = copy_folder(tiny_folder, tmp_path / "source")
    edit_tensors(folder, lambda tensors: tensors[f"{EXPERT}.weight"].view(-1)[7].fill_(5000))
    error = refused(folder, tmp_path / "copy")
    assert (error.code, error.item) == ("quantise.too_large_values", EXPERT)
    assert EXPERT in error.action
    choice = Choice(exclude=(EXPERT,))
    quantise(folder, tmp_path / "copy", QuantiseOptions(choice=choice, restart=True))
    copy = load_file(tmp_path / "copy" / "model.safetensors")
    assert copy[f"{EXPERT}.weight"].view(-1)[7] == 4992  # bfloat16's 5000


@pytest.mark.parametrize("layout", ["modelopt", "compressed-tensors"])
def test_an_all_zero_matrix_stays_zero(tiny_folder: Path, tmp_path: Path, layout: str) -> None:
    folder = copy_folder(tiny_folder, tmp_path / "source")
    name = "model.layers.1.mlp.experts.3.down_proj"
    edit_tensors(folder, lambda tensors: tensors[f"{name}.weight"].zero_())
    options = QuantiseOptions(layout=layout)  # pyright: ignore[reportArgumentType]
    report = quantise(folder, tmp_path / "copy", options)
    assert report.modules[name] == 0
    checkpoint = open_checkpoint(tmp_path / "copy")
    out = load_file(folder / "model.safetensors")[f"{name}.weight"].float().fill_(1)
    checkpoint.linear_into(name, out)
    checkpoint.release()
    assert not out.any()


def test_a_target_under_a_file_is_a_sentence(tiny_folder: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    error = refused(tiny_folder, tmp_path / "file" / "copy")
    assert error.code == "quantise.unwritable"
    assert (tmp_path / "file").read_text() == "mine"


def test_a_source_that_changes_while_it_is_read_is_not_copied(
    tiny_folder: Path, tmp_path: Path
) -> None:
    folder = copy_folder(tiny_folder, tmp_path / "source")
    weights = folder / "model.safetensors"

    def shrink(progress: LoadProgress) -> None:
        if progress.phase == "Quantising":
            os.truncate(weights, 200_000)

    with pytest.raises(UnblurError) as caught:
        quantise(folder, tmp_path / "copy", QuantiseOptions(), progress=shrink)
    assert caught.value.code == "checkpoint.changed"
    assert not (tmp_path / "copy").exists()


def test_progress_goes_through_three_phases_to_the_end(tiny_folder: Path, tmp_path: Path) -> None:
    seen = StopAfter(1 << 60)
    quantise(tiny_folder, tmp_path / "copy", QuantiseOptions(), progress=seen)
    phases = list(dict.fromkeys(progress.phase for progress in seen.seen))
    assert phases == ["Checking the source", "Quantising", "Checking the copy"]
    for phase in phases:
        counts = [(p.done_bytes, p.total_bytes) for p in seen.seen if p.phase == phase]
        assert counts == sorted(counts)
        assert counts[-1][0] == counts[-1][1]


def test_a_comparison_that_fails_does_not_cost_the_copy(tiny_folder: Path, tmp_path: Path) -> None:
    def compare(source: Path, copy: Path) -> QuantiseReport:
        assert open_checkpoint(copy).layout == "modelopt"
        raise RuntimeFailure("compare.no_memory", "Too little memory.", "Buy more.")

    report = quantise(
        tiny_folder,
        tmp_path / "copy",
        QuantiseOptions(),
        compare=compare,  # pyright: ignore[reportArgumentType]
    )
    assert report.not_compared == "Too little memory."
    assert (tmp_path / "copy" / "config.json").is_file()
