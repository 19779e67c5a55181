"""One GET with a range, its redirects followed by hand, and a body that can be cut off at once.

It knows HTTP and proxies, by the standard library. The token goes to the endpoint's own origin and
nowhere else: a redirect to another host is followed without it. It refuses to know files, hashes
and how often to try.
"""

from __future__ import annotations

import base64
import contextlib
import email.utils
import functools
import http.client
import re
import socket
import ssl
import time
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from urllib.parse import SplitResult, quote, unquote, urljoin, urlsplit

from app.backend.hub.access import without_secrets
from app.backend.transfer.faults import Fault, TransferError
from app.backend.transfer.stop import Stop

REDIRECTS = (301, 302, 303, 307, 308)
MOST_REDIRECTS = 8
AGENT = "unblur"


@dataclass(frozen=True)
class Source:
    """Where a file is, and who asks. token: sent to the origin of `url` only; never printed."""

    url: str
    token: str | None = field(default=None, repr=False)


@dataclass(frozen=True)
class Timeouts:
    """Seconds. connect: until a connection stands. silence: without a byte = stalled."""

    connect: float = 15.0
    silence: float = 30.0


class Answer:
    """A response whose body is being read. headers: of the last hop, names in lower case. linked:
    what the first hop says of the file (`x-linked-etag`, `x-repo-commit`, ...)."""

    def __init__(
        self,
        response: http.client.HTTPResponse,
        linked: Mapping[str, str],
        same_origin: bool,
    ) -> None:
        self._response = response
        self.status = response.status
        self.headers = {name.lower(): value for name, value in response.getheaders()}
        self.linked = linked
        self.same_origin = same_origin  # still the endpoint itself, not where it redirects to

    def read(self, most: int) -> bytes:
        """The next bytes, at most `most`, as soon as there are any; b"" at the end. Raises
        Fault."""
        try:
            return self._response.read1(most)
        except TimeoutError as error:
            raise Fault("transfer.stalled", "The connection stalled: no byte came.") from error
        except (OSError, http.client.HTTPException) as error:
            raise Fault("transfer.cut", f"The connection was cut ({_reason(error)}).") from error

    @property
    def etag(self) -> str:
        """The entity tag without its marks; "" when there is none."""
        return plain_etag(self.headers.get("etag", ""))

    @property
    def range(self) -> tuple[int, int | None] | None:
        """(first byte, size of the whole file) of a 206; None where the header is unusable."""
        unit, _, rest = self.headers.get("content-range", "").partition(" ")
        span, _, total = rest.partition("/")
        first = span.partition("-")[0]
        begin = _whole(first)
        if unit.strip().lower() != "bytes" or begin is None:
            return None
        return begin, _whole(total)

    @property
    def length(self) -> int | None:
        return _whole(self.headers.get("content-length", ""))


def plain_etag(value: str) -> str:
    return value.strip().removeprefix("W/").strip('"')


@contextlib.contextmanager
def get(
    source: Source,
    stop: Stop,
    *,
    start: int = 0,
    end: int | None = None,
    timeouts: Timeouts | None = None,
) -> Iterator[Answer]:
    """Asks for bytes `start` to `end` (exclusive; None = to the end) and gives the answer, whatever
    its status; redirects are followed. Raises Fault, TransferError (a redirect that is not
    followed) and Interrupted."""
    times = timeouts or Timeouts()
    url, linked = source.url, dict[str, str]()
    origin = _origin(_split(url))
    for _ in range(MOST_REDIRECTS):
        parts = _split(url)
        own = _origin(parts) == origin
        headers = {"User-Agent": AGENT, "Accept-Encoding": "identity", "Connection": "close"}
        if start or end is not None:
            headers["Range"] = f"bytes={start}-{'' if end is None else end - 1}"
        if own and source.token:
            headers["Authorization"] = f"Bearer {source.token}"
        with _asked(parts, headers, times, stop) as response:
            answer = Answer(response, linked, own)
            linked.update((k, v) for k, v in answer.headers.items() if k.startswith("x-"))
            target = answer.headers.get("location")
            if answer.status not in REDIRECTS or not target:
                yield answer
                return
        following = _joined(url, target)
        scheme = _split(following).scheme
        if scheme != "https" and not (scheme == parts.scheme == "http"):
            raise TransferError(
                "transfer.insecure_redirect",
                f"{parts.hostname} redirects to an address that is not encrypted.",
                "Do not use this network for downloads, or try again later.",
            )
        url = following
    raise Fault("transfer.redirects", f"{urlsplit(source.url).hostname} redirects in a circle.")


def seconds_to_wait(headers: Mapping[str, str]) -> float | None:
    """Retry-After in seconds (a number or a date), or the hub's own rate limit; None if absent."""
    value = headers.get("retry-after", "").strip()
    number = _whole(value)
    if number is not None:
        return float(number)
    until = _date(value)
    if until is not None:  # by the server's own clock: this computer's may be years off
        now = _date(headers.get("date", ""))
        return max(0.0, until - (time.time() if now is None else now))
    for part in headers.get("ratelimit", "").split(";"):  # "api";r=0;t=55
        name, _, left = part.strip().partition("=")
        number = _whole(left)
        if name == "t" and number is not None:
            return float(number)
    return None


@contextlib.contextmanager
def _asked(
    parts: SplitResult, headers: dict[str, str], times: Timeouts, stop: Stop
) -> Iterator[http.client.HTTPResponse]:
    stop.check()
    connection, path = _connection(parts, headers, times.connect)
    try:
        try:
            connection.connect()
            line = connection.sock
            line.settimeout(times.silence)
        except (OSError, http.client.HTTPException, UnicodeError) as error:  # no such host name
            raise Fault(
                "transfer.unreachable",
                f"{parts.hostname} does not answer ({_reason(error)}).",
            ) from error
        with stop.watching(line):
            try:
                connection.request("GET", path, headers=headers)
                response = connection.getresponse()
            except TimeoutError as error:
                raise Fault("transfer.stalled", f"{parts.hostname} does not answer.") from error
            except (OSError, http.client.HTTPException) as error:
                stop.check()
                reason = _reason(error)
                raise Fault("transfer.cut", f"The connection was cut ({reason}).") from error
            with response:
                yield response
    finally:
        connection.close()


def _connection(
    parts: SplitResult, headers: dict[str, str], timeout: float
) -> tuple[http.client.HTTPConnection, str]:
    """A connection (through the system's proxy where there is one) and what to ask it for."""
    host, port = parts.hostname or "", parts.port
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    secure = parts.scheme == "https"
    proxy = urlsplit(urllib.request.getproxies().get(parts.scheme, ""))
    if not proxy.hostname or urllib.request.proxy_bypass(host):
        if secure:
            return http.client.HTTPSConnection(host, port, timeout=timeout, context=_tls()), path
        return http.client.HTTPConnection(host, port, timeout=timeout), path
    credentials = dict[str, str]()
    if proxy.username:
        pair = f"{unquote(proxy.username)}:{unquote(proxy.password or '')}".encode()
        credentials["Proxy-Authorization"] = "Basic " + base64.b64encode(pair).decode("ascii")
    at = (proxy.hostname, proxy.port or 80)
    if secure:
        tunnel = http.client.HTTPSConnection(*at, timeout=timeout, context=_tls())
        tunnel.set_tunnel(host, port or 443, headers=credentials)
        return tunnel, path
    headers.update(credentials)
    return http.client.HTTPConnection(*at, timeout=timeout), f"{_origin_text(parts)}{path}"


@functools.cache
def _tls() -> ssl.SSLContext:
    """The system's certificates; reading them takes some 20 ms, so once."""
    return ssl.create_default_context()


def _whole(text: str) -> int | None:
    """A number that a header may state; None for what is none (or has no sense as one)."""
    return int(text) if re.fullmatch(r"[0-9]{1,18}", text) else None


def _date(text: str) -> float | None:
    """A header's date in seconds since 1970; None for what is none, or that no calendar has."""
    parsed = email.utils.parsedate_tz(text) if text else None
    with contextlib.suppress(ValueError, OverflowError):
        return float(email.utils.mktime_tz(parsed)) if parsed is not None else None
    return None


def _split(url: str) -> SplitResult:
    """Raises TransferError for what is no address of the web."""
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError:
        parts = SplitResult("", "", "", "", "")
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise TransferError(
            "transfer.bad_address",
            f"{without_secrets(url)[:100]!r} is not an address that a file can be fetched from.",
            "Look the model up again on the hub; if it comes from elsewhere, download it anew.",
        )
    return parts


def _joined(url: str, target: str) -> str:
    """Where a redirect leads. Servers name files as they are: what is not ASCII is encoded."""
    try:
        return urljoin(url, quote(target, safe="!#$%&'()*+,/:;=?@[]~", encoding="latin-1"))
    except ValueError:
        return target  # `_split` says so


def _origin(parts: SplitResult) -> tuple[str, str, int]:
    default = 443 if parts.scheme == "https" else 80
    return parts.scheme, (parts.hostname or "").lower(), parts.port or default


def _origin_text(parts: SplitResult) -> str:
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"


def _reason(error: Exception) -> str:
    if isinstance(error, socket.gaierror):
        return "its name is not known: is there a network?"
    if isinstance(error, ssl.SSLCertVerificationError):
        return "its certificate is not trusted"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return without_secrets(str(error)) or type(error).__name__
