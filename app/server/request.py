"""What a chat completion request asks for, checked field by field.

It knows OpenAI's names and which of them mean something here. It refuses to ignore a field that
would change the answer: what is not supported is an error that names the field.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import cast

from app.server.errors import ApiError, refused, unsupported
from app.server.hostile_json import Object, read_object
from engine.types import Capture, GenerateRequest, Message, ModelInfo, Role

DEFAULT_TOKENS = 1024  # when a request names none; less where the context holds less
MOST_MESSAGES = 4096
ROLES: dict[str, Role] = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
}
# what changes nothing in an answer here: who asks, and what a cloud would keep or charge
IGNORED = frozenset(
    [
        "user",
        "metadata",
        "store",
        "service_tier",
        "safety_identifier",
        "prompt_cache_key",
        "prompt_cache_retention",
        "parallel_tool_calls",
    ]
)
# fields of OpenAI's API that are not served, with the values that ask for nothing
NEUTRAL: dict[str, tuple[object, ...]] = {
    "n": (1,),
    "tools": ([],),
    "tool_choice": ("none", "auto"),
    "functions": ([],),
    "function_call": ("none", "auto"),
    "logprobs": (False,),
    "top_logprobs": (0,),
    "logit_bias": ({},),
    "frequency_penalty": (0,),
    "presence_penalty": (0,),
    "response_format": ({"type": "text"},),
    "modalities": (["text"],),
    "audio": (),
    "prediction": (),
    "reasoning_effort": (),
    "verbosity": (),
    "web_search_options": (),
    "moderation": (),
}
KNOWN = frozenset(
    [
        "model",
        "messages",
        "stream",
        "stream_options",
        "stop",
        "max_tokens",
        "max_completion_tokens",
        "temperature",
        "top_p",
        "seed",
        "unblur",
    ]
)


@dataclass(frozen=True)
class ChatRequest:
    """request: for the engine, made for `model`. stops: texts that end the answer, none of them
    empty. usage: a last chunk with the token counts. steps: a chunk for every denoising step.
    """

    model: str
    request: GenerateRequest
    stream: bool
    usage: bool
    steps: bool
    stops: tuple[str, ...]


def model_field(document: Object) -> str:
    """The model a request names. Raises ApiError when it names none."""
    name = document.get("model")
    if not isinstance(name, str) or not name:
        raise refused(
            "model",
            "missing_model",
            "The request names no model.",
            "GET /v1/models lists the name of the one that is loaded.",
        )
    return name


def read_request(body: bytes, info: ModelInfo) -> ChatRequest:
    """The request in `body`, for the loaded model. Raises ApiError naming the field."""
    document = {key: value for key, value in read_object(body).items() if value is not None}
    name = model_field(document)
    if name != info.name:
        raise model_not_found(name, info)
    _refuse_unserved(document)
    stream = _flag(document, "stream")
    usage = _flag(_options(document, "stream_options", stream, "include_usage"), "include_usage")
    steps = _flag(_options(document, "unblur", stream, "steps"), "steps")
    messages = _messages(document.get("messages"))
    settings = info.defaults
    if "temperature" in document:
        settings = replace(settings, temperature=_number(document, "temperature", 0.0, 2.0))
    if "top_p" in document:
        settings = replace(settings, top_p=_number(document, "top_p", 0.0, 1.0))
    if "seed" in document:
        settings = replace(settings, seed=_whole(document, "seed", -(2**63), 2**63 - 1) % 2**63)
    request = GenerateRequest(
        messages, _tokens(document, info), settings, Capture("light" if steps else "off")
    )
    return ChatRequest(name, request, stream, usage, steps, _stops(document.get("stop")))


def model_not_found(name: str, info: ModelInfo) -> ApiError:
    return ApiError(
        404,
        "model_not_found",
        f"The model {name[:100]!r} is not loaded.",
        f"Ask for {info.name!r}, or load another one in Unblur.",
        param="model",
    )


def _refuse_unserved(document: Object) -> None:
    for name, value in document.items():
        if name in KNOWN or name in IGNORED:
            continue
        if name not in NEUTRAL:
            raise refused(
                name[:100],
                "unknown_parameter",
                f"The field {name[:100]!r} is not known.",
                "docs/server.md lists what can be sent.",
            )
        if not any(type(value) is type(n) and value == n for n in _alike(NEUTRAL[name])):
            raise unsupported(
                name,
                f"{name} is not supported with this value: a reply is one text, without tools or "
                "probabilities.",
                f"Leave {name} out.",
            )


def _alike(values: tuple[object, ...]) -> tuple[object, ...]:
    """A zero may be written 0 or 0.0."""
    return (*values, *(float(v) for v in values if type(v) is int))


def _options(document: Object, name: str, stream: bool, field: str) -> Object:
    """The object `document[name]`, which may hold `field` only and needs a stream."""
    options = document.get(name, {})
    if not isinstance(options, dict):
        raise _wrong(name, "must be an object")
    options = {key: value for key, value in options.items() if value is not None}
    for key in options:
        if key != field:
            raise refused(
                f"{name}.{key}"[:100],
                "unknown_parameter",
                f"{name} has no field {key[:100]!r}.",
                f"It may hold {field!r}.",
            )
    if options and not stream:
        raise _wrong(name, "needs a stream: set stream to true")
    return options


def _messages(value: object) -> tuple[Message, ...]:
    if not isinstance(value, list) or not value:
        raise _wrong("messages", "must be a list with at least one message")
    if len(value) > MOST_MESSAGES:
        raise _wrong("messages", f"has more than {MOST_MESSAGES} messages")
    return tuple(_message(each, f"messages[{i}]") for i, each in enumerate(value))


def _message(value: object, where: str) -> Message:
    if not isinstance(value, dict):
        raise _wrong(where, "must be an object")
    role = value.get("role")
    if role in ("tool", "function") or value.get("tool_calls") or value.get("function_call"):
        raise unsupported(where, "Tools are not supported.", "Send system, user and assistant.")
    if not isinstance(role, str) or role not in ROLES:
        raise _wrong(f"{where}.role", f"must be one of {', '.join(ROLES)}")
    return Message(ROLES[role], _content(value.get("content"), f"{where}.content"))


def _content(value: object, where: str) -> str:
    """A text, or a list of text parts put together."""
    if isinstance(value, str):
        return value
    if not isinstance(value, list):
        raise _wrong(where, "must be a text, or a list of text parts")
    texts: list[str] = []
    for number, part in enumerate(value):
        at = f"{where}[{number}]"
        kind = part.get("type") if isinstance(part, dict) else None
        if not isinstance(part, dict) or not isinstance(kind, str):
            raise _wrong(at, "must be an object with a type")
        if kind != "text":
            raise unsupported(
                at, f"Content of type {kind[:40]!r} is not supported.", "Send text alone."
            )
        text = part.get("text")
        if not isinstance(text, str):
            raise _wrong(f"{at}.text", "must be a text")
        texts.append(text)
    return "".join(texts)


def _tokens(document: Object, info: ModelInfo) -> int:
    named = [n for n in ("max_tokens", "max_completion_tokens") if n in document]
    if not named:
        # a context that is small must leave room for a prompt
        return max(1, min(DEFAULT_TOKENS, info.context // 2))
    values = {_whole(document, name, 1, 2**31) for name in named}
    if len(values) > 1:
        raise _wrong("max_tokens", "differs from max_completion_tokens: send one of them")
    return values.pop()


def _stops(value: object) -> tuple[str, ...]:
    if value is None:
        return ()
    stops = [value] if isinstance(value, str) else value
    if not isinstance(stops, list) or not all(isinstance(s, str) for s in stops):
        raise _wrong("stop", "must be a text or a list of texts")
    texts = cast(list[str], stops)
    if len(texts) > 4 or not all(0 < len(s) <= 1000 for s in texts):
        raise _wrong("stop", "must be at most 4 texts of 1 to 1000 characters")
    return tuple(texts)


def _flag(document: Object, name: str) -> bool:
    value = document.get(name, False)
    if not isinstance(value, bool):
        raise _wrong(name, "must be true or false")
    return value


def _number(document: Object, name: str, least: float, most: float) -> float:
    value = document[name]
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not least <= value <= most:
        raise _wrong(name, f"must be a number from {least:g} to {most:g}")
    return float(value)


def _whole(document: Object, name: str, least: int, most: int) -> int:
    value = document[name]
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise _wrong(name, f"must be a whole number from {least} to {most}")
    return value


def _wrong(param: str, what: str) -> ApiError:
    return refused(param, "invalid_value", f"{param} {what}.", "docs/server.md describes it.")
