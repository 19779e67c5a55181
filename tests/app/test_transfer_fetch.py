"""One file arrives whole and right, whatever the server and the network do."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import itertools
import random
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from hub_server import Blob, HubServer, Repository, Trouble
from transfers import NAME, QUICK, Seen, leftovers, noise, place_of, remote

from app.backend.hub.access import HubError
from app.backend.transfer import part_file
from app.backend.transfer.faults import Fault, Interrupted, TransferError
from app.backend.transfer.fetch import Policy, fetch
from app.backend.transfer.files import RemoteFile
from app.backend.transfer.http import Timeouts
from app.backend.transfer.stop import Stop

SIZE = 300_001
BIG = "model.safetensors"


@pytest.fixture(scope="module")
def served() -> Iterator[tuple[HubServer, Repository]]:
    files = {BIG: Blob(noise(SIZE), lfs=True), "config.json": Blob(b'{"a": 1}'), "empty": Blob()}
    repository = Repository(NAME, files)
    with HubServer(repository) as hub:
        yield hub, repository


@pytest.fixture
def hub(served: tuple[HubServer, Repository]) -> Iterator[HubServer]:
    served[0].trouble = lambda _path: None
    served[0].requests.clear()
    yield served[0]
    served[0].settle()


@pytest.fixture
def repository(served: tuple[HubServer, Repository]) -> Repository:
    return served[1]


def one(*troubles: Trouble | None):
    """These troubles in turn, and none afterwards."""
    queue = iter(troubles)
    return lambda _path: next(queue, None)


def get(
    hub: HubServer,
    repository: Repository,
    folder: Path,
    path: str = BIG,
    *,
    file: RemoteFile | None = None,
    stop: Stop | None = None,
    policy: Policy = QUICK,
) -> Seen:
    file = file or remote(path, repository.files[path])
    seen = Seen(file.size)
    fetch(place_of(hub, repository), file, folder, stop or Stop(), seen, policy)
    return seen


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.mark.parametrize("path", [BIG, "config.json", "empty"])
def test_a_file_arrives_with_its_bytes_and_nothing_beside_it(
    hub: HubServer, repository: Repository, tmp_path: Path, path: str
) -> None:
    seen = get(hub, repository, tmp_path, path)
    blob = repository.files[path]
    assert (tmp_path / path).read_bytes() == blob.read(0, blob.size)
    assert [p.name for p in tmp_path.iterdir()] == [path]
    assert seen.done == blob.size


def test_200_rounds_of_random_cuts_end_in_the_right_hash(
    hub: HubServer, repository: Repository, tmp_path: Path
) -> None:
    """Each round is cut at random bytes, and stopped and begun again between some of the cuts."""
    choose = random.Random(5)
    expected = repository.files[BIG].sha256
    cuts = 0
    for number in range(200):
        folder = tmp_path / str(number)
        folder.mkdir()
        places = [choose.randrange(SIZE // 2) for _ in range(choose.randrange(1, 5))]
        cuts += len(places)
        hub.trouble = one(*(Trouble(cut_at=place) for place in places))
        few = Policy(tries=choose.choice((1, 6)), first_wait=0.0005, longest_wait=0.001)
        while not (folder / BIG).exists():
            with contextlib.suppress(TransferError):  # its tries are up: begun again
                get(hub, repository, folder, policy=few)
        assert digest(folder / BIG) == expected
        assert leftovers(folder) == []
    assert cuts > 300


def test_no_byte_is_fetched_twice_after_a_cut(
    hub: HubServer, repository: Repository, tmp_path: Path
) -> None:
    hub.trouble = one(Trouble(cut_at=100_000), Trouble(cut_at=1), Trouble(cut_at=50_000))
    seen = get(hub, repository, tmp_path)
    assert seen.from_network == SIZE
    ranges = [r.headers.get("range") for r in hub.file_requests()]
    assert ranges == [None, "bytes=100000-", "bytes=100001-", "bytes=150001-"]


def test_a_resume_hashes_what_it_kept_and_fetches_only_the_rest(
    hub: HubServer, repository: Repository, tmp_path: Path
) -> None:
    hub.trouble = one(Trouble(cut_at=123_456))
    with pytest.raises(TransferError):
        get(hub, repository, tmp_path, policy=Policy(tries=1))
    seen = get(hub, repository, tmp_path)
    assert (seen.from_disk, seen.from_network) == (123_456, SIZE - 123_456)
    assert digest(tmp_path / BIG) == repository.files[BIG].sha256


@pytest.mark.parametrize("damage", ["first byte", "too long", "note gone", "note of another file"])
def test_a_part_that_is_not_what_it_seems_is_never_published(
    hub: HubServer, repository: Repository, tmp_path: Path, damage: str
) -> None:
    hub.trouble = one(Trouble(cut_at=200_000))
    with pytest.raises(TransferError):
        get(hub, repository, tmp_path, policy=Policy(tries=1))
    part, note = tmp_path / f"{BIG}.part", tmp_path / f"{BIG}.part.json"
    if damage == "first byte":
        part.write_bytes(b"\xff" + part.read_bytes()[1:])
    elif damage == "too long":
        part.write_bytes(bytes(SIZE + 1))
    elif damage == "note gone":
        note.unlink()
    else:
        note.write_text(note.read_text().replace(repository.files[BIG].sha256, "0" * 64))
    get(hub, repository, tmp_path)
    assert digest(tmp_path / BIG) == repository.files[BIG].sha256
    assert leftovers(tmp_path) == []


def test_200_for_a_range_starts_again(
    hub: HubServer, repository: Repository, tmp_path: Path
) -> None:
    hub.trouble = one(Trouble(cut_at=100_000), Trouble(ignore_range=True))
    seen = get(hub, repository, tmp_path)
    assert seen.from_network == SIZE + 100_000
    assert seen.done == SIZE
    assert digest(tmp_path / BIG) == repository.files[BIG].sha256


def test_416_starts_again(hub: HubServer, repository: Repository, tmp_path: Path) -> None:
    hub.trouble = one(Trouble(cut_at=100_000), Trouble(status=416))
    get(hub, repository, tmp_path)
    assert [r.headers.get("range") for r in hub.file_requests()] == [None, "bytes=100000-", None]
    assert digest(tmp_path / BIG) == repository.files[BIG].sha256


def test_another_etag_between_two_requests_starts_again(
    hub: HubServer, repository: Repository, tmp_path: Path
) -> None:
    hub.trouble = one(Trouble(cut_at=100_000, etag="one"), Trouble(etag="two"))
    get(hub, repository, tmp_path)
    assert [r.headers.get("range") for r in hub.file_requests()] == [None, "bytes=100000-", None]
    assert digest(tmp_path / BIG) == repository.files[BIG].sha256


def test_a_server_that_never_gives_the_same_etag_twice_still_serves(
    hub: HubServer, repository: Repository, tmp_path: Path
) -> None:
    hub.trouble = one(*(Trouble(cut_at=90_000, etag=f"tag{i}") for i in range(5)))
    seen = get(hub, repository, tmp_path)
    assert seen.from_network == SIZE + 90_000
    assert digest(tmp_path / BIG) == repository.files[BIG].sha256


def test_a_206_that_begins_elsewhere_is_not_glued_on(
    hub: HubServer, repository: Repository, tmp_path: Path
) -> None:
    hub.trouble = one(Trouble(cut_at=100_000), Trouble(shift=7))
    get(hub, repository, tmp_path)
    assert digest(tmp_path / BIG) == repository.files[BIG].sha256


def test_a_file_that_the_hub_replaced_is_refused(
    hub: HubServer, repository: Repository, tmp_path: Path
) -> None:
    stale = RemoteFile(BIG, SIZE, sha256="ab" * 32)
    with pytest.raises(TransferError) as caught:
        get(hub, repository, tmp_path, file=stale)
    assert caught.value.code == "transfer.changed"
    assert not (tmp_path / BIG).exists()


def test_wrong_bytes_of_the_right_size_are_fetched_again_once(
    hub: HubServer, repository: Repository, tmp_path: Path
) -> None:
    hub.trouble = one(Trouble(wrong=True))
    get(hub, repository, tmp_path)
    assert digest(tmp_path / BIG) == repository.files[BIG].sha256


@pytest.mark.parametrize("path", [BIG, "config.json"])
def test_wrong_bytes_are_never_called_a_success(
    hub: HubServer, repository: Repository, tmp_path: Path, path: str
) -> None:
    hub.trouble = lambda _path: Trouble(wrong=True)
    with pytest.raises(TransferError) as caught:
        get(hub, repository, tmp_path, path)
    assert caught.value.code == "transfer.wrong_hash"
    assert path in caught.value.message
    assert not (tmp_path / path).exists()
    assert len(hub.file_requests()) == 2


@pytest.mark.parametrize("status", [500, 502, 503, 504, 408, 429])
def test_a_passing_trouble_of_the_server_is_waited_out(
    hub: HubServer, repository: Repository, tmp_path: Path, status: int
) -> None:
    hub.trouble = one(Trouble(status=status), Trouble(status=status))
    seen = get(hub, repository, tmp_path)
    assert len(seen.waits) == 2
    assert digest(tmp_path / BIG) == repository.files[BIG].sha256


def test_retry_after_is_waited_for(hub: HubServer, repository: Repository, tmp_path: Path) -> None:
    hub.trouble = one(Trouble(status=429, headers={"Retry-After": "1"}))
    begun = time.monotonic()
    seen = get(hub, repository, tmp_path)
    assert time.monotonic() - begun >= 1.0
    assert seen.waits[0][1] >= 1.0


def test_a_wait_of_hours_is_not_sat_out(
    hub: HubServer, repository: Repository, tmp_path: Path
) -> None:
    hub.trouble = one(Trouble(status=429, headers={"Retry-After": "7200"}))
    with pytest.raises(TransferError, match="120 minutes"):
        get(hub, repository, tmp_path)


def test_tries_are_limited_and_the_last_fault_is_said(
    hub: HubServer, repository: Repository, tmp_path: Path
) -> None:
    hub.trouble = lambda _path: Trouble(status=503)
    with pytest.raises(TransferError) as caught:
        get(hub, repository, tmp_path)
    assert caught.value.code == "transfer.server"
    assert "503" in caught.value.message
    assert len(hub.file_requests()) == QUICK.tries


def test_a_stalled_connection_is_noticed_and_tried_again(
    hub: HubServer, repository: Repository, tmp_path: Path
) -> None:
    hub.trouble = one(Trouble(slow=3.0, piece=100_000))
    policy = replace(QUICK, timeouts=Timeouts(silence=0.5))
    seen = get(hub, repository, tmp_path, policy=policy)
    assert "stalled" in seen.waits[0][0]
    assert seen.from_network == SIZE
    assert digest(tmp_path / BIG) == repository.files[BIG].sha256


def test_a_slow_server_is_not_a_stalled_one(
    hub: HubServer, repository: Repository, tmp_path: Path
) -> None:
    hub.trouble = one(Trouble(slow=0.05, piece=30_000))
    assert get(hub, repository, tmp_path).waits == []


def test_an_expired_signed_address_is_asked_for_anew(
    hub: HubServer, repository: Repository, tmp_path: Path
) -> None:
    hub.trouble = one(Trouble(cut_at=5000), Trouble(status=403))
    get(hub, repository, tmp_path)
    asked = [r for r in hub.requests if "/resolve/" in r.path]
    assert len(asked) == 3
    assert digest(tmp_path / BIG) == repository.files[BIG].sha256


def test_a_missing_file_is_not_tried_again(
    hub: HubServer, repository: Repository, tmp_path: Path
) -> None:
    gone = RemoteFile("gone.safetensors", 10, sha256="ab" * 32)
    with pytest.raises(HubError) as caught:
        get(hub, repository, tmp_path, file=gone)
    assert caught.value.code == "hub.file_not_found"
    assert len(hub.requests) == 1


def test_no_network_at_all_is_said(repository: Repository, tmp_path: Path) -> None:
    with HubServer(repository) as ended:
        pass
    with pytest.raises(TransferError) as caught:
        get(ended, repository, tmp_path)
    assert caught.value.code == "transfer.unreachable"


def test_a_stop_is_heard_while_nothing_arrives(
    hub: HubServer, repository: Repository, tmp_path: Path
) -> None:
    hub.trouble = lambda _path: Trouble(slow=0.3, piece=1000)
    stop = Stop()
    patient = Policy(timeouts=Timeouts(silence=30))
    timer = threading.Timer(0.15, stop.set)
    timer.start()
    begun = time.monotonic()
    with pytest.raises(Interrupted):
        get(hub, repository, tmp_path, stop=stop, policy=patient)
    timer.join()
    assert time.monotonic() - begun < 5, "it waited for the silence to end"
    assert 0 < (tmp_path / f"{BIG}.part").stat().st_size < SIZE


def test_a_stop_is_heard_while_waiting_to_try_again(
    hub: HubServer, repository: Repository, tmp_path: Path
) -> None:
    hub.trouble = lambda _path: Trouble(status=503, headers={"Retry-After": "60"})
    stop = Stop()
    timer = threading.Timer(0.1, stop.set)
    timer.start()
    begun = time.monotonic()
    with pytest.raises(Interrupted):
        get(hub, repository, tmp_path, stop=stop)
    timer.join()
    assert time.monotonic() - begun < 10


def test_a_full_disk_is_said_and_a_resume_goes_on(
    hub: HubServer, repository: Repository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk takes a part of a write and then no more, as a full one does."""
    real, budget = part_file.write_all, itertools.count()

    def full(stream, data: bytes) -> None:
        if next(budget) >= 1:
            stream.write(data[: len(data) // 2])
            raise OSError(errno.ENOSPC, "No space left on device")
        real(stream, data)

    monkeypatch.setattr(part_file, "write_all", full)
    with pytest.raises(TransferError) as caught:
        get(hub, repository, tmp_path)
    assert caught.value.code == "transfer.disk_full"
    assert BIG in caught.value.message
    monkeypatch.setattr(part_file, "write_all", real)
    seen = get(hub, repository, tmp_path)
    assert seen.from_disk > 0
    assert digest(tmp_path / BIG) == repository.files[BIG].sha256


def test_an_error_that_dropped_the_bytes_does_not_say_they_are_kept() -> None:
    fault = Fault("transfer.cut", "Cut.", restart=True).final(3)
    assert "Nothing of this file is kept" in fault.action
