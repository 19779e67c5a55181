"""JSON from a stranger: read strictly, or refused in words.

It knows bytes and limits of form. It refuses to know what the document means.
"""

from __future__ import annotations

import json
from typing import NoReturn

from app.server.errors import refused

Object = dict[str, object]


def read_object(body: bytes) -> Object:
    """The JSON object in `body`. Raises ApiError 400 for anything else: other encodings, numbers
    that are not finite or not sane, a key twice, nesting without end, text that is not Unicode."""
    try:
        text = body.decode("utf-8")
        document = json.loads(text, parse_constant=_no_constant, object_pairs_hook=_once)
        json.dumps(document, ensure_ascii=False).encode("utf-8")  # a lone surrogate fails here
    except RecursionError:
        raise _bad("it is nested too deeply") from None
    except UnicodeError:
        raise _bad("its text is not valid Unicode") from None
    except ValueError as error:  # JSONDecodeError quotes a position, never the text
        raise _bad(str(error)) from None
    if not isinstance(document, dict):
        raise _bad("it is no object")
    return document


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number of JSON")


def _once(pairs: list[tuple[str, object]]) -> Object:
    document = dict(pairs)
    if len(document) != len(pairs):
        raise ValueError("a key is there twice in one object")
    return document


def _bad(why: str) -> Exception:
    return refused(
        None,
        "invalid_json",
        f"The request's body cannot be read as JSON: {why[:200]}.",
        "Send one JSON object, encoded as UTF-8.",
    )
