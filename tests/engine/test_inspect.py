"""`inspect` on the fixtures: what it prints, where, and with which exit status."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from folder_maker import copy_folder, edit_json, write_tokenizer

from engine import cli_inspect
from engine.cli_inspect import run, size_text
from engine.errors import RuntimeFailure

MODELOPT = "llada2-tiny-nvfp4-modelopt"
INTACT = ["llada2-tiny", MODELOPT, "llada2-tiny-nvfp4-compressed-tensors", "broken/base_ok"]


@pytest.mark.parametrize("name", INTACT)
def test_intact_folders_are_described(
    shared_fixtures: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run([str(shared_fixtures / name)]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    for word in ("LLaDA2", "routed experts", "Block rule", "Decoding", "Context", "Memory"):
        assert word in out
    assert ("NVFP4" in out) == (name != "llada2-tiny")


def test_the_text_says_what_the_model_is(
    shared_fixtures: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run([str(shared_fixtures / MODELOPT), "--modules"]) == 0
    out = capsys.readouterr().out
    assert "282,256 parameters" in out
    assert "NVFP4 (ModelOpt): routed experts; bfloat16: the rest" in out
    assert "blocks of 32 tokens" in out
    assert "llada2.0, accepts above 0.95, editing off, temperature 0" in out
    assert "mask 503, stop 500" in out
    assert "none, so it cannot read or write text" in out
    assert "4-bit activations" in out
    assert "model.layers.1.mlp.experts.0.up_proj: NVFP4 (ModelOpt)" in out
    assert "model.layers.1.mlp.gate: bfloat16" in out


@pytest.mark.parametrize("name", ["broken/e_nan_norm", "broken/i_zero_byte", "none"])
def test_refused_folders_go_to_stderr_with_the_action(
    shared_fixtures: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run([str(shared_fixtures / name)]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert "[checkpoint." in err
    assert len(err.strip().splitlines()) == 2


def test_json_holds_the_same_facts(
    shared_fixtures: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run([str(shared_fixtures / MODELOPT), "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["layout"] == "modelopt"
    assert report["mask_id"] == 503
    assert report["defaults"]["editing_threshold"] is None
    assert report["memory"]["problem"] == ""
    assert report["memory"]["weight_bytes"] > report["file_bytes"]  # expanded on a CPU
    assert sum(group["weights"] for group in report["groups"]) == report["parameters"]
    assert run([str(shared_fixtures / "broken" / "f_wrong_num_experts"), "--json"]) == 1
    error = json.loads(capsys.readouterr().err)["error"]
    assert (error["file"], error["item"]) == ("config.json", "num_experts")


def test_the_floor_is_what_a_step_reads_over_what_the_memory_gives(
    shared_fixtures: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """llada2-tiny: a block of 32 tokens, 2 of 8 experts each, meets nearly all of them."""
    assert run([str(shared_fixtures / "llada2-tiny"), "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    memory = report["memory"]
    met = 8 * (1 - 0.75**32)
    assert memory["expected_experts"] == pytest.approx(met)
    weights = {group["kind"]: group["weights"] for group in report["groups"]}
    read = sum(n for kind, n in weights.items() if kind not in ("norms and biases", "embedding"))
    read -= weights["routed experts"] * (1 - met / 8)
    assert memory["step_bytes"] == pytest.approx(4 * read, rel=1e-3)
    assert memory["floor_ms"] == pytest.approx(
        1000 * memory["step_bytes"] / memory["read_bytes_per_second"]
    )
    assert report["missing"] == ["tokenizer.json: without it no text can be read or written"]


@pytest.mark.parametrize(
    ("model_type", "architecture", "words"),
    [
        ("nemotron_dllm", "NemotronDLLM", "does not run yet"),
        ("qwen3", "Qwen3ForCausalLM", "from left to right"),
        ("strange", "StrangeModel", "unknown to Unblur"),
    ],
)
def test_a_family_that_does_not_run_is_described_all_the_same(
    shared_fixtures: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    model_type: str,
    architecture: str,
    words: str,
) -> None:
    folder = copy_folder(shared_fixtures / "sdar-tiny", tmp_path / "model")
    edit_json(folder, "config.json", model_type=model_type, architectures=[architecture])
    assert run([str(folder)]) == 1
    out, err = capsys.readouterr()
    for fact in (words, architecture, "hidden_size 64", "36 tensors: F32 834.0 kB"):
        assert fact in out
    assert "[checkpoint.u" in err
    assert run([str(folder), "--json"]) == 1
    answer = json.loads(capsys.readouterr().err)
    assert answer["error"]["file"] == "config.json"
    assert answer["model"]["tensors"] == 36
    assert answer["model"]["sizes"]["vocab_size"] == 400


def test_a_folder_with_a_tokenizer_says_so(
    shared_fixtures: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = copy_folder(shared_fixtures / "llada2-tiny", tmp_path / "模型 mit Wörtern")
    write_tokenizer(folder, 512, {"<|mask|>": 503, "<|endoftext|>": 500})
    assert run([str(folder)]) == 0
    out = capsys.readouterr().out
    assert "Tokenizer   yes" in out
    assert "模型 mit Wörtern" in out


def test_a_model_that_does_not_fit_is_still_described(
    shared_fixtures: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def too_large(*_: object) -> None:
        raise RuntimeFailure("load.out_of_memory", "It needs 99 GB.", "Choose a smaller one.")

    monkeypatch.setattr("engine.loading.choose_placement", too_large)
    assert run([str(shared_fixtures / "llada2-tiny")]) == 0
    assert "does not fit" in capsys.readouterr().out


def test_a_terminal_that_cannot_show_a_name_gets_it_escaped(
    shared_fixtures: Path, tmp_path: Path, repo_root: Path
) -> None:
    folder = copy_folder(shared_fixtures / "broken" / "base_ok", tmp_path / "モデル")
    answer = subprocess.run(
        [sys.executable, "-m", "engine", "inspect", str(folder)],
        cwd=repo_root,
        capture_output=True,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONIOENCODING": "ascii", "PYTHONUTF8": "1"},
        check=False,
    )
    assert answer.returncode == 0, answer.stderr
    assert b"\\u30e2" in answer.stdout


@pytest.mark.parametrize(
    ("count", "words"),
    [
        (0, "0 bytes"),
        (999, "999 bytes"),
        (1500, "1.5 kB"),
        (2_500_000, "2.5 MB"),
        (10**11, "100.0 GB"),
    ],
)
def test_sizes_read_well(count: int, words: str) -> None:
    assert size_text(count) == words


def test_wrong_usage_exits_with_two(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_status:
        cli_inspect.run([])
    assert exit_status.value.code == 2
    assert "usage" in capsys.readouterr().err
