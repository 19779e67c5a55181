"""HTTP on 127.0.0.1: connections, limits and routes, with the standard library alone.

`http.server` is enough for a few programs of one computer, one reply at a time, and gives the
socket into our hands: a client that goes away is seen while its answer is being made. It refuses
to know the engine.
"""

from __future__ import annotations

import logging
import os
import select
import socket
import threading
import time
from collections.abc import Generator
from dataclasses import dataclass
from email.message import Message
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NoReturn
from urllib.parse import unquote, urlsplit

from app.server.answers import (
    DONE,
    Completion,
    event,
    json_bytes,
    model_document,
    models_document,
)
from app.server.errors import SERVER, ApiError, api_error_of
from app.server.guard import LOOPBACK, body_length, check_caller, check_json
from app.server.reply import Begun, Ended, Item, ModelSource, Piece, Reply, Step
from app.server.request import model_not_found, read_request
from app.server.turns import ClientGone, Turns
from engine.errors import UnblurError

log = logging.getLogger("unblur.server")
MOST_BODY = 4 * 2**20
MOST_CONNECTIONS = 32
READ_SECONDS = 20.0  # to receive a body, and the longest silence of a connection
_ROUTES = {"/v1/models": "GET", "/v1/chat/completions": "POST"}


@dataclass(frozen=True)
class Rules:
    """What every connection of a server shares."""

    source: ModelSource
    turns: Turns
    closing: threading.Event
    key: str | None
    created: int
    problems: list[str]  # the last one, for whoever shows the server's state


class Handler(BaseHTTPRequestHandler):
    """One connection, which may carry several requests."""

    protocol_version = "HTTP/1.1"
    server_version = "Unblur"
    sys_version = ""
    timeout = READ_SECONDS
    server: Server  # pyright: ignore[reportIncompatibleVariableOverride]
    started = False  # whether the answer's status line is out

    def do_GET(self) -> None:
        self._answer("GET")

    def do_POST(self) -> None:
        self._answer("POST")

    def do_OPTIONS(self) -> None:
        self._answer("OPTIONS")

    def _answer(self, method: str) -> None:
        self.started = False
        try:
            check_caller(self.headers, self.server.rules.key)
            self._route(method)
        except ClientGone:
            self.close_connection = True
            log.info("a client left before its answer was complete")
        except (ConnectionError, TimeoutError) as error:
            self.close_connection = True
            log.info("a connection was lost: %s", type(error).__name__)
        except Exception as error:  # noqa: BLE001 - the thread's root: every error is answered
            self._fail(error)

    def _fail(self, error: Exception) -> None:
        if not isinstance(error, UnblurError):
            log.error("a request failed", exc_info=error)
        told = api_error_of(error)
        if told.status >= 500:
            self.server.rules.problems[:] = [f"{told.message} {told.action}"]
        self.close_connection = True  # its body may not have been read
        try:
            if self.started:  # within a stream: an event is all that can still be said
                self.wfile.write(event(told.document()))
            else:
                self._send(told.status, told.document(), told.headers)
                self._let_client_read()
        except OSError:
            log.info("an error could not be told: the client is gone")

    def _route(self, method: str) -> None:
        path = _path(self.path)
        name = path.removeprefix("/v1/models/")
        expected = "GET" if name != path and name else _ROUTES.get(path)
        if expected is None:
            raise ApiError(
                404, "unknown_url", "There is nothing at this address.", "See docs/server.md."
            )
        if method != expected:
            raise ApiError(
                405,
                "method_not_allowed",
                f"{method} is not possible here.",
                f"Use {expected}.",
                headers={"Allow": expected},
            )
        if method == "GET" and self.headers.get("Content-Length", "0").strip() != "0":
            self.close_connection = True  # nobody reads it
        rules = self.server.rules
        if path == "/v1/models":
            self._send(200, self._models())
        elif expected == "GET":
            info = rules.source.info()
            if unquote(name) != info.name:
                raise model_not_found(unquote(name), info)
            self._send(200, model_document(info, rules.created))
        else:
            self._complete()

    def _models(self) -> dict[str, object]:
        rules = self.server.rules
        try:
            return models_document(rules.source.info(), rules.created)
        except ApiError:  # no model is loaded: the list says so by being empty
            return models_document(None, rules.created)

    def _complete(self) -> None:
        check_json(self.headers)
        length = body_length(self.headers, MOST_BODY)
        body = self._body(length)
        rules = self.server.rules
        info = rules.source.info()
        chat = read_request(body, info)
        completion = Completion(info.name)
        with rules.turns.turn(self._check):
            reply = Reply(chat)
            rules.source.submit(reply)
            items = reply.items(self._check)
            try:
                if chat.stream:
                    self._stream(items, completion, chat.usage)
                else:
                    self._whole(items, completion)
            finally:
                items.close()  # stops what is still being made, and waits for its end
        if not self.close_connection:
            self.close_connection = rules.closing.is_set()

    def _whole(self, items: Generator[Item], completion: Completion) -> None:
        begun, text = Begun(0, ""), []
        for item in items:
            if isinstance(item, Begun):
                begun = item
            elif isinstance(item, Piece):
                text.append(item.text)
            elif isinstance(item, Ended):
                self._send(200, completion.whole("".join(text), begun, item))

    def _stream(self, items: Generator[Item], completion: Completion, with_usage: bool) -> None:
        begun = Begun(0, "")
        for item in items:
            if isinstance(item, Begun):
                begun = item
                self._start_stream()
                self.wfile.write(completion.role())
            elif isinstance(item, Step):
                self.wfile.write(completion.step(item.document))
            elif isinstance(item, Piece):
                self.wfile.write(completion.piece(item.text))
            else:
                self.wfile.write(completion.end(begun, item))
                if with_usage:
                    self.wfile.write(completion.usage(begun, item))
                self.wfile.write(DONE)

    def _start_stream(self) -> None:
        self.started = True
        self.close_connection = True  # the stream's end is the connection's
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream; charset=utf-8")
        self.send_header("Cache-Control", "no-store")
        self.send_header("Connection", "close")
        self.end_headers()

    def _send(
        self, status: int, document: dict[str, object], headers: dict[str, str] | None = None
    ) -> None:
        body = json_bytes(document)
        self.started = True
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-store")
        self.send_header("X-Content-Type-Options", "nosniff")
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        if self.close_connection:
            self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(body)

    def _body(self, length: int) -> bytes:
        """The body, received in READ_SECONDS. Raises ApiError 408."""
        parts: list[bytes] = []
        deadline = time.monotonic() + READ_SECONDS
        while length:
            part = self.rfile.read1(min(length, 65536))
            if not part:
                raise ClientGone
            parts.append(part)
            length -= len(part)
            if time.monotonic() > deadline:
                raise ApiError(
                    408,
                    "too_slow",
                    f"The request's body took more than {READ_SECONDS:g} s to arrive.",
                    "Send it again.",
                )
        return b"".join(parts)

    def _check(self) -> None:
        """Raises ClientGone when nobody is at the other end, ApiError when the server ends."""
        if self.server.rules.closing.is_set():
            raise ApiError(
                503,
                "server_closing",
                "The server was switched off before the answer was complete.",
                "Switch it on again in Unblur's settings.",
                kind=SERVER,
            )
        try:
            readable, _, _ = select.select([self.connection], [], [], 0)
            if readable and not self.connection.recv(1, socket.MSG_PEEK):
                raise ClientGone
        except (OSError, ValueError):
            raise ClientGone from None

    def _let_client_read(self) -> None:
        """Closing a connection with unread bytes would destroy the answer on its way: what the
        client is still sending is read and dropped, for a second."""
        self.wfile.flush()
        self.connection.shutdown(socket.SHUT_WR)
        self.connection.settimeout(0.2)
        deadline = time.monotonic() + 1.0
        while time.monotonic() < deadline and self.connection.recv(65536):
            pass

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """http.server's own complaints (a malformed request line, headers without end) in the
        shape of all others. Their text may quote the request: it is not sent back."""
        self.close_connection = True
        words = f"{HTTPStatus(code).phrase}: the request is not one that this server reads."
        error = ApiError(code, "bad_request", words, "See docs/server.md.")
        if not hasattr(self, "headers"):
            self.headers = Message()
        self._send(code, error.document())

    def log_message(self, format: str, *args: object) -> None:
        """What was asked is nobody's business; the address tells what was used."""
        log.debug("request: %s", getattr(self, "command", None))


def _path(target: str) -> str:
    try:
        path = urlsplit(target).path
    except ValueError:
        return ""
    return path.rstrip("/")


class Server(ThreadingHTTPServer):
    """A thread for each connection, and at most MOST_CONNECTIONS of them."""

    daemon_threads = False
    block_on_close = True
    # on Windows this flag would let two programs share a port
    allow_reuse_address = os.name != "nt"
    request_queue_size = MOST_CONNECTIONS

    def __init__(self, port: int, rules: Rules) -> None:
        self.rules = rules
        self._lock = threading.Lock()
        self._open: set[Any] = set()
        super().__init__((LOOPBACK, port), Handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        with self._lock:
            full = len(self._open) >= MOST_CONNECTIONS
            if not full:
                self._open.add(request)
        if full:
            _turn_away(request)
            self.shutdown_request(request)
        else:
            super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        with self._lock:
            self._open.discard(request)
        super().shutdown_request(request)

    def hang_up(self) -> None:
        """Ends connections that nothing is being answered on: reading from them ends."""
        with self._lock:
            for request in self._open:
                try:
                    request.shutdown(socket.SHUT_RD)
                except OSError:
                    log.debug("a connection was closed already")

    def handle_error(self, request: Any, client_address: Any) -> None:
        log.info("a connection ended badly", exc_info=True)


def _turn_away(request: Any) -> None:
    error = ApiError(
        503, "too_many_connections", "Too many connections are open.", "Close some.", kind=SERVER
    )
    body = json_bytes(error.document())
    head = (
        "HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    )
    try:
        request.settimeout(1.0)
        request.sendall(head.encode("ascii") + body)
    except OSError:
        log.debug("a connection too many was gone already")


class LocalServer:
    """The server, on or off. Every method may block for a moment: not for the GUI's thread."""

    def __init__(self, source: ModelSource, port: int, key: str | None = None) -> None:
        """port: 0 takes any that is free. key: what clients must send, None for nothing."""
        self._source = source
        self._port = port
        self._key = key
        self._server: Server | None = None
        self._thread: threading.Thread | None = None

    @property
    def url(self) -> str:
        """What a client takes as its base address."""
        return f"http://{LOOPBACK}:{self.port}/v1"

    @property
    def port(self) -> int:
        return self._server.server_address[1] if self._server else self._port

    @property
    def waiting(self) -> int:
        return self._server.rules.turns.waiting if self._server else 0

    @property
    def busy(self) -> bool:
        return self._server is not None and self._server.rules.turns.busy

    @property
    def last_problem(self) -> str:
        """The last failure that was not the client's, as sentences; "" when there was none."""
        return (
            self._server.rules.problems[-1] if self._server and self._server.rules.problems else ""
        )

    def start(self) -> None:
        """Takes the port and serves in a thread. Raises UnblurError when it cannot be taken."""
        rules = Rules(self._source, Turns(), threading.Event(), self._key, int(time.time()), [])
        try:
            self._server = Server(self._port, rules)
        except (OSError, OverflowError) as error:
            _no_port(self._port, error)
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(0.1,), name="server", daemon=True
        )
        self._thread.start()

    def stop(self) -> None:
        """Ends replies within a step and gives the port back."""
        server, thread = self._server, self._thread
        if server is None or thread is None:
            return
        server.rules.closing.set()
        server.shutdown()
        server.hang_up()
        server.server_close()
        thread.join()
        self._port, self._server, self._thread = server.server_address[1], None, None


def _no_port(port: int, error: OSError | OverflowError) -> NoReturn:
    reason = getattr(error, "strerror", None) or str(error)
    raise UnblurError(
        "server.port",
        f"The local server cannot use port {port}: {reason}.",
        "Choose another port, or close the program that uses this one.",
    ) from error
