"""`unblur models` does what the page does, without Qt, and says it in text and in JSON."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hub_server import Blob, HubServer, Repository, Trouble, wait_until
from PySide6.QtCore import QCoreApplication, QStandardPaths
from transfers import TOKEN, model_files

from app.backend import places
from app.backend.hub.token import TokenStore
from app.cli_models import main

REPO = Path(__file__).resolve().parents[2]
Run = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="module")
def hub(shared_fixtures: Path) -> Iterator[HubServer]:
    tiny = {
        p.name: Blob(p.read_bytes(), lfs=p.suffix == ".safetensors")
        for p in (shared_fixtures / "llada2-tiny").iterdir()
        if p.is_file()
    }
    config = {"model_type": "llada2_moe"}
    with HubServer(
        Repository("fix/LLaDA2.1-tiny", tiny, config=config, readers={TOKEN: "accepted"}),
        Repository("fix/other", model_files(3000)),
        Repository("fix/slow", {**tiny}),
    ) as server:
        yield server


@pytest.fixture
def home(tmp_path: Path, hub: HubServer, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A person's folders, with an ideographic space in their name."""
    home = tmp_path / "Ünï\u3000home"
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("XDG_DATA_HOME", str(home / "data"))
    monkeypatch.setenv("HF_ENDPOINT", hub.endpoint)
    monkeypatch.setenv("HF_HOME", str(home / "hf"))
    monkeypatch.setattr("app.backend.model_services.hugging_face_cache", lambda: None)
    monkeypatch.setattr("app.backend.hub.token.system_keyring", lambda: None)
    return home


@pytest.fixture
def run(home: Path, capsys: pytest.CaptureFixture[str]) -> Run:
    def run(*argv: str) -> tuple[int, str, str]:
        status = main(argv)
        said = capsys.readouterr()
        return status, said.out, said.err

    return run


def test_a_model_is_searched_got_verified_and_removed(run: Run, home: Path) -> None:
    status, out, _ = run("search", "LLaDA2.1")
    assert status == 0
    assert "fix/LLaDA2.1-tiny: apache-2.0, supported" in out
    status, out, _ = run("get", "fix/LLaDA2.1-tiny", "--context", "64")
    assert status == 0
    assert "every tensor is where the engine expects it" in out
    folder = home / "data" / "Unblur" / "models" / "fix" / "LLaDA2.1-tiny"
    assert f"In {folder}" in out
    status, out, _ = run("list")
    assert (status, "fix/LLaDA2.1-tiny @" in out, "supported" in out) == (0, True, True)
    status, out, _ = run("verify")
    assert (status, out.strip()) == (0, "fix/LLaDA2.1-tiny: every file is as published")
    (folder / "config.json").write_text("{}")
    status, out, _ = run("verify", "fix/LLaDA2.1-tiny")
    assert status == 1
    assert "config.json: wrong size" in out
    status, out, _ = run("verify", "fix/LLaDA2.1-tiny", "--repair")
    assert (status, "as published" in out) == (0, True)
    status, _, err = run("remove", "fix/LLaDA2.1-tiny")
    assert (status, "--yes" in err) == (1, True)
    assert folder.is_dir()
    status, out, _ = run("remove", "fix/LLaDA2.1-tiny", "--yes")
    assert (status, out.startswith("Deleted fix/LLaDA2.1-tiny")) == (0, True)
    assert not folder.exists()
    assert list(folder.parent.parent.glob(".unblur/trash/*")) == []


def test_every_command_speaks_json(run: Run, home: Path) -> None:
    def parsed(*argv: str) -> dict:
        status, out, _ = run(*argv, "--json")
        assert status == 0
        return json.loads(out)

    assert parsed("list")["models"] == []
    assert len(parsed("list", "--catalog")["models"]) > 10
    assert {m["repo_id"] for m in parsed("search", "fix/")["models"]} >= {"fix/other"}
    dry = parsed("get", "fix/LLaDA2.1-tiny", "--dry-run")
    assert dry["fit"]["verdict"] == "fits"
    assert dry["support"]["state"] == "supported"
    got = parsed("get", "fix/LLaDA2.1-tiny")
    assert Path(got["path"]).is_dir()
    (checked,) = parsed("verify")["models"]
    assert checked["proven"] is True
    assert parsed("remove", "fix/LLaDA2.1-tiny", "--yes")["bytes"] > 500_000
    status, _, err = run("get", "fix/nowhere", "--json")
    assert status == 1
    assert json.loads(err)["error"]["code"] == "hub.not_found"


def test_what_would_not_run_is_got_only_when_insisted_on(run: Run, home: Path) -> None:
    status, _, err = run("get", "fix/other")
    assert status == 1
    assert "--anyway" in err
    assert list((home / "data" / "Unblur" / "models").iterdir()) == []
    assert run("get", "fix/other", "--anyway")[0] == 0
    status, _, err = run("get", "fix/other", "--anyway")
    assert (status, "transfer.already_here" in err) == (1, True)


def test_a_token_is_read_from_a_pipe_kept_and_forgotten(
    run: Run, home: Path, monkeypatch: pytest.MonkeyPatch, hub: HubServer
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO(f"{TOKEN}\n"))
    status, out, err = run("token")
    assert status == 0
    assert "Kept in the file, for the account somebody" in out
    assert TOKEN not in out + err
    file = home / "data" / "Unblur" / "token.json"
    assert TokenStore(file, hub.endpoint, lambda: None).get() == TOKEN
    assert run("token", "--forget")[0] == 0
    assert TokenStore(file, hub.endpoint, lambda: None).get() is None


@pytest.mark.parametrize("argv", [[], ["dance"], ["get"], ["list", "--limit", "3"]])
def test_wrong_usage_ends_with_status_2(argv: list[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(argv)
    assert caught.value.code == 2


def child(home: Path, hub: HubServer, *argv: str, block: str = "") -> subprocess.Popen[str]:
    """The real command in a process of its own; `block`: modules that cannot be imported."""
    code = (
        "import sys\n"
        f"for name in {block.split()!r}: sys.modules[name] = None\n"
        "import runpy; runpy.run_module('app', run_name='__main__')"
    )
    environment = {
        **os.environ,
        "HOME": str(home),
        "XDG_DATA_HOME": str(home / "data"),
        "HF_HOME": str(home / "hf"),
        "HF_ENDPOINT": hub.endpoint,
        "PYTHON_KEYRING_BACKEND": "keyring.backends.null.Keyring",
    }
    return subprocess.Popen(
        [sys.executable, "-c", code, "models", *argv],
        cwd=REPO,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        encoding="utf-8",
    )


def test_the_commands_import_neither_qt_nor_torch(home: Path, hub: HubServer) -> None:
    for argv in (("list", "--json"), ("search", "fix", "--json")):
        with child(home, hub, *argv, block="PySide6 torch transformers") as process:
            out, err = process.communicate(timeout=60)
        assert process.returncode == 0, err
        assert "models" in json.loads(out)


def test_ctrl_c_pauses_a_download_and_the_next_get_goes_on(
    run: Run, home: Path, hub: HubServer
) -> None:
    hub.trouble = lambda path: Trouble(slow=0.1, piece=60_000) if "/lfs/fix/slow" in path else None
    parts = home / "data" / "Unblur" / "models" / ".unblur" / "downloads"
    process = child(home, hub, "get", "fix/slow")

    def begun() -> bool:
        return any(p.stat().st_size > 60_000 for p in parts.glob("*/*.part"))

    wait_until(begun, 60)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=30)
    assert process.returncode == 130, err
    assert "What was received is kept" in err
    hub.trouble = lambda _path: None
    hub.requests.clear()
    assert run("get", "fix/slow")[0] == 0
    asked = [r.headers["range"] for r in hub.file_requests() if "/lfs/fix/slow" in r.path]
    assert any(not each.startswith("bytes=0-") for each in asked)
    assert run("verify", "fix/slow")[0] == 0


def test_the_data_folder_is_the_one_that_qt_gives() -> None:
    before = QCoreApplication.applicationName()
    QCoreApplication.setApplicationName(places.NAME)
    try:
        where = QStandardPaths.StandardLocation.AppDataLocation
        assert Path(QStandardPaths.writableLocation(where)) == places.data_folder()
    finally:
        QCoreApplication.setApplicationName(before)


@pytest.mark.parametrize("number", ["0", "-1", "many", "1e3", "9" * 30])
def test_a_number_that_cannot_be_is_wrong_usage(run: Run, number: str, capsys) -> None:
    for argv in (["search", "x", "--limit", number], ["get", "a/b", "--context", number]):
        with pytest.raises(SystemExit) as caught:
            run(*argv)
        assert caught.value.code == 2
        assert "--" in capsys.readouterr().err


@pytest.mark.parametrize("command", [["search", "x"], ["list"], ["get", "a/b"], ["token"]])
def test_ctrl_c_ends_every_command_without_a_trace(
    run: Run, monkeypatch: pytest.MonkeyPatch, command: list[str]
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("app.cli_models.open_services", interrupted)
    status, _, said = run(*command)
    assert status == 130
    assert said.startswith("Stopped.")
