"""The loop kernels of a reply that runs as one graph: counters, caps, the stop flag, and the trace
ring's reader.

Knows the words the device and the host share, and the layout of a trace record;
`cuda/graph_loop.cu` must agree. Knows nothing of how the graph is built (that is the runtime's) nor
of models. Importing and reading records needs no GPU.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum
from typing import TypeVar

import numpy as np
import numpy.typing as npt


class Control(IntEnum):
    """Words of the control block, device int32 [16]. The runtime sets the caps and zeroes the rest
    before a launch."""

    BLOCK = 0  # blocks finished
    STEP = 1  # steps taken in this block
    FORWARDS = 2
    STEP_CAP = 3
    BLOCK_CAP = 4
    ENDED_BY = 5  # `Ended`
    RECORDS = 6  # trace records made, dropped ones included
    KEPT = 7  # of these, in the ring
    KNOWN_READ = 8  # what the device last knew of Host.READ
    WORDS = 16


class Host(IntEnum):
    """Words in pinned host memory, int32 [16]. STOP and READ are the host's to write; the rest are
    the device's."""

    STOP = 0
    WRITTEN = 1  # records in the ring since the start
    READ = 2
    DROPPED = 3
    FORWARDS = 4
    BLOCKS = 5
    ENDED_BY = 6
    WORDS = 16


class Ended(IntEnum):
    """Why the loop is over."""

    RUNNING = 0
    COMPLETE = 1  # every row's reply is complete
    STOPPED = 2
    CAPPED = 3  # the block cap
    NONFINITE = 4


HEADER_WORDS = 8
Word = TypeVar("Word", np.int32, np.float32)


@dataclass(frozen=True)
class RecordLayout:
    """Size of one trace record: B rows, L positions, k best tokens each (0: not captured)."""

    rows: int
    length: int
    top: int = 0

    @property
    def bytes(self) -> int:
        positions = self.rows * self.length
        used = 4 * HEADER_WORDS + positions * (4 * 4 + 1 + 8 * self.top)
        return -(-used // 16) * 16


@dataclass(frozen=True, eq=False)
class Record:
    """One step, copied out of the ring. Arrays are [B, L] (top_* [B, L, k]).

    sequence: number of the step's record since the start; a gap is what was dropped. nanoseconds:
    the device's clock at the end of the step.
    """

    sequence: int
    block: int
    step: int
    forwards: int
    nanoseconds: int
    ids: npt.NDArray[np.int32]
    edited_from: npt.NDArray[np.int32]
    confidence: npt.NDArray[np.float32]
    entropy: npt.NDArray[np.float32]
    state: npt.NDArray[np.uint8]
    top_ids: npt.NDArray[np.int32]
    top_prob: npt.NDArray[np.float32]


def parse_record(data: npt.NDArray[np.uint8], layout: RecordLayout) -> Record:
    """data uint8 [layout.bytes] -> a record that owns its arrays."""
    data = data.copy()
    header = data[: 4 * HEADER_WORDS].view(np.uint32).tolist()
    grid, best = (layout.rows, layout.length), (layout.rows, layout.length, layout.top)
    at = 4 * HEADER_WORDS

    def words(kind: type[Word], shape: tuple[int, ...]) -> npt.NDArray[Word]:
        nonlocal at
        size = 4 * int(np.prod(shape))
        part = data[at : at + size].view(kind).reshape(shape)
        at += size
        return part

    return Record(
        sequence=header[0],
        block=header[1],
        step=header[2],
        forwards=header[3],
        nanoseconds=header[4] | header[5] << 32,
        ids=words(np.int32, grid),
        edited_from=words(np.int32, grid),
        confidence=words(np.float32, grid),
        entropy=words(np.float32, grid),
        top_ids=words(np.int32, best),
        top_prob=words(np.float32, best),
        state=data[at : at + layout.rows * layout.length].reshape(grid),
    )


def drain(
    ring: npt.NDArray[np.uint8], host: npt.NDArray[np.int32], layout: RecordLayout
) -> Iterator[Record]:
    """Yields what the device has written since the last call, oldest first, and makes room for
    more.

    ring uint8 [capacity (a power of two), layout.bytes] and host int32 [16] are pinned memory that
    the device writes. A record's place is given back only after it has been copied. Call from one
    thread.
    """
    capacity = ring.shape[0]
    while True:
        read = int(host[Host.READ])
        if read == int(host[Host.WRITTEN]):
            return
        record = parse_record(ring[(read & 0xFFFFFFFF) % capacity], layout)
        host[Host.READ] = np.uint32((read + 1) & 0xFFFFFFFF).astype(np.int32)
        yield record
