"""A few bytes of a file on the hub, into memory: small files whole, the heads of large ones.

It knows ranges and a limit. It refuses to read more than it was asked for, whatever the server
sends.
"""

from __future__ import annotations

from app.backend.transfer.faults import Fault, TransferError
from app.backend.transfer.fetch import Place, Policy, failure_of
from app.backend.transfer.files import RemoteFile
from app.backend.transfer.http import get
from app.backend.transfer.stop import Stop

PIECE = 1 << 18
PATIENCE = Policy(tries=3, first_wait=0.5, longest_wait=4.0)


def read_range(
    place: Place, file: RemoteFile, start: int, end: int, stop: Stop, policy: Policy = PATIENCE
) -> bytes:
    """Bytes [start, end) of a file. Raises TransferError, HubError, Interrupted."""
    end = min(end, file.size)
    if start >= end:
        return b""
    failures = 0
    while True:
        try:
            return _once(place, file, start, end, stop, policy)
        except Fault as fault:
            failures += 1
            if failures >= policy.tries:
                raise TransferError(
                    fault.code, fault.message, "Check the connection and try again."
                ) from fault
            backoff = min(policy.first_wait * 2**failures, policy.longest_wait)
            stop.wait(max(backoff, min(fault.wait or 0.0, 10.0)))


def read_file(
    place: Place, file: RemoteFile, most: int, stop: Stop, policy: Policy = PATIENCE
) -> bytes:
    """A whole file of at most `most` bytes, its hash checked. Raises as `read_range`."""
    if file.size > most:
        raise TransferError(
            "transfer.too_large",
            f"{file.path} has {file.size} bytes, far more than such a file has.",
            "Choose another copy of the model.",
        )
    data = read_range(place, file, 0, file.size, stop, policy)
    hasher = file.hasher()
    hasher.update(data)
    if hasher.hexdigest() != file.expected:
        raise TransferError(
            "transfer.wrong_hash",
            f"{file.path} arrived with other bytes than published.",
            "Try again, or on another network.",
        )
    return data


def _once(
    place: Place, file: RemoteFile, start: int, end: int, stop: Stop, policy: Policy
) -> bytes:
    source = place.locate(file)
    with get(source, stop, start=start, end=end, timeouts=policy.timeouts) as answer:
        if answer.status == 206:
            if answer.range is None or answer.range[0] != start:
                raise Fault("transfer.range", "The server sent other bytes than asked for.")
            skip, whole = 0, answer.range[1]
        elif answer.status == 200:
            skip, whole = start, answer.length  # the server ignores ranges
        else:
            raise failure_of(answer, place, source.token is not None)
        if whole not in (None, file.size):  # a network's own page, say: not the model's fault
            raise Fault("transfer.changed", f"Another file came in the place of {file.path}.")
        received = bytearray()
        while len(received) < skip + end - start:
            data = answer.read(min(PIECE, skip + end - start - len(received)))
            stop.check()
            if not data:
                raise Fault("transfer.cut", "The connection was cut.")
            received += data
    return bytes(received[skip:])
