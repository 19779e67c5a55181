"""`quantize` from a terminal: what it prints, where, with which status, and in how much memory."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from folder_maker import edit_json
from safetensors.torch import save_file

from engine.checkpoint.quantiser.state import JOURNAL
from engine.cli import INTERRUPTED, main
from engine.cli_quantize import ProgressLine
from engine.models.llada2_spec import LLaDA2Spec
from engine.types import LoadProgress


def test_the_report_goes_to_stdout_and_progress_to_stderr(
    tiny_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["quantize", str(tiny_folder), str(tmp_path / "copy")]) == 0
    out, err = capsys.readouterr()
    assert "NVFP4 (modelopt), weights only" in out
    assert "routed experts: 48 matrices, relative error 0.09" in out
    assert "2 x: routers stay as they are" in out
    assert "573.5 kB became 443.5 kB" in out
    assert "the same best token at" in out
    assert "random token ids" in out
    assert err.splitlines() == [
        "Checking the source",
        "Quantising",
        "Checking the copy",
        "Asking the original",
        "Asking the copy",
    ]
    assert main(["inspect", str(tmp_path / "copy")]) == 0
    assert "NVFP4 (ModelOpt): routed experts; bfloat16: the rest" in capsys.readouterr().out


def test_every_option_reaches_the_quantiser(
    tiny_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--layout", "compressed-tensors", "--modules", "*.attention.*"]
    arguments += ["--modules", "lm_head", "--exclude", "*.1.*", "--separate-scales"]
    arguments += ["--shard-size", "0.001", "--no-compare", "--restart", "--json"]
    assert main(["quantize", str(tiny_folder), str(tmp_path / "copy"), *arguments]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["layout"] == "compressed-tensors"
    assert sorted(report["modules"]) == [
        "lm_head",
        "model.layers.0.attention.dense",
        "model.layers.0.attention.query_key_value",
        "model.layers.2.attention.dense",
        "model.layers.2.attention.query_key_value",
    ]
    assert report["logits"] is None


@pytest.mark.parametrize(
    "arguments", [[], ["a"], ["a", "b", "--shard-size", "0"], ["a", "b", "--layout", "gguf"]]
)
def test_wrong_usage_exits_with_two(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["quantize", *arguments])
    assert caught.value.code == 2
    assert "usage" in capsys.readouterr().err


def test_a_refusal_is_two_lines_and_a_status(
    tiny_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["quantize", str(tiny_folder), str(tmp_path)]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert len(err.splitlines()) == 2
    assert "[quantise.target_exists]" in err


def test_a_terminal_gets_one_line_that_is_written_over() -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    stream = Terminal()
    line = ProgressLine(stream)
    line(LoadProgress(0, 200, "Checking the source"))
    line(LoadProgress(100, 200, "Quantising"))
    line(LoadProgress(101, 200, "Quantising"))  # too soon after the last
    line(LoadProgress(200, 200, "Quantising"))
    line.end()
    shown = stream.getvalue()
    assert "\n" not in shown
    parts = [part.rstrip() for part in shown.split("\r")]
    assert parts == ["", "Checking the source 0%", "Quantising 50%", "Quantising 100%", "", ""]


def random_folder(folder: Path) -> Path:
    """150 MB of bfloat16 in a few large matrices; half of it routed experts."""
    config = {
        "model_type": "llada2_moe",
        "hidden_size": 1024,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 4,
        "head_dim": 256,
        "intermediate_size": 4096,
        "first_k_dense_replace": 1,
        "moe_intermediate_size": 1024,
        "num_experts": 8,
        "num_experts_per_tok": 2,
        "num_shared_experts": 0,
        "n_group": 1,
        "topk_group": 1,
        "vocab_size": 512,
        "mask_token_id": 503,
        "eos_token_id": 500,
        "max_position_embeddings": 64,
    }
    folder.mkdir()
    edit_json(folder, "config.json", **config)
    table = LLaDA2Spec.from_config(config, {}).table
    shapes = {f"{name}.weight": shape for name, shape in table.linears.items()} | table.tensors
    noise = torch.empty(8 << 20, dtype=torch.bfloat16).normal_(generator=torch.Generator()) * 0.02

    def part(shape: tuple[int, ...]) -> torch.Tensor:
        return noise[: torch.Size(shape).numel()].view(shape).clone()

    save_file({name: part(shape) for name, shape in shapes.items()}, folder / "model.safetensors")
    return folder


MEASURED = """
import sys
from engine.checkpoint.quantiser import Choice, QuantiseOptions, quantise
from engine.checkpoint.quantiser.memory import peak_memory
options = QuantiseOptions(choice=Choice("linears"))
before = peak_memory()
report = quantise(sys.argv[1], sys.argv[2], options)
print(report.peak_bytes - before, report.source_bytes)
"""


def test_a_copy_takes_a_fraction_of_the_models_memory(tmp_path: Path, repo_root: Path) -> None:
    source = random_folder(tmp_path / "source")
    answer = subprocess.run(
        [sys.executable, "-c", MEASURED, str(source), str(tmp_path / "copy")],
        cwd=repo_root,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        encoding="utf-8",
        check=True,
    )
    grown, size = (int(number) for number in answer.stdout.split())
    assert size > 140_000_000
    assert grown < 90_000_000


@pytest.mark.skipif(sys.platform == "win32", reason="POSIX signals")
def test_ctrl_c_keeps_what_is_done(tmp_path: Path, repo_root: Path) -> None:
    source, target = random_folder(tmp_path / "source"), tmp_path / "copy"
    process = subprocess.Popen(
        [sys.executable, "-m", "engine", "quantize", str(source), str(target)],
        cwd=repo_root,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stderr=subprocess.PIPE,
        encoding="utf-8",
    )
    assert process.stderr is not None
    try:
        while "Quantising" not in process.stderr.readline():
            assert process.poll() is None
        process.send_signal(signal.SIGINT)
        err = process.communicate(timeout=60)[1]
    finally:
        process.kill()
    assert process.returncode == INTERRUPTED
    assert "[quantise.stopped]" in err
    assert "copy.partial" in err
    assert (tmp_path / "copy.partial" / JOURNAL).is_file()
    assert not target.exists()
