"""The hub's HTTP API: lists and infos, trees page by page, resolve with its redirects, ranges.

It knows the answers, statuses and headers that huggingface.co gives, and how to spoil one on order.
Large files are served from another host name of the same server, under an address with a signature,
as the real ones are.
"""

from __future__ import annotations

import contextlib
import json
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, quote, unquote, urlsplit

from hub_server.repositories import Blob, Repository

PIECE = 1 << 16
SIGNATURE = "Signature=do-not-print-this"


@dataclass(frozen=True)
class Request:
    """What a client asked, for tests to look at."""

    method: str
    host: str
    path: str
    headers: dict[str, str]


@dataclass
class Trouble:
    """How one answer with a file's bytes is spoiled. cut_at: bytes of the body before the
    connection is cut. wrong: every byte of the body is another one. status, headers: instead of the
    answer. ignore_range: 200 and everything. silence: seconds before the first byte. slow: seconds
    between pieces. etag: stated instead of the right one. shift: a 206 that begins elsewhere."""

    cut_at: int | None = None
    wrong: bool = False
    status: int | None = None
    headers: dict[str, str] = field(default_factory=dict)
    ignore_range: bool = False
    silence: float = 0.0
    slow: float = 0.0
    piece: int = PIECE
    etag: str | None = None
    shift: int = 0


class HubServer:
    """`with HubServer(repository, ...) as hub:`; `hub.endpoint` is the address to use.

    trouble: called with the path of each request for bytes; gives None or the Trouble for it.
    retold: called with the path and the JSON of each answer of the API; gives what is said instead.
    requests: every request so far. ended: set at the end, so that slow answers end too.
    """

    def __init__(self, *repositories: Repository) -> None:
        self.repositories = {item.name: item for item in repositories}
        self.trouble: Callable[[str], Trouble | None] = lambda _path: None
        self.api_status: Callable[[str], tuple[int, dict[str, str]] | None] = lambda _path: None
        self.retold: Callable[[str, Any], Any] = lambda _path, value: value
        self.requests: list[Request] = []
        self.page = 3  # entries of a tree in one answer
        self.ended = threading.Event()
        self.answering: set[threading.Thread] = set()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        self._server.daemon_threads = False
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,))
        self.port = self._server.server_address[1]
        self.endpoint = f"http://127.0.0.1:{self.port}"
        self.files_host = f"http://localhost:{self.port}"  # another origin, the same server

    def __enter__(self) -> HubServer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.ended.set()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def settle(self) -> None:
        """Ends slow answers and waits until no thread answers any more: between tests."""
        self.ended.set()
        for thread in tuple(self.answering):
            thread.join(10.0)
        self.ended.clear()

    def file_requests(self) -> list[Request]:
        """The requests for bytes, not for redirects to them."""
        return [r for r in self.requests if r.path.startswith(("/lfs/", "/api/resolve-cache/"))]


class NotServed(Exception):
    """Ends the answer with an error of the hub."""

    def __init__(self, status: int, code: str = "", message: str = "") -> None:
        super().__init__(message)
        self.status, self.code, self.message = status, code, message


def _handler(hub: HubServer) -> type[BaseHTTPRequestHandler]:
    class Handler(_Handler):
        pass

    Handler.hub = hub
    return Handler


class _Handler(BaseHTTPRequestHandler):
    hub: HubServer
    protocol_version = "HTTP/1.1"

    def setup(self) -> None:
        self.hub.answering.add(threading.current_thread())
        super().setup()

    def finish(self) -> None:
        try:
            super().finish()
        finally:
            self.hub.answering.discard(threading.current_thread())

    def log_message(self, format: str, *args: object) -> None:
        """Quiet."""

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        headers = {name.lower(): value for name, value in self.headers.items()}
        self.hub.requests.append(Request(self.command, headers.get("host", ""), self.path, headers))
        with contextlib.suppress(ConnectionError):
            try:
                self._answer()
            except NotServed as error:
                self._error(error)

    def _answer(self) -> None:
        parts = urlsplit(self.path)
        path, query = unquote(parts.path), parse_qs(parts.query)
        if path.startswith("/api/"):
            special = self.hub.api_status(path)
            if special is not None and not path.startswith("/api/resolve-cache/"):
                page = special[1].get("Content-Type") == "text/html"
                self._send(special[0], b"<html>Log in</html>" if page else b"{}", special[1])
                return
        if path == "/api/models":
            self._list(query)
        elif path == "/api/whoami-v2":
            self._whoami()
        elif match := re.fullmatch(r"/api/models/([^/]+/[^/]+)/tree/([^/]+)/?", path):
            self._tree(self._repository(match[1]), match[2], query)
        elif match := re.fullmatch(r"/api/models/([^/]+/[^/]+)(?:/revision/([^/]+))?", path):
            repository = self._repository(match[1])
            self._revision(repository, match[2] or "main")
            self._json(repository.info())
        elif match := re.fullmatch(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", path):
            self._resolve(self._repository(match[1]), match[2], match[3])
        elif match := re.fullmatch(r"/api/resolve-cache/models/([^/]+/[^/]+)/[^/]+/(.+)", path):
            repository = self._repository(match[1])
            self._bytes(repository.files[match[2]], path, {"X-Repo-Commit": repository.commit})
        elif match := re.fullmatch(r"/lfs/([^/]+/[^/]+)/(.+)", path):
            if parts.query != SIGNATURE:
                raise NotServed(403, message="no signature")
            self._bytes(self.hub.repositories[match[1]].files[match[2]], path)
        else:
            raise NotServed(404, "RepoNotFound", "Repository not found")

    def _token(self) -> str | None:
        scheme, _, token = self.headers.get("Authorization", "").partition(" ")
        return token if scheme == "Bearer" else None

    def _repository(self, name: str) -> Repository:
        repository = self.hub.repositories.get(name)
        token = self._token()
        known = {t for r in self.hub.repositories.values() for t in r.readers}
        if token is not None and token not in known:
            raise NotServed(401, message="Invalid credentials in Authorization header")
        hidden = (
            repository is not None
            and repository.private
            and (token is None or token not in repository.readers)
        )
        if repository is None or hidden:
            raise NotServed(401 if token is None else 404, "RepoNotFound", "Repository not found")
        return repository

    def _revision(self, repository: Repository, revision: str) -> None:
        if revision not in ("main", repository.commit):
            raise NotServed(404, "RevisionNotFound", f"Invalid rev id: {revision}")

    def _list(self, query: dict[str, list[str]]) -> None:
        words = query.get("search", [""])[0].lower()
        found = [
            repository.info()
            for repository in self.hub.repositories.values()
            if words in repository.name.lower() and not repository.private
        ]
        self._json(found[: int(query.get("limit", ["100"])[0])])

    def _whoami(self) -> None:
        token = self._token()
        if token is None or not any(token in r.readers for r in self.hub.repositories.values()):
            raise NotServed(401, message="Invalid credentials in Authorization header")
        self._json({"type": "user", "name": "somebody", "orgs": [], "auth": {"type": "access"}})

    def _tree(self, repository: Repository, revision: str, query: dict[str, list[str]]) -> None:
        self._revision(repository, revision)
        first = int(query.get("cursor", ["0"])[0])
        entries, page = repository.tree(), self.hub.page
        headers = {}
        if first + page < len(entries):
            address = f"{self.hub.endpoint}{urlsplit(self.path).path}?cursor={first + page}"
            headers["Link"] = f'<{address}>; rel="next"'
        self._json(entries[first : first + page], headers)

    def _resolve(self, repository: Repository, revision: str, path: str) -> None:
        if repository.gated:
            self._check_gate(repository)
        self._revision(repository, revision)
        blob = repository.files.get(path)
        if blob is None:
            raise NotServed(404, "EntryNotFound", "Entry not found")
        headers = {"X-Repo-Commit": repository.commit, "ETag": f'"{blob.etag}"'}
        name = quote(f"{repository.name}/{path}")
        if blob.lfs:
            headers["X-Linked-Etag"] = f'"{blob.sha256}"'
            headers["X-Linked-Size"] = str(blob.size)
            headers["Location"] = f"{self.hub.files_host}/lfs/{name}?{SIGNATURE}"
            self._send(302, b"", headers)
        else:
            cache = f"/api/resolve-cache/models/{repository.name}/{repository.commit}/{quote(path)}"
            headers["Location"] = f"{cache}?etag=%22{blob.oid}%22"
            self._send(307, b"", headers)

    def _check_gate(self, repository: Repository) -> None:
        token = self._token()
        restricted = f"Access to model {repository.name} is restricted"
        if token is None:
            raise NotServed(401, "GatedRepo", f"{restricted}. Please log in.")
        reasons = {
            "new": f"{restricted} and you are not in the authorized list.",
            "pending": f"Your request to access model {repository.name} is awaiting a review.",
            "rejected": f"Your request to access model {repository.name} has been rejected.",
            "narrow": "Please enable access to public gated repositories in your fine-grained token"
            " settings to view this repository.",
        }
        reason = reasons.get(repository.readers.get(token, "new"))
        if reason is not None:
            raise NotServed(403, "GatedRepo", reason)

    def _bytes(self, blob: Blob, path: str, more: dict[str, str] | None = None) -> None:
        trouble = self.hub.trouble(path) or Trouble()
        if trouble.silence:
            self.hub.ended.wait(trouble.silence)
        if trouble.status is not None:
            self._send(trouble.status, b"", trouble.headers)
            return
        start, stop, status = 0, blob.size, 200
        headers = {"ETag": f'"{trouble.etag or blob.etag}"', "Accept-Ranges": "bytes"} | (
            more or {}
        )
        asked = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        if asked and not trouble.ignore_range:
            start = int(asked[1]) + trouble.shift
            stop = min(int(asked[2]) + 1, blob.size) if asked[2] else blob.size
            if start >= blob.size:
                self._send(416, b"", {"Content-Range": f"bytes */{blob.size}"})
                return
            status = 206
            headers["Content-Range"] = f"bytes {start}-{stop - 1}/{blob.size}"
        self._body(status, headers, blob, (start, stop), trouble)

    def _body(
        self,
        status: int,
        headers: dict[str, str],
        blob: Blob,
        span: tuple[int, int],
        trouble: Trouble,
    ) -> None:
        start, stop = span
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(stop - start)}.items():
            self.send_header(name, value)
        self.send_header("Connection", "close")  # no thread stays to wait for a further request
        self.end_headers()
        if self.command == "HEAD":
            return
        end = stop if trouble.cut_at is None else min(stop, start + trouble.cut_at)
        for data in _pieces(blob, start, end, trouble.piece):
            if trouble.wrong:
                data = bytes(byte ^ 0xFF for byte in data)
            self.wfile.write(data)
            if trouble.slow and self.hub.ended.wait(trouble.slow):
                break
        if end < stop or self.hub.ended.is_set():
            self._cut()

    def _cut(self) -> None:
        self.close_connection = True
        with contextlib.suppress(OSError):
            self.connection.shutdown(socket.SHUT_RDWR)

    def _error(self, error: NotServed) -> None:
        headers = {"X-Error-Message": error.message}
        if error.code:
            headers["X-Error-Code"] = error.code
        self._send(error.status, json.dumps({"error": error.message}).encode(), headers)

    def _json(self, value: object, headers: dict[str, str] | None = None) -> None:
        more = {"Content-Type": "application/json", **(headers or {})}
        path = urlsplit(self.path).path
        self._send(200, json.dumps(self.hub.retold(path, value)).encode(), more)

    def _send(self, status: int, body: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.send_header("Connection", "close")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)


def _pieces(blob: Blob, start: int, end: int, size: int) -> Iterator[bytes]:
    for position in range(start, end, size):
        yield blob.read(position, min(position + size, end))


def wait_until(condition: Callable[[], bool], seconds: float = 30.0) -> None:
    """Polls; fails the test when it takes longer."""
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until, "waited in vain"
        time.sleep(0.005)
