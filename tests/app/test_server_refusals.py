"""What the local server refuses, and that nothing a stranger sends takes it down."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from served import ASK, JSON, Served, serving

from app.server.alone import EngineThread
from app.server.errors import ApiError
from app.server.http import MOST_BODY, MOST_CONNECTIONS, LocalServer
from app.server.request import read_request
from app.server.stops import Outlet
from app.server.turns import QUEUE
from engine.errors import RuntimeFailure, UnblurError
from engine.fake import FakeEngine, FakeScript


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    with serving() as made:
        yield made


@pytest.mark.parametrize(
    ("fields", "code", "param"),
    [
        ({"n": 2}, "unsupported_parameter", "n"),
        ({"n": True}, "unsupported_parameter", "n"),
        ({"tools": [{"type": "function"}]}, "unsupported_parameter", "tools"),
        ({"logprobs": True}, "unsupported_parameter", "logprobs"),
        ({"logit_bias": {"1": 2}}, "unsupported_parameter", "logit_bias"),
        ({"frequency_penalty": 0.5}, "unsupported_parameter", "frequency_penalty"),
        ({"response_format": {"type": "json_object"}}, "unsupported_parameter", "response_format"),
        ({"reasoning_effort": "high"}, "unsupported_parameter", "reasoning_effort"),
        ({"temprature": 1}, "unknown_parameter", "temprature"),
        ({"temperature": 3}, "invalid_value", "temperature"),
        ({"temperature": True}, "invalid_value", "temperature"),
        ({"temperature": "hot"}, "invalid_value", "temperature"),
        ({"top_p": -0.1}, "invalid_value", "top_p"),
        ({"seed": 0.5}, "invalid_value", "seed"),
        ({"seed": 2**70}, "invalid_value", "seed"),
        ({"max_tokens": 0}, "invalid_value", "max_tokens"),
        ({"max_tokens": 4, "max_completion_tokens": 5}, "invalid_value", "max_tokens"),
        ({"stop": ""}, "invalid_value", "stop"),
        ({"stop": ["a"] * 5}, "invalid_value", "stop"),
        ({"stop": [1]}, "invalid_value", "stop"),
        ({"stream": "yes"}, "invalid_value", "stream"),
        ({"stream_options": {"include_usage": True}}, "invalid_value", "stream_options"),
        ({"unblur": {"steps": True}}, "invalid_value", "unblur"),
        ({"unblur": {"stepz": 1}, "stream": True}, "unknown_parameter", "unblur.stepz"),
        ({"messages": []}, "invalid_value", "messages"),
        ({"messages": [{"role": "user", "content": 5}]}, "invalid_value", "messages[0].content"),
        ({"messages": [{"role": "pope", "content": ""}]}, "invalid_value", "messages[0].role"),
        ({"messages": [{"role": "tool", "content": ""}]}, "unsupported_parameter", "messages[0]"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]},
            "unsupported_parameter",
            "messages[0].content[0]",
        ),
        ({"messages": [{"role": "user", "content": " "}]}, "request.empty_prompt", None),
        ({"model": ""}, "missing_model", "model"),
    ],
)
def test_a_field_that_cannot_be_served_is_named(
    served: Served, fields: dict[str, object], code: str, param: str | None
) -> None:
    assert served.refusal(**fields) == (400, code, param)


def test_values_that_ask_for_nothing_are_fine(served: Served) -> None:
    neutral = {"n": 1, "tools": [], "logprobs": False, "frequency_penalty": 0.0, "user": "me"}
    neutral |= {"presence_penalty": 0, "response_format": {"type": "text"}, "seed": None}
    status, _ = served.send(body={**ASK, **neutral, "max_tokens": 4})
    assert status == 200


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b"null",
        b"{",
        b"\xff\xfe",
        b'{"a": NaN}',
        b'{"a": 1, "a": 2}',
        b'{"a": "\\ud800"}',
        b"[" * 100_000,
        b'{"a":' * 50_000,
        b'{"a": ' + b"9" * 5000 + b"}",
    ],
)
def test_hostile_json_is_refused_in_words(served: Served, body: bytes) -> None:
    status, document = served.send(body=body)
    assert (status, document["error"]["code"]) == (400, "invalid_json")


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "evil.example:80",
        "127.0.0.1.evil.example",
        "localhost@evil.example",
        "[::2]",
    ],
)
def test_a_name_that_only_resolves_here_is_refused(served: Served, host: str) -> None:
    for method, path in (("GET", "/v1/models"), ("POST", "/v1/chat/completions")):
        status, document = served.send(method, path, headers={"Host": host})
        assert (status, document["error"]["code"]) == (403, "host_not_allowed")


def test_no_host_and_two_hosts_are_refused(served: Served) -> None:
    for hosts in (b"", b"Host: localhost\r\nHost: evil.example\r\n"):
        assert b"403" in served.raw(b"GET /v1/models HTTP/1.1\r\n" + hosts + b"\r\n")[:20]


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:1", "127.0.0.1", "[::1]:80"])
def test_the_names_of_this_computer_are_served(served: Served, host: str) -> None:
    assert served.send("GET", "/v1/models", headers={"Host": host})[0] == 200


def test_pages_of_other_sites_are_refused_and_no_cors_header_is_sent(served: Served) -> None:
    origin = {"Origin": "https://evil.example"}
    assert served.send("GET", "/v1/models", headers=origin)[0] == 403
    assert served.send("GET", "/v1/models", headers={"Origin": "null"})[0] == 403
    assert served.send("GET", "/v1/models", headers={"Origin": "http://localhost:3000"})[0] == 200
    preflight = served.raw(b"OPTIONS /v1/models HTTP/1.1\r\nHost: localhost\r\n\r\n")
    assert preflight.startswith(b"HTTP/1.1 405")
    assert b"access-control" not in preflight.lower()


def test_a_body_must_be_declared_as_json(served: Served) -> None:
    status, document = served.send(body=json.dumps(ASK), headers={"Content-Type": "text/plain"})
    assert (status, document["error"]["code"]) == (415, "not_json")


def test_a_body_that_is_too_large_is_refused_before_it_is_read(served: Served) -> None:
    status, document = served.send(body=b" " * (MOST_BODY + 1))
    assert (status, document["error"]["code"]) == (413, "request_too_large")


@pytest.mark.parametrize("length", ["-1", "x", "+5", "5, 5", "9" * 400, "\u0665"])
def test_a_length_that_is_none_is_refused(served: Served, length: str) -> None:
    head = "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\n"
    head += f"Content-Type: application/json\r\nContent-Length: {length}\r\n\r\n"
    assert served.raw(head.encode())[9:12] in (b"411", b"413")


def test_a_chunked_body_is_refused(served: Served) -> None:
    headers = {"Transfer-Encoding": "chunked", "Content-Length": "2"}
    assert served.send(body="{}", headers=headers)[0] == 411


@pytest.mark.parametrize(
    "data",
    [
        b"\r\n\r\n",
        b"\x00\x01\x02\r\n\r\n",
        b"GET\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"BREW / HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"GET /" + b"a" * 70_000 + b" HTTP/1.1\r\n\r\n",
        b"GET / HTTP/1.1\r\n" + b"A: b\r\n" * 200 + b"\r\n",
        b"GET //[ HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Le",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    ],
)
def test_bytes_that_are_no_request_do_no_harm(served: Served, data: bytes) -> None:
    answer = served.raw(data)
    assert b"Traceback" not in answer
    assert not answer or answer[9:10] == b"4" or answer[9:12] in (b"501", b"505") or b"{" in answer
    assert served.send("GET", "/v1/models")[0] == 200


def test_unknown_addresses_and_methods_say_so(served: Served) -> None:
    assert served.send("GET", "/v1/embeddings")[1]["error"]["code"] == "unknown_url"
    assert served.send("GET", "/v1/chat/completions")[1]["error"]["code"] == "method_not_allowed"
    assert served.send("GET", "/v1/models/other")[0] == 404
    assert served.send("GET", "/v1/models/scripted%20demo")[0] == 200


def test_a_connection_carries_several_requests(served: Served) -> None:
    one = b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\n"
    answer = served.raw(one + b"\r\n" + one + b"Connection: close\r\n\r\n")
    assert answer.count(b"HTTP/1.1 200") == 2


def test_a_client_that_leaves_while_it_waits_gives_its_place_up() -> None:
    with serving(FakeScript(seconds_per_step=0.02, default_answer="word " * 500)) as served:
        clients = [ask_and_listen(served) for _ in range(3)]
        wait_until(lambda: served.server.waiting == 2)
        for client in clients:
            client.close()
        wait_until(lambda: not served.server.busy)
        assert served.engine.steps_taken < 40


def test_a_full_queue_says_when_to_try_again() -> None:
    with serving(FakeScript(seconds_per_step=0.05, default_answer="word " * 500)) as served:
        clients = []
        for number in range(QUEUE + 1):
            clients.append(ask_and_listen(served))
            wait_until(lambda n=number: served.server.waiting == n)
        status, document = served.send(body=ASK)
        assert (status, document["error"]["code"]) == (429, "queue_full")
        for client in clients:
            client.close()


def test_too_many_connections_are_turned_away_and_the_others_live() -> None:
    with serving() as served:
        idle = [
            socket.create_connection(("127.0.0.1", served.server.port), timeout=5)
            for _ in range(MOST_CONNECTIONS)
        ]
        wait_until(lambda: b" 503 " in served.raw(b""))
        for client in idle:
            client.close()
        wait_until(
            lambda: b" 200 " in served.raw(b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\n\r\n")
        )


def test_switching_off_ends_a_reply_and_says_so() -> None:
    with serving(FakeScript(seconds_per_step=0.05, default_answer="word " * 500)) as served:
        answers: list[tuple[int, object]] = []
        thread = threading.Thread(target=lambda: answers.append(served.send(body=ASK)))
        thread.start()
        wait_until(lambda: served.server.busy)
        begun = time.monotonic()
        served.server.stop()
        thread.join()
        assert time.monotonic() - begun < 3
        ((status, document),) = answers
        assert status == 503
        assert "switched off" in str(document)


def test_a_port_in_use_is_a_sentence() -> None:
    with serving() as served:
        other = LocalServer(EngineThreadStandIn(), served.server.port)
        with pytest.raises(UnblurError) as refused:
            other.start()
        assert refused.value.code == "server.port"
        assert str(served.server.port) in refused.value.message
        other.stop()


class EngineThreadStandIn(EngineThread):
    """A source that never loads."""

    def __init__(self) -> None: ...


def test_a_model_that_failed_is_said_and_not_waited_for() -> None:
    def broken() -> FakeEngine:
        raise RuntimeFailure("load.broken", "It is broken.", "Get another.")

    source = EngineThread(broken)
    with pytest.raises(RuntimeFailure):
        source.wait_until_loaded()
    server = LocalServer(source, 0)
    server.start()
    try:
        served = Served(server, FakeEngine())
        assert served.send(body=ASK)[1]["error"]["code"] == "model_not_loaded"
        assert served.send("GET", "/v1/models") == (200, {"object": "list", "data": []})
    finally:
        server.stop()
        source.close()


@given(st.text(alphabet="ab", max_size=30), st.lists(st.integers(1, 6), max_size=8))
def test_pieces_make_the_text_up_to_the_first_stop(whole: str, cuts: list[int]) -> None:
    outlet = Outlet(("abba", "bbb"))
    end, out = 0, ""
    for cut in cuts:
        end += cut
        out += outlet.more(whole[:end])
    out += outlet.more(whole, final=True)
    stops = [whole.find(s) for s in ("abba", "bbb") if s in whole]
    assert out == (whole[: min(stops)] if stops else whole)
    assert outlet.found == bool(stops)


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3)
    ),
    max_leaves=6,
)
FIELDS = ("messages", "stop", "stream", "stream_options", "unblur", "n", "tools", "seed", "model")


@settings(max_examples=150)
@given(st.dictionaries(st.sampled_from(FIELDS), JSON_VALUES, max_size=4))
def test_any_values_are_read_or_refused(fields: dict[str, object]) -> None:
    body = json.dumps({**ASK, **fields}, allow_nan=True).encode()
    status = 200
    try:
        read_request(body, FakeEngine().info)
    except ApiError as error:
        status = error.status
    assert status in (200, 400, 404)


def ask_and_listen(served: Served) -> socket.socket:
    """A client that has asked and reads nothing yet."""
    body = json.dumps({**ASK, "max_tokens": 1000}).encode()
    head = (
        f"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n"
    )
    head += "".join(f"{name}: {value}\r\n" for name, value in JSON.items())
    client = socket.create_connection(("127.0.0.1", served.server.port), timeout=10)
    client.sendall(head.encode() + b"\r\n" + body)
    return client


def wait_until(true: object, seconds: float = 5.0) -> None:
    deadline = time.monotonic() + seconds
    while not true():  # type: ignore[operator]
        assert time.monotonic() < deadline
        time.sleep(0.005)
