"""The bodies that are sent: OpenAI's documents, with what is more under `unblur`.

It knows their fields. It refuses to know how they are sent.
"""

from __future__ import annotations

import json
import time
import uuid

from app.server.reply import Begun, Ended
from engine.types import ModelInfo

# OpenAI knows two ends of a text. What was cut short by anything is "length"; `unblur.reason` says
# by what.
FINISH = {"stop_token": "stop", "stop_text": "stop"}


def models_document(info: ModelInfo | None, created: int) -> dict[str, object]:
    """GET /v1/models."""
    return {"object": "list", "data": [model_document(info, created)] if info else []}


def model_document(info: ModelInfo, created: int) -> dict[str, object]:
    """GET /v1/models/NAME. created: seconds since 1970."""
    return {
        "id": info.name,
        "object": "model",
        "created": created,
        "owned_by": "unblur",
        "unblur": {
            "family": info.family,
            "quantisation": info.quantisation,
            "context": info.context,
            "block_length": info.block_length,
            "runtime": info.runtime,
        },
    }


class Completion:
    """The documents of one chat completion, whole or in chunks."""

    def __init__(self, model: str) -> None:
        self._id = f"chatcmpl-{uuid.uuid4().hex}"
        self._created = int(time.time())
        self._model = model

    def whole(self, text: str, begun: Begun, ended: Ended) -> dict[str, object]:
        choice = {
            "index": 0,
            "message": {"role": "assistant", "content": text, "refusal": None},
            "logprobs": None,
            "finish_reason": FINISH.get(ended.reason, "length"),
        }
        return {
            **self._head("chat.completion"),
            "choices": [choice],
            "usage": usage(begun, ended),
            "unblur": figures(begun, ended),
        }

    def role(self) -> bytes:
        return self._chunk({"role": "assistant", "content": ""})

    def piece(self, text: str) -> bytes:
        return self._chunk({"content": text})

    def step(self, document: dict[str, object]) -> bytes:
        head = self._head("chat.completion.chunk")
        return event({**head, "choices": [], "unblur": {"step": document}})

    def end(self, begun: Begun, ended: Ended) -> bytes:
        return self._chunk({}, FINISH.get(ended.reason, "length"), figures(begun, ended))

    def usage(self, begun: Begun, ended: Ended) -> bytes:
        head = self._head("chat.completion.chunk")
        return event({**head, "choices": [], "usage": usage(begun, ended)})

    def _chunk(
        self, delta: object, finish: str | None = None, more: dict[str, object] | None = None
    ) -> bytes:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
        document = {**self._head("chat.completion.chunk"), "choices": [choice]}
        return event({**document, "unblur": more} if more else document)

    def _head(self, kind: str) -> dict[str, object]:
        return {
            "id": self._id,
            "object": kind,
            "created": self._created,
            "model": self._model,
        }


DONE = b"data: [DONE]\n\n"


def event(document: dict[str, object]) -> bytes:
    """One server-sent event. JSON has no bare line ends, so that one line holds it."""
    return b"data: " + json_bytes(document) + b"\n\n"


def json_bytes(document: dict[str, object]) -> bytes:
    return json.dumps(document, allow_nan=False).encode("ascii")


def usage(begun: Begun, ended: Ended) -> dict[str, object]:
    """Tokens that were read and made. A stop text does not unmake the tokens after it."""
    return {
        "prompt_tokens": begun.prompt_tokens,
        "completion_tokens": ended.stats.tokens,
        "total_tokens": begun.prompt_tokens + ended.stats.tokens,
    }


def figures(begun: Begun, ended: Ended) -> dict[str, object]:
    """How the answer ended and what it cost, as docs/how-it-works.md defines it."""
    stats = ended.stats
    return {
        "reason": ended.reason,
        "forwards": stats.forwards,
        "blocks": stats.blocks,
        "tpf": round(stats.tpf, 4),
        "seconds": round(stats.seconds, 6),
        "time_to_first_block": round(stats.time_to_first_block, 6),
        "path": begun.path,
    }
