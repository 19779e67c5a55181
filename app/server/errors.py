"""Errors of the local server in OpenAI's shape, so that any client of that API shows them well.

It knows status codes and the shape. It refuses to know what went wrong elsewhere: an error of the
engine keeps its own code and words.
"""

from __future__ import annotations

from collections.abc import Mapping

from engine.errors import RequestError, UnblurError

INVALID, SERVER = "invalid_request_error", "server_error"


class ApiError(UnblurError):
    """An answer that is an error. status: HTTP's. param: the field it is about, None for none.
    headers: more of them, such as Retry-After."""

    def __init__(
        self,
        status: int,
        code: str,
        message: str,
        action: str,
        *,
        param: str | None = None,
        kind: str = INVALID,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(code, message, action)
        self.status = status
        self.param = param
        self.kind = kind
        self.headers = dict(headers or {})

    def document(self) -> dict[str, object]:
        """The body: `{"error": {"message", "type", "param", "code"}}`."""
        return {
            "error": {
                "message": f"{self.message} {self.action}".strip(),
                "type": self.kind,
                "param": self.param,
                "code": self.code,
            }
        }


def refused(param: str | None, code: str, message: str, action: str) -> ApiError:
    """A request that is wrong in one field (status 400)."""
    return ApiError(400, code, message, action, param=param)


def unsupported(param: str, what: str, action: str) -> ApiError:
    """A field that OpenAI's API has and this server does not (status 400)."""
    return refused(param, "unsupported_parameter", what, action)


def api_error_of(error: Exception) -> ApiError:
    """Any failure while a reply is made. Unknown ones are named by their type alone: their text
    may quote what was asked."""
    if isinstance(error, ApiError):
        return error
    if isinstance(error, RequestError):
        return ApiError(400, error.code, error.message, error.action)
    if isinstance(error, UnblurError):
        return ApiError(500, error.code, error.message, error.action, kind=SERVER)
    if isinstance(error, MemoryError):
        return ApiError(
            500,
            "memory.exhausted",
            "This computer ran out of memory.",
            "Close other programs, or load a smaller model.",
            kind=SERVER,
        )
    return ApiError(
        500,
        "server.unexpected",
        f"Something failed that Unblur does not know ({type(error).__name__}).",
        "Unblur's log has the details.",
        kind=SERVER,
    )
