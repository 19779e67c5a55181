"""`unblur trace export` and `diff`: what is written, printed and refused."""

from __future__ import annotations

import argparse
import csv
import json
import signal
from dataclasses import replace
from pathlib import Path

import pytest
from PIL import Image

from app import cli_trace_export
from app.cli_trace import main
from app.cli_trace_export import add_export_and_diff
from engine.errors import UnblurError
from engine.trace import save_trace
from trace_pairs import hesitant, quick


def run(*args: object) -> int:
    parser = argparse.ArgumentParser()
    add_export_and_diff(parser.add_subparsers(required=True))
    options = parser.parse_args([str(arg) for arg in args])
    return options.run(options)


@pytest.fixture
def traces(tmp_path: Path) -> tuple[Path, Path]:
    """The quick and the hesitant reply as files."""
    paths = tmp_path / "a.dntrace", tmp_path / "b.dntrace"
    save_trace(quick(), paths[0])
    save_trace(hesitant(), paths[1])
    return paths


@pytest.mark.parametrize("name", ["t.csv", "t.png", "t.gif", "t.webp", "t.html", "T.HTM"])
def test_the_ending_says_the_format(
    traces: tuple[Path, Path], tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("export", traces[1], tmp_path / name) == 0
    assert name in capsys.readouterr().out
    start = (tmp_path / name).read_bytes()[:14]
    begins = {
        ".csv": b"row,block", ".png": b"\x89PNG", ".gif": b"GIF89a", ".webp": b"RIFF",
        ".html": b"<!DOCTYPE html>"[:14], ".htm": b"<!DOCTYPE html>"[:14],
    }  # fmt: skip
    assert start.startswith(begins[(tmp_path / name).suffix.lower()])


def test_a_format_can_be_named_and_an_unknown_ending_is_refused(
    traces: tuple[Path, Path], tmp_path: Path
) -> None:
    with pytest.raises(UnblurError) as refused:
        run("export", traces[0], tmp_path / "t.mp4")
    assert refused.value.code == "export.format"
    assert ".webp" in refused.value.action
    assert run("export", traces[0], tmp_path / "t.out", "--format", "csv") == 0
    with (tmp_path / "t.out").open(newline="", encoding="utf-8") as file:
        assert len(list(csv.reader(file))) == 1 + quick().ids.size


def test_a_file_is_replaced_only_with_force_and_never_the_trace_itself(
    traces: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / "t.csv"
    target.write_text("mine")
    with pytest.raises(UnblurError) as refused:
        run("export", traces[0], target)
    assert refused.value.code == "export.exists"
    assert target.read_text() == "mine"
    assert run("export", traces[0], target, "--force", "--json") == 0
    told = json.loads(capsys.readouterr().out)
    assert told == {
        "path": str(target),
        "bytes": target.stat().st_size,
        "format": "csv",
        "note": "",
    }
    before = traces[0].read_bytes()
    with pytest.raises(UnblurError) as refused:
        run("export", traces[0], traces[0], "--format", "csv", "--force")
    assert refused.value.code == "export.own_trace"
    assert traces[0].read_bytes() == before


def test_what_an_animation_leaves_out_is_told(
    traces: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run("export", traces[1], tmp_path / "t.gif", "--every", 2, "--speed", 4, "--dark")
    assert "every 2 steps" in capsys.readouterr().out
    image = Image.open(tmp_path / "t.gif")
    assert image.n_frames == 5  # before the first, 0, 2, 4, and the last
    assert image.info["duration"] == 500


def test_diff_says_where_they_part_and_why_one_is_slower(
    traces: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("diff", *traces) == 0
    out = capsys.readouterr().out
    assert "They part in step 1 of the block at 8, position 11" in out
    assert "B is slower" in out
    assert "1 of 6 final tokens differ:" in out
    assert "    13  “</script>”  nothing" in out
    (row,) = [line for line in out.splitlines() if line.startswith("TPF")]
    assert row.split() == ["TPF", "2.00", "1.00", "-1.00"]


def test_diff_shows_a_dash_for_what_is_not_known(
    tmp_path: Path, traces: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    cut = replace(quick(), header=replace(quick().header, stats=None, reason=None))
    save_trace(cut, tmp_path / "cut.dntrace")
    run("diff", traces[0], tmp_path / "cut.dntrace")
    out = capsys.readouterr().out
    (row,) = [line for line in out.splitlines() if line.startswith("TPF")]
    assert row.split() == ["TPF", "2.00", "–", "–"]
    assert "Note: B does not hold the end of its reply" in out


def test_diff_as_json_is_the_whole_comparison(
    traces: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    run("diff", *traces, "--json")
    data = json.loads(capsys.readouterr().out)
    assert data["slower"] == "b"
    assert data["steps_by_block"] == [{"start": 8, "a": 2, "b": 4}, {"start": 12, "a": 1, "b": 2}]
    assert data["first_token"] == 13


def test_a_file_that_is_no_trace_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x.dntrace").write_text("hello")
    for command in (("diff", tmp_path / "x.dntrace", tmp_path / "x.dntrace"),
                    ("export", tmp_path / "x.dntrace", tmp_path / "x.csv")):  # fmt: skip
        with pytest.raises(UnblurError) as refused:
            run(*command)
        assert refused.value.code == "trace.not_a_trace"
    assert not (tmp_path / "x.csv").exists()


def test_a_refusal_is_told_on_stderr_with_what_to_do(
    traces: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["export", str(traces[0]), str(tmp_path / "t.mp4")]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert "does not say which format" in err
    assert "--format" in err
    assert main(["export", str(traces[0]), str(tmp_path / "t.mp4"), "--json"]) == 1
    assert json.loads(capsys.readouterr().err)["error"]["code"] == "export.format"


def test_a_stopped_export_leaves_nothing_behind(
    traces: tuple[Path, Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def interrupt(done: int, total: int) -> None:
        signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(cli_trace_export, "_tell_frames", interrupt)
    before = signal.signal(signal.SIGINT, signal.SIG_DFL)  # as the command starts
    try:
        assert main(["export", str(traces[0]), str(tmp_path / "t.gif")]) == 130
        assert signal.getsignal(signal.SIGINT) is signal.SIG_DFL
    finally:
        signal.signal(signal.SIGINT, before)
    assert "Nothing was written" in capsys.readouterr().err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.dntrace", "b.dntrace"]
