"""The local server, asked by the real `openai` package."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import openai
import pytest
from openai import OpenAI
from served import Served, serving

from engine.fake import DEFAULT_ANSWER, FakeScript
from engine.types import Message

MODEL = "scripted demo"
HELLO = [{"role": "user", "content": "Hello"}]


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    with serving() as made:
        yield made


@pytest.fixture
def client(served: Served) -> Iterator[OpenAI]:
    with client_of(served) as made:
        yield made


def client_of(served: Served, key: str = "none") -> OpenAI:
    return OpenAI(base_url=served.server.url, api_key=key, max_retries=0, timeout=20)


def test_the_loaded_model_is_listed(client: OpenAI) -> None:
    (model,) = client.models.list().data
    assert model.id == MODEL
    assert client.models.retrieve(MODEL).id == MODEL
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("another")


def test_an_answer_comes_whole(client: OpenAI) -> None:
    answer = client.chat.completions.create(model=MODEL, messages=HELLO)
    assert answer.choices[0].message.content == DEFAULT_ANSWER
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage is not None
    assert answer.usage.completion_tokens > 50
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens
    assert answer.model_extra is not None
    assert answer.model_extra["unblur"]["reason"] == "stop_token"


def test_a_stream_says_the_same_in_pieces(client: OpenAI) -> None:
    chunks = list(
        client.chat.completions.create(
            model=MODEL, messages=HELLO, stream=True, stream_options={"include_usage": True}
        )
    )
    texts = [c.choices[0].delta.content or "" for c in chunks if c.choices]
    assert "".join(texts) == DEFAULT_ANSWER
    assert sum(bool(text) for text in texts) > 1
    assert chunks[-2].choices[0].finish_reason == "stop"
    assert chunks[-1].usage is not None
    assert chunks[-1].choices == []
    assert len({c.id for c in chunks}) == 1


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("stop", ["**408**", ["nowhere", "So 17"], "\n"])
def test_an_answer_ends_before_a_stop_text(client: OpenAI, stop: object, stream: bool) -> None:
    first = stop if isinstance(stop, str) else "So 17"
    wanted = DEFAULT_ANSWER[: DEFAULT_ANSWER.index(first)]
    if stream:
        chunks = list(
            client.chat.completions.create(model=MODEL, messages=HELLO, stop=stop, stream=True)  # type: ignore[arg-type]
        )
        text = "".join(c.choices[0].delta.content or "" for c in chunks)
        finish = chunks[-1].choices[0].finish_reason
    else:
        answer = client.chat.completions.create(model=MODEL, messages=HELLO, stop=stop)  # type: ignore[arg-type]
        text, finish = answer.choices[0].message.content, answer.choices[0].finish_reason
    assert (text, finish) == (wanted, "stop")


def test_length_is_honoured_and_said(client: OpenAI) -> None:
    for name in ("max_tokens", "max_completion_tokens"):
        answer = client.chat.completions.create(model=MODEL, messages=HELLO, **{name: 8})  # type: ignore[call-overload]
        assert answer.choices[0].finish_reason == "length"
        assert answer.usage.completion_tokens == 8


def test_settings_and_roles_reach_the_engine(served: Served, client: OpenAI) -> None:
    client.chat.completions.create(
        model=MODEL,
        messages=[
            {"role": "developer", "content": "Be brief."},
            {
                "role": "user",
                "content": [{"type": "text", "text": "Hel"}, {"type": "text", "text": "lo"}],
            },
            {"role": "assistant", "content": "Yes?"},
            {"role": "user", "content": "Go on"},
        ],
        temperature=0.5,
        top_p=0.25,
        seed=7,
    )
    request = served.engine.requests[-1]
    assert request.messages == (
        Message("system", "Be brief."),
        Message("user", "Hello"),
        Message("assistant", "Yes?"),
        Message("user", "Go on"),
    )
    assert request.settings is not None
    assert (request.settings.temperature, request.settings.top_p) == (0.5, 0.25)
    assert request.settings.seed == 7


def test_the_extension_streams_every_step(served: Served, client: OpenAI) -> None:
    chunks = list(
        client.chat.completions.create(
            model=MODEL, messages=HELLO, stream=True, extra_body={"unblur": {"steps": True}}
        )
    )
    steps = [c.model_extra["unblur"]["step"] for c in chunks if c.model_extra and not c.choices]
    length = served.engine.script.block_length
    assert len(steps) > served.engine.script.steps_per_block
    assert [s["forwards"] for s in steps] == sorted(s["forwards"] for s in steps)
    for step in steps:
        for name in ("ids", "pieces", "states", "confidence", "entropy", "edited_from"):
            assert len(step[name]) == length, name
    states = {state for step in steps for state in step["states"]}
    assert {"prompt", "draft", "committed", "edited"} <= states
    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert text == DEFAULT_ANSWER


def test_a_key_is_asked_for() -> None:
    with serving(key="right") as served:
        with client_of(served, "wrong") as client, pytest.raises(openai.AuthenticationError):
            client.models.list()
        with client_of(served, "right") as client:
            assert len(client.models.list().data) == 1


def test_errors_arrive_as_the_clients_own_types(client: OpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as missing:
        client.chat.completions.create(model="gpt-4", messages=HELLO)  # type: ignore[arg-type]
    assert missing.value.code == "model_not_found"
    assert MODEL in missing.value.message
    with pytest.raises(openai.BadRequestError) as refused:
        client.chat.completions.create(model=MODEL, messages=HELLO, n=2)  # type: ignore[arg-type]
    assert (refused.value.code, refused.value.param) == ("unsupported_parameter", "n")
    with pytest.raises(openai.BadRequestError) as too_long:
        client.chat.completions.create(
            model=MODEL, messages=[{"role": "user", "content": "long " * 3000}]
        )
    assert too_long.value.code == "request.too_long"


def test_a_failure_of_the_engine_is_an_error_and_the_next_request_is_served() -> None:
    script = FakeScript(fail_at=(1, 0))
    with serving(script) as served, client_of(served) as client:
        with pytest.raises(openai.InternalServerError) as failed:
            client.chat.completions.create(model=MODEL, messages=HELLO)  # type: ignore[arg-type]
        assert failed.value.code == "runtime.non_finite_logits"
        assert "not finite" in served.server.last_problem
        with pytest.raises(openai.APIError) as cut:
            list(client.chat.completions.create(model=MODEL, messages=HELLO, stream=True))  # type: ignore[arg-type]
        assert "not finite" in cut.value.message
        answer = client.chat.completions.create(model=MODEL, messages=HELLO, max_tokens=8)  # type: ignore[arg-type]
        assert answer.choices[0].finish_reason == "length"


def test_leaving_a_stream_stops_the_engine_within_a_step() -> None:
    script = FakeScript(seconds_per_step=0.05, default_answer="word " * 400)
    with serving(script) as served, client_of(served) as client:
        stream = client.chat.completions.create(
            model=MODEL, messages=HELLO, stream=True, extra_body={"unblur": {"steps": True}}
        )
        for chunk in stream:
            if not chunk.choices:
                break
        stream.close()
        wait_until(lambda: not served.server.busy)
        assert served.engine.steps_taken < 12


def test_requests_are_answered_one_after_the_other() -> None:
    script = FakeScript(seconds_per_step=0.01)
    with serving(script) as served:
        answers: list[str | None] = []

        def ask() -> None:
            with client_of(served) as client:
                made = client.chat.completions.create(model=MODEL, messages=HELLO)  # type: ignore[arg-type]
                answers.append(made.choices[0].message.content)

        threads = [threading.Thread(target=ask) for _ in range(4)]
        for thread in threads:
            thread.start()
        wait_until(lambda: served.server.waiting > 0)
        for thread in threads:
            thread.join()
        assert answers == [DEFAULT_ANSWER] * 4


def wait_until(true: object, seconds: float = 5.0) -> None:
    deadline = time.monotonic() + seconds
    while not true():  # type: ignore[operator]
        assert time.monotonic() < deadline
        time.sleep(0.005)
