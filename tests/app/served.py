"""A local server on the scripted engine, for tests that talk to it."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.client import HTTPConnection
from typing import Any

from app.server.alone import EngineThread
from app.server.http import LocalServer
from engine.fake import FakeEngine, FakeScript

ASK = {"model": "scripted demo", "messages": [{"role": "user", "content": "Hello"}]}
JSON = {"Content-Type": "application/json"}


@dataclass
class Served:
    server: LocalServer
    engine: FakeEngine

    def send(
        self,
        method: str = "POST",
        path: str = "/v1/chat/completions",
        body: bytes | str | object | None = None,
        headers: dict[str, str] | None = None,
    ) -> tuple[int, Any]:
        """(status, document) of one request; an object as body is sent as JSON."""
        if body is not None and not isinstance(body, (bytes, str)):
            body = json.dumps(body)
        connection = HTTPConnection("127.0.0.1", self.server.port, timeout=10)
        try:
            connection.request(method, path, body, {**JSON, **(headers or {})})
            answer = connection.getresponse()
            return answer.status, json.loads(answer.read())
        finally:
            connection.close()

    def refusal(self, **fields: object) -> tuple[int, str, str | None]:
        """(status, code, param) of a request with these fields that must be refused."""
        status, document = self.send(body={**ASK, **fields})
        assert status >= 400, document
        error = document["error"]
        assert set(error) == {"message", "type", "param", "code"}
        assert len(error["message"]) > 20
        return status, error["code"], error["param"]

    def raw(self, data: bytes) -> bytes:
        """Everything that comes back for bytes sent as they are."""
        with socket.create_connection(("127.0.0.1", self.server.port), timeout=10) as client:
            client.sendall(data)
            client.shutdown(socket.SHUT_WR)
            parts = []
            while part := client.recv(65536):
                parts.append(part)
        return b"".join(parts)


@contextmanager
def serving(script: FakeScript | None = None, key: str | None = None) -> Iterator[Served]:
    engine = FakeEngine(script or FakeScript())
    source = EngineThread(lambda: engine)
    source.wait_until_loaded()
    server = LocalServer(source, 0, key)
    server.start()
    try:
        yield Served(server, engine)
    finally:
        server.stop()
        source.close()
