"""Data sets of the hub: listed, chosen, fetched from a server of our own; refusals in words."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from engine.errors import RequestError
from trainer.data.readers import load_tasks
from trainer.data.readers.hub import HubData, fetch, list_hub, local_files, one_table

SHA = "a" * 40
ROWS = b'{"question": "1+1?", "answer": "1+1 = <<1+1=2>>2\\n#### 2"}\n'
FILES = {
    "README.md": b"# words",
    "main/train-00000-of-00002.jsonl": ROWS,
    "main/train-00001-of-00002.jsonl": ROWS.replace(b"1+1", b"2+0"),
    "main/test.jsonl": ROWS,
    "script.py": b"raise SystemExit",
    "dataset_infos.json": b"{}",
}


class Hub(BaseHTTPRequestHandler):
    """One open data set, one that needs agreement, one that fails; nothing else."""

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        if "/gated/" in path:
            self.answer(403, b"", {"X-Error-Code": "GatedRepo"})
        elif "/broken/" in path:
            self.answer(500, b"")
        elif path == "/api/datasets/some/sums/revision/main":
            siblings = [{"rfilename": name, "size": len(data)} for name, data in FILES.items()]
            info = {"id": "some/sums", "sha": SHA, "siblings": siblings}
            self.answer(200, json.dumps(info).encode(), {"Content-Type": "application/json"})
        elif path.startswith("/api/datasets/some/sums/revision/"):
            self.answer(404, b"", {"X-Error-Code": "RevisionNotFound"})
        elif path.startswith(start := f"/datasets/some/sums/resolve/{SHA}/"):
            data = FILES[path.removeprefix(start)]
            tag = hashlib.sha1(data).hexdigest()
            self.answer(200, data, {"ETag": f'"{tag}"', "X-Repo-Commit": SHA})
        else:
            self.answer(404, b"", {"X-Error-Code": "RepoNotFound"})

    def answer(self, status: int, body: bytes, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Says nothing."""


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.mark.parametrize(
    ("text", "data"),
    [
        ("hf://some/sums", HubData("some/sums")),
        ("hf://datasets/some/sums/", HubData("some/sums")),
        ("hf://some/sums@v1/main/x.jsonl", HubData("some/sums", "main/x.jsonl", "v1")),
    ],
)
def test_a_name_is_read(text: str, data: HubData) -> None:
    assert HubData.parse(text) == data


@pytest.mark.parametrize("text", ["hf://sums", "some/sums", "hf://", "hf://a b/c"])
def test_what_is_no_name_is_refused(text: str) -> None:
    with pytest.raises(RequestError) as refused:
        HubData.parse(text)
    assert refused.value.code == "data.hub_name"


def test_files_of_rows_are_listed_and_no_others(hub: str) -> None:
    listing = list_hub(HubData("some/sums"), hub)
    assert [file.path for file in listing.files] == [
        "main/test.jsonl",
        "main/train-00000-of-00002.jsonl",
        "main/train-00001-of-00002.jsonl",
    ]
    assert listing.commit == SHA
    with pytest.raises(RequestError, match=r"main/test\.jsonl") as refused:
        one_table(listing)
    assert refused.value.code == "data.hub_choose"
    with pytest.raises(RequestError) as refused:
        list_hub(HubData("some/sums", "nothing"), hub)
    assert refused.value.code == "data.hub_empty"


def test_a_file_is_fetched_once_and_read(hub: str) -> None:
    (path,) = local_files(("hf://some/sums/main/test.jsonl",), hub)
    loaded = load_tasks((path,))
    assert loaded.tasks[0].reference == "1+1 = 2\n#### 2"
    listing = list_hub(HubData("some/sums", "main/test.jsonl"), hub)
    assert str(fetch(listing, listing.files[0], hub)) == path
    assert local_files(("here.jsonl",), hub) == ("here.jsonl",)


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("hf://some/gated/x.jsonl", "data.hub_gated"),
        ("hf://some/nothing", "data.hub_missing"),
        ("hf://some/sums@v9", "data.hub_revision"),
        ("hf://some/broken", "data.hub_refused"),
    ],
)
def test_refusals_are_told_apart(hub: str, name: str, code: str) -> None:
    with pytest.raises(RequestError) as refused:
        local_files((name,), hub)
    assert refused.value.code == code


def test_a_hub_that_is_not_there_is_said(hub: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(RequestError) as refused:
        local_files(("hf://some/sums",), "http://127.0.0.1:9")
    assert refused.value.code == "data.hub_unreachable"
