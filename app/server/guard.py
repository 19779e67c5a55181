"""Who may talk to the server: programs of this computer, not web pages that a browser shows.

A page of any site can make a browser send requests to 127.0.0.1, under a name of its own that
resolves there (DNS rebinding). So the Host header must name this computer, an Origin must, too, and
a body must be declared as JSON, which a page may not send elsewhere without being asked first.
"""

from __future__ import annotations

import hmac
from email.message import Message
from urllib.parse import urlsplit

from app.server.errors import ApiError
from engine.errors import UnblurError

LOOPBACK = "127.0.0.1"
_HERE = frozenset((LOOPBACK, "localhost", "::1"))


def check_caller(headers: Message, key: str | None) -> None:
    """Raises ApiError 403 for a caller from elsewhere, 401 for a key that is not the right one."""
    hosts = headers.get_all("Host") or []
    if len(hosts) != 1 or not _is_here(f"//{hosts[0]}"):
        raise ApiError(
            403,
            "host_not_allowed",
            "The Host header does not name this computer.",
            f"Connect to http://{LOOPBACK} or http://localhost.",
        )
    origins = headers.get_all("Origin") or []
    if not all(_is_here(origin) for origin in origins):
        raise ApiError(
            403,
            "origin_not_allowed",
            "Web pages of other sites may not use this server.",
            "Ask from a program, or from a page that this computer serves.",
        )
    if key is not None and not _has_key(headers, key):
        raise ApiError(
            401,
            "invalid_api_key",
            "The API key is missing or wrong.",
            "Send the key from Unblur's settings: Authorization: Bearer KEY.",
            headers={"WWW-Authenticate": "Bearer"},
        )


def check_key(key: str) -> None:
    """Raises UnblurError for a key that a header cannot carry, or that is none."""
    if not key or len(key) > 200 or not all("!" <= letter <= "~" for letter in key):
        raise UnblurError(
            "server.key",
            "This key cannot be used: it must be 1 to 200 letters, digits and signs of ASCII, "
            "without spaces.",
            "Choose another one.",
        )


def check_json(headers: Message) -> None:
    """Raises ApiError 415 unless the body is declared as JSON."""
    if headers.get_content_type() != "application/json":
        raise ApiError(
            415,
            "not_json",
            "The request's body is not declared as JSON.",
            "Send the header Content-Type: application/json.",
        )


def body_length(headers: Message, most: int) -> int:
    """Bytes of the body. Raises ApiError 411 without a plain length, 413 for more than `most`."""
    lengths = headers.get_all("Content-Length") or []
    plain = len(lengths) == 1 and lengths[0].isascii() and lengths[0].isdigit()
    if not plain or headers.get("Transfer-Encoding") is not None:
        raise ApiError(
            411,
            "length_required",
            "The request does not say how long its body is.",
            "Send one Content-Length header and no Transfer-Encoding.",
        )
    if len(lengths[0]) > 15 or int(lengths[0]) > most:
        raise ApiError(
            413,
            "request_too_large",
            f"The request's body is larger than {most // 2**20} MB.",
            "Send less text; a model's context holds far less than that.",
        )
    return int(lengths[0])


def _is_here(address: str) -> bool:
    try:
        return urlsplit(address).hostname in _HERE
    except ValueError:
        return False


def _has_key(headers: Message, key: str) -> bool:
    scheme, _, given = (headers.get("Authorization") or "").partition(" ")
    same = hmac.compare_digest(given.strip().encode("utf-8", "replace"), key.encode("utf-8"))
    return same and scheme.lower() == "bearer"
