"""Where the token goes, and where it never goes: other hosts, errors, addresses and logs."""

from __future__ import annotations

import logging
import socket
import threading
import time
from pathlib import Path

import pytest
from hub_server import Blob, HubServer, Trouble, wait_until
from transfers import QUICK, TOKEN, Seen, place_of, plan_of, remote, serving

from app.backend.hub.access import HubError, refused, without_secrets
from app.backend.hub.token import TokenStore
from app.backend.transfer import http
from app.backend.transfer.download import Download
from app.backend.transfer.faults import Fault, TransferError
from app.backend.transfer.fetch import fetch
from app.backend.transfer.http import Source, Timeouts, get, seconds_to_wait
from app.backend.transfer.queue import DownloadQueue, State
from app.backend.transfer.read import read_range
from app.backend.transfer.stop import Stop

BIG = "model.safetensors"


def authorised(hub: HubServer) -> dict[str, bool]:
    """host -> whether a request to it carried the token."""
    sent: dict[str, bool] = {}
    for request in hub.requests:
        secret = "authorization" in request.headers
        sent[request.host] = sent.get(request.host, False) or secret
    return sent


def test_the_token_is_not_sent_to_where_the_hub_redirects(tmp_path: Path) -> None:
    with serving(5000, readers={TOKEN: "accepted"}) as (hub, repository):
        for path in (BIG, "config.json"):
            file = remote(path, repository.files[path])
            place = place_of(hub, repository, TOKEN)
            fetch(place, file, tmp_path, Stop(), Seen(file.size), QUICK)
        assert authorised(hub) == {
            f"127.0.0.1:{hub.port}": True,
            f"localhost:{hub.port}": False,
        }
        own = [r for r in hub.requests if r.path.startswith("/api/resolve-cache/")]
        assert "authorization" in own[0].headers  # a relative redirect stays on the hub


@pytest.mark.parametrize(
    ("reader", "token", "code"),
    [
        (None, None, "hub.no_token"),
        ("new", TOKEN, "hub.licence_not_accepted"),
        ("rejected", TOKEN, "hub.access_denied"),
        ("pending", TOKEN, "hub.access_pending"),
        ("narrow", TOKEN, "hub.token_too_narrow"),
        (None, TOKEN, "hub.token_invalid"),
    ],
)
def test_a_gated_model_is_refused_in_words_of_its_own(
    tmp_path: Path, reader: str | None, token: str | None, code: str
) -> None:
    readers = {token: reader} if token and reader else {}
    with serving(5000, gated=True, readers=readers) as (hub, repository):
        file = remote(BIG, repository.files[BIG])
        place = place_of(hub, repository, token)
        with pytest.raises(HubError) as caught:
            fetch(place, file, tmp_path, Stop(), Seen(file.size), QUICK)
        error = caught.value
        assert error.code == code
        assert hub.endpoint in error.link
        assert repository.name in error.message or code.startswith("hub.token")
        assert len(hub.requests) == 1, "a refusal is not tried again"


def test_the_refusals_differ_in_message_and_action() -> None:
    said = [
        refused(401, "a/b", error_code="GatedRepo", has_token=False),
        refused(403, "a/b", error_code="GatedRepo", said="not in the list", has_token=True),
        refused(403, "a/b", error_code="GatedRepo", said="was rejected", has_token=True),
        refused(401, "a/b", said="Invalid credentials in Authorization header", has_token=True),
        refused(401, "a/b", error_code="RepoNotFound", has_token=False),
        refused(403, "a/b", has_token=True),
    ]
    assert len({e.code for e in said}) == 6 - 1  # declined and not allowed are one code
    assert len({e.message for e in said}) == 6
    assert all(e.action and e.link for e in said)


def test_a_repair_from_another_site_is_not_given_the_hubs_token(tmp_path: Path) -> None:
    """A manifest of a folder from elsewhere names its origin; that may be anyone's."""
    tokens = TokenStore(tmp_path / "token.json", "https://huggingface.co", keyring=lambda: None)
    tokens.save(TOKEN)
    with serving(5000) as (hub, repository):
        Download(plan_of(hub, repository), tmp_path, tokens.get_for, QUICK).run()
        assert hub.requests
        assert not any(authorised(hub).values())


def test_no_token_is_in_an_error_a_log_or_a_file(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Through success, refusal, and a redirect to a signed address that fails."""
    caplog.set_level(logging.DEBUG)
    for reader, trouble in (("accepted", None), ("rejected", None), ("accepted", 500)):
        with serving(5000, gated=True, readers={TOKEN: reader}) as (hub, repository):
            hub.trouble = lambda _path, status=trouble: status and Trouble(status=status)
            root = tmp_path / f"{reader} {trouble}"
            root.mkdir()
            queue = DownloadQueue(root / "queue.json", lambda _: TOKEN, policy=QUICK)
            queue.start()
            queue.add(plan_of(hub, repository), root)
            wait_until(lambda q=queue: not q.busy)
            queue.stop()
            (view,) = queue.views()
            assert (view.state is State.DONE) == (reader == "accepted" and trouble is None)
            assert TOKEN not in repr(view)
            assert "do-not-print-this" not in repr(view)
            assert all(TOKEN not in request.path for request in hub.requests)
    assert TOKEN not in caplog.text
    assert "do-not-print-this" not in caplog.text
    for path in tmp_path.rglob("*"):
        if path.is_file():
            assert TOKEN.encode() not in path.read_bytes(), path


def test_what_could_be_a_secret_is_cut_out_of_text() -> None:
    text = f"GET https://cdn.example/x?Signature=abc&Key=1 Bearer {TOKEN} and hf_AbCdEfGh123 s3cret"
    shown = without_secrets(text, "s3cret")
    assert shown == "GET https://cdn.example/x Bearer [token] and [token] [token]"
    assert TOKEN not in repr(Source("https://x", TOKEN))


def test_a_redirect_that_drops_encryption_is_not_followed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Asked over TLS (here: a plain connection that says it is TLS), sent to plain HTTP."""
    with serving(5000) as (hub, repository):
        real = http._connection

        def pretend(parts, headers, timeout):
            return real(parts._replace(scheme="http"), headers, timeout)

        monkeypatch.setattr(http, "_connection", pretend)
        url = hub.endpoint.replace("http:", "https:")
        source = Source(f"{url}/{repository.name}/resolve/main/{BIG}")
        with pytest.raises(TransferError) as caught, get(source, Stop()):
            pass
        assert caught.value.code == "transfer.insecure_redirect"
        assert len(hub.requests) == 1


def test_a_circle_of_redirects_ends() -> None:
    with serving(5000) as (hub, repository):
        location = {"Location": f"/{repository.name}/resolve/main/config.json"}
        hub.trouble = lambda _path: Trouble(status=302, headers=location)
        source = Source(f"{hub.endpoint}/{repository.name}/resolve/main/config.json")
        with pytest.raises(Fault, match="circle"), get(source, Stop()):
            pass
        assert len(hub.requests) <= 10


def test_the_system_proxy_is_used_and_is_not_given_the_hub_token_in_clear(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with serving(5000, readers={TOKEN: "accepted"}) as (hub, _):
        monkeypatch.setenv("http_proxy", hub.endpoint.replace("http://", "http://me:pass%20word@"))
        monkeypatch.delenv("no_proxy", raising=False)
        with get(Source("http://hub.invalid/x/y"), Stop(), timeouts=Timeouts(2, 2)) as answer:
            assert answer.status == 404
        (request,) = hub.requests
        assert request.path == "http://hub.invalid/x/y"
        assert request.headers["proxy-authorization"] == "Basic bWU6cGFzcyB3b3Jk"
        assert "authorization" not in request.headers


def test_an_encrypted_address_goes_through_the_proxy_as_a_tunnel(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The proxy sees the host and its own password; the token is inside the encryption."""
    heard: list[bytes] = []
    with socket.create_server(("127.0.0.1", 0)) as proxy:

        def refuse() -> None:
            line, _ = proxy.accept()
            with line:
                heard.append(line.recv(10_000))
                line.sendall(b"HTTP/1.1 407 Proxy Authentication Required\r\n\r\n")

        thread = threading.Thread(target=refuse)
        thread.start()
        port = proxy.getsockname()[1]
        monkeypatch.setenv("https_proxy", f"http://me:pw@127.0.0.1:{port}")
        monkeypatch.delenv("no_proxy", raising=False)
        source = Source("https://hub.invalid/x", TOKEN)
        with pytest.raises(Fault, match="407"), get(source, Stop(), timeouts=Timeouts(2, 2)):
            pass
        thread.join()
    assert heard[0].startswith(b"CONNECT hub.invalid:443 ")
    assert b"Proxy-Authorization: Basic bWU6cHc=" in heard[0]
    assert TOKEN.encode() not in heard[0]


@pytest.mark.parametrize(
    ("headers", "low", "high"),
    [
        ({"retry-after": "7"}, 7, 7),
        ({"retry-after": "Fri, 01 Jan 2100 00:00:00 GMT"}, 1e9, 1e10),
        ({"retry-after": "Fri, 01 Jan 1999 00:00:00 GMT"}, 0, 0),
        ({"ratelimit": '"api";r=0;t=55'}, 55, 55),
    ],
)
def test_waits_are_read_in_every_form(headers: dict[str, str], low: float, high: float) -> None:
    seconds = seconds_to_wait(headers)
    assert seconds is not None
    assert low <= seconds <= high


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"retry-after": "soon"},
        {"retry-after": "\u00b2"},  # a digit to Python, a number to nobody
        {"retry-after": "9" * 5000},
        {"retry-after": "Fri, 01 Jan 99999999999 00:00:00 GMT"},
        {"ratelimit": "t=x"},
        {"ratelimit": "t=\u00b9"},
    ],
)
def test_no_wait_is_made_up(headers: dict[str, str]) -> None:
    assert seconds_to_wait(headers) is None


@pytest.mark.parametrize(
    "location",
    [
        "http://[::1",
        "http://127.0.0.1:99999/x",
        "http://127.0.0.1:port/x",
        "ftp://127.0.0.1/x",
        "file:///etc/passwd",
    ],
)
def test_a_redirect_to_what_is_no_address_is_refused_in_words(location: str) -> None:
    with serving(5000, readers={TOKEN: "accepted"}) as (hub, repository):
        hub.trouble = lambda _path: Trouble(status=302, headers={"Location": location})
        source = Source(f"{hub.endpoint}/{repository.name}/resolve/main/config.json", TOKEN)
        with pytest.raises(TransferError) as caught, get(source, Stop()):
            pass
        assert caught.value.code in ("transfer.bad_address", "transfer.insecure_redirect")


@pytest.mark.parametrize("host", ["a" * 70 + ".test", "\u00e9..test", "no such host"])
def test_a_redirect_to_a_host_that_cannot_be_is_a_fault_like_an_unknown_one(host: str) -> None:
    with serving(5000) as (hub, repository):
        location = {"Location": f"http://{host}/x"}
        hub.trouble = lambda _path: Trouble(status=302, headers=location)
        source = Source(f"{hub.endpoint}/{repository.name}/resolve/main/config.json")
        with pytest.raises((Fault, TransferError)), get(source, Stop(), timeouts=QUICK.timeouts):
            pass


def test_a_redirect_whose_path_is_not_ascii_is_followed() -> None:
    with serving(5000) as (hub, repository):
        seen: list[str] = []

        def trouble(path: str) -> Trouble | None:
            seen.append(path)
            there = {"Location": f"/{repository.name}/resolve/main/caf\u00e9 \u00fc%20.json?a=b&c"}
            return Trouble(status=302, headers=there) if len(seen) == 1 else None

        hub.trouble = trouble
        source = Source(f"{hub.endpoint}/{repository.name}/resolve/main/config.json")
        with get(source, Stop(), timeouts=QUICK.timeouts) as answer:
            assert answer.status == 404
        assert hub.requests[-1].path.endswith("/caf%E9%20%FC%20.json?a=b&c")


@pytest.mark.parametrize("years", [-30, 30])
def test_a_date_to_wait_for_is_by_the_servers_clock(
    monkeypatch: pytest.MonkeyPatch, years: int
) -> None:
    wrong = time.time() + years * 31_557_600
    monkeypatch.setattr(time, "time", lambda: wrong)
    headers = {
        "date": "Tue, 01 Dec 2026 10:00:00 GMT",
        "retry-after": "Tue, 01 Dec 2026 10:00:07 GMT",
    }
    assert seconds_to_wait(headers) == 7.0


def test_a_networks_own_page_in_the_place_of_a_file_is_not_taken_for_the_file() -> None:
    with serving(5000) as (hub, repository):
        page = Blob(b"<html>Log in to this network</html>" * 40)
        file = remote(BIG, repository.files[BIG])
        repository.files[BIG] = page
        for ignores_range in (False, True):
            hub.trouble = lambda _path, it=ignores_range: Trouble(ignore_range=it)
            with pytest.raises(TransferError) as caught:
                read_range(place_of(hub, repository), file, 0, 1000, Stop(), QUICK)
            assert caught.value.code == "transfer.changed"


def test_odd_numbers_in_headers_are_no_numbers() -> None:
    with serving(5000) as (hub, repository):
        odd = {"Content-Range": "bytes \u00b2-\u00b9/\u00b3", "X-Length": "\u00b2"}
        hub.trouble = lambda _path: Trouble(status=206, headers=odd)
        source = Source(f"{hub.endpoint}/{repository.name}/resolve/main/config.json")
        with get(source, Stop()) as answer:
            assert answer.range is None
            answer.headers["content-length"] = "9" * 5000
            assert answer.length is None


def test_a_place_that_is_no_web_address_is_refused_before_anything_is_asked() -> None:
    for url in ("javascript:alert(1)", "//host/x", "ftp://host/x", "http://[x"):
        with pytest.raises(TransferError) as caught, get(Source(url, TOKEN), Stop()):
            pass
        assert caught.value.code == "transfer.bad_address"
        assert TOKEN not in str(caught.value)
