"""One file fetched whole: ranged, tried again, and verified before it gets its name.

It knows which answers mean go on, start again, try later or give up. It refuses to know queues and
models.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, Protocol

from app.backend.hub.access import refused
from app.backend.transfer.faults import Fault, TransferError
from app.backend.transfer.files import RemoteFile
from app.backend.transfer.http import Answer, Source, Timeouts, get, plain_etag, seconds_to_wait
from app.backend.transfer.part_file import PartFile
from app.backend.transfer.stop import Stop

BUFFER = 1 << 18


@dataclass(frozen=True)
class Policy:
    """How patient a download is.

    tries: attempts in a row that gain no byte. refetches: times a file whose hash is wrong is
    fetched afresh. first_wait, longest_wait: seconds of back-off, doubled from one to the other.
    longest_asked: the longest Retry-After that is waited for.
    """

    tries: int = 6
    refetches: int = 1
    first_wait: float = 1.0
    longest_wait: float = 30.0
    longest_asked: float = 600.0
    timeouts: Timeouts = field(default_factory=Timeouts)


class Listener(Protocol):
    """Told of one file's progress, on the thread that fetches it. Must return at once."""

    def kept(self, count: int) -> None:
        """Bytes of an earlier run that were hashed again."""
        ...

    def received(self, count: int) -> None:
        """Bytes that came from the network and were written."""
        ...

    def dropped(self, count: int) -> None:
        """Bytes counted before that turned out to be of no use."""
        ...

    def waiting(self, reason: str, seconds: float) -> None:
        """An attempt failed; the next one begins after `seconds`."""
        ...


@dataclass(frozen=True)
class Place:
    """Where a file comes from. locate: the address and the token, asked anew at every attempt, so
    that a token entered meanwhile counts. repo_id, endpoint: for errors."""

    repo_id: str
    endpoint: str
    locate: Callable[[RemoteFile], Source]


def fetch(
    place: Place, file: RemoteFile, folder: Path, stop: Stop, listener: Listener, policy: Policy
) -> None:
    """Leaves `folder`/`file.path` with the right bytes. Raises TransferError, HubError,
    Interrupted; what was received stays in the part file then."""
    part = PartFile(folder, file, place.locate(file))
    if part.is_done:
        listener.kept(file.size)
        return
    try:
        _Fetching(place, part, stop, listener, policy).run()
    finally:
        part.close()


class _Fetching:
    def __init__(
        self, place: Place, part: PartFile, stop: Stop, listener: Listener, policy: Policy
    ) -> None:
        self.place, self.part, self.stop = place, part, stop
        self.listener, self.policy = listener, policy
        self.file = part.file
        self.tag_changed = False

    def run(self) -> None:
        failures = refetches = 0
        while True:
            before = self.part.position
            try:
                self._open()
                before = self.part.position
                if before < self.file.size:
                    self._receive()
                if self.part.is_right:
                    self.part.publish()
                    return
                refetches += 1
                self._restart()
                if refetches > self.policy.refetches:
                    raise self._wrong_bytes()
            except Fault as fault:
                gained = self.part.position > before
                if fault.restart:
                    self._restart()
                failures = 1 if gained and not fault.restart else failures + 1
                if failures >= self.policy.tries:
                    raise fault.final(failures) from fault
                self._wait(fault, failures)

    def _open(self) -> None:
        def each(count: int) -> None:
            self.stop.check()
            self.listener.kept(count)

        self.part.open(each)

    def _receive(self) -> None:
        """One request and its body."""
        start = self.part.position
        source = self.place.locate(self.file)
        with get(source, self.stop, start=start, timeouts=self.policy.timeouts) as answer:
            self._judge(answer, start, source.token is not None)
            if answer.status == 200 and start:  # the server ignores ranges: all of it again
                self._restart()
            self.part.note_etag(answer.etag)
            while self.part.position < self.file.size:
                data = answer.read(min(BUFFER, self.file.size - self.part.position))
                self.stop.check()
                if not data:
                    raise Fault(
                        "transfer.cut",
                        f"The connection ended {self.file.size - self.part.position} bytes early.",
                    )
                self.part.append(data)
                self.listener.received(len(data))

    def _judge(self, answer: Answer, start: int, has_token: bool) -> None:
        """Returns when the body can be used from `start` on (206) or from 0 (200)."""
        linked = plain_etag(answer.linked.get("x-linked-etag", ""))
        other = self.file.sha256 and len(linked) == 64 and linked != self.file.sha256
        if other and answer.status in (200, 206):
            raise self._changed()
        if answer.status == 200:
            if answer.length not in (None, self.file.size):
                raise self._changed()
        elif answer.status == 206:
            found = answer.range
            if found is None or found[0] != start:
                raise Fault("transfer.range", "The server sent other bytes than asked for.")
            if found[1] not in (None, self.file.size):
                raise self._changed()
            if answer.etag and self.part.etag not in ("", answer.etag) and not self.tag_changed:
                self.tag_changed = True  # once: some servers never give the same tag twice
                raise self._changed()
        else:
            raise failure_of(answer, self.place, has_token)

    def _restart(self) -> None:
        self.listener.dropped(self.part.position)
        self.part.restart()

    def _wait(self, fault: Fault, failures: int) -> None:
        backoff = min(self.policy.first_wait * 2 ** (failures - 1), self.policy.longest_wait)
        seconds = backoff * random.uniform(0.75, 1.25)
        if fault.wait is not None:
            if fault.wait > self.policy.longest_asked:
                raise TransferError(
                    fault.code,
                    f"{fault.message} It asks to wait {fault.wait / 60:.0f} minutes.",
                    "Resume the download later; what was received is kept.",
                )
            seconds = max(fault.wait, seconds)
        self.listener.waiting(fault.message, seconds)
        self.stop.wait(seconds)

    def _changed(self) -> Fault:
        return Fault(
            "transfer.changed",
            f"The hub now sends another {self.file.path} than its list says.",
            restart=True,
        )

    def _wrong_bytes(self) -> TransferError:
        kind: Literal["SHA-256", "git hash"] = "SHA-256" if self.file.sha256 else "git hash"
        return TransferError(
            "transfer.wrong_hash",
            f"{self.file.path} arrived with the right size but other bytes than published: its"
            f" {kind} differs, {self.policy.refetches + 1} times in a row.",
            "Something between here and the hub changes files (a proxy, a bad disk or memory)."
            " Try another network or disk; nothing of this file was kept.",
        )


def failure_of(answer: Answer, place: Place, has_token: bool) -> Exception:
    """What to raise for a status that brings no bytes: a Fault where another try may help."""
    status = answer.status
    if status == 416:
        return Fault("transfer.range", "The server has no such range.", restart=True)
    if status == 429:
        asked = seconds_to_wait(answer.headers)
        return Fault("transfer.too_many", "The hub asks for fewer requests.", wait=asked)
    if status in (408, 425) or status >= 500:
        message = f"The server has a fault of its own (status {status})."
        return Fault("transfer.server", message, wait=seconds_to_wait(answer.headers))
    if not answer.same_origin:  # a signed address that ran out: the next try gets a new one
        return Fault("transfer.expired", f"The file's address was refused (status {status}).")
    return refused(
        status,
        place.repo_id,
        error_code=answer.headers.get("x-error-code", ""),
        said=answer.headers.get("x-error-message", ""),
        has_token=has_token,
        endpoint=place.endpoint,
    )
