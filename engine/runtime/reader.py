"""Reads a running reply: a thread that drains the trace ring and the log of ended blocks while the
graph runs, in the order things happened.

Knows the mailbox and that the ring is overwritten: what could not be read in time is counted, never
guessed. Decides nothing about the reply; passes the host's stop on to the device.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
from torch import Tensor

from engine.errors import RuntimeFailure
from engine.runtime.backend import Backend, Pending
from engine.runtime.conditional import Mailbox
from engine.runtime.pieces import ReplyPieces
from engine.runtime.reply import ReplyState, entry_steps
from engine.runtime.ring import StepRecord, TraceRing
from engine.runtime.watch import Watch, slot_words

# Seconds between looks. Each takes the interpreter's lock from whoever computes, so a long reply is
# looked at less often; a screen shows 30 pictures a second.
POLL, LONGEST_POLL = 0.0005, 0.004
PATIENCE = 0.03  # of the time the reply has taken so far
BATCH = 32  # records brought by one copy, at most
COPIED_WORDS = 2**20  # int32 words of one copy, unless a single record has more


@dataclass(frozen=True)
class Dropped:
    """So many records in a row were overwritten before they could be read."""

    count: int


@dataclass(frozen=True)
class BlockEntry:
    """A log entry (`ReplyState.block_ends` reads it), and when it was written, in device ns."""

    words: npt.NDArray[np.int32]
    time: int


Item = StepRecord | Dropped | BlockEntry


class ReplyReader:
    """Iterates over what a launched reply does until it is over. Raises what the device raised.

    record: False leaves the ring alone; blocks are read all the same. watch: the ring beside, read
    with it; what has left either of the two is dropped. `join` after the iteration.
    One thread waits for the end and wakes the other, which looks now and then until it is woken; so
    no look asks the driver anything.
    """

    def __init__(
        self,
        backend: Backend,
        ring: TraceRing,
        reply: ReplyState,
        pending: Pending,
        stop: threading.Event | None,
        record: bool,
        watch: Watch | None = None,
    ) -> None:
        self.backend, self.ring, self.reply, self.watch = backend, ring, reply, watch
        self._slots = ring.slots if watch is None else min(ring.slots, watch.slots)
        self.pending, self.stop, self.record = pending, stop, record
        # What one look found; an error is the last of all.
        self._looks: queue.SimpleQueue[list[Item] | BaseException | None] = queue.SimpleQueue()
        self._found: list[Item] = []
        self._began = time.perf_counter()
        self._steps = 0  # records handled
        self._blocks = 0  # log entries handled
        self._over = threading.Event()
        self._error: BaseException | None = None
        self._threads = [
            threading.Thread(target=work, name=f"reply-{name}", daemon=True)
            for name, work in (("end", self._wait), ("reader", self._run))
        ]
        for thread in self._threads:
            thread.start()

    def __iter__(self) -> Iterator[Item]:
        while (found := self._looks.get()) is not None:
            if isinstance(found, BaseException):
                raise _in_words(found) from found
            yield from found

    def join(self) -> None:
        for thread in self._threads:
            thread.join()

    def _wait(self) -> None:
        try:
            self.pending.wait()
        except BaseException as error:  # noqa: BLE001 (a thread's root: the consumer raises it)
            self._error = error
        finally:
            self._over.set()

    def _run(self) -> None:
        try:
            while not self._look():
                taken = time.perf_counter() - self._began
                self._over.wait(min(max(POLL, PATIENCE * taken), LONGEST_POLL))
            self._looks.put(self._error)
        except BaseException as error:  # noqa: BLE001 (a thread's root: the consumer raises it)
            self._looks.put(error)

    def _look(self) -> bool:
        """One look; whether the reply is over and all of it has been read."""
        if self.stop is not None and self.stop.is_set():
            self.backend.mailbox[Mailbox.STOP] = 1
        over = self._over.is_set()  # before the counters, so that nothing comes after them
        if over and self._error is not None:
            return True
        blocks = int(self.backend.mailbox[Mailbox.BLOCKS])
        steps = int(self.backend.mailbox[Mailbox.STEPS])
        while self._blocks < blocks:
            words = self.backend.fetch(self.reply.log[self._blocks])
            self._read_steps(entry_steps(words))
            self._found.append(BlockEntry(words, int(words[:2].view(np.int64)[0])))
            self._blocks += 1
        self._read_steps(steps)
        if self._found:
            self._looks.put(self._found)
            self._found = []
        return over

    def _read_steps(self, until: int) -> None:
        if not self.record:
            self._steps = max(self._steps, until)
        while self._steps < until:
            self._drop_before(min(self._oldest(), until))
            count = min(until - self._steps, self._together())
            if count <= 0:
                return
            copied = self._copy(self.ring.records, count)
            kept = None if self.watch is None else self._copy(self.watch.records, count)
            oldest = self._oldest()  # what may have been overwritten while it was copied
            first, end = self._steps, self._steps + count
            self._drop_before(min(oldest, end))
            whole = self._steps - first
            found = self.ring.read_all(copied[whole:])
            if kept is not None:
                slots = zip(found, kept[whole:], strict=True)
                found = [replace(record, kept=slot) for record, slot in slots]
            self._found += found
            self._steps = end
            self._drop_before(min(oldest, until))

    def _together(self) -> int:
        """Steps that one copy of each ring may bring: neither wraps around, nor overflows what
        copies land in."""
        rings = [(self.ring.slots, self.ring.words)]
        if self.watch is not None:
            rings.append((self.watch.slots, self.watch.words))
        room = max(1, COPIED_WORDS // max(words for _, words in rings))
        return min(BATCH, room, *(slots - self._steps % slots for slots, _ in rings))

    def _copy(self, records: Tensor, count: int) -> npt.NDArray[np.int32]:
        slot = self._steps % len(records)
        return self.backend.fetch(records[slot : slot + count])

    def _oldest(self) -> int:
        """The first step whose record cannot have been touched again: the step that is running now
        may be writing into the slot of the one before."""
        return int(self.backend.mailbox[Mailbox.STEPS]) - self._slots + 1

    def _drop_before(self, index: int) -> None:
        if index > self._steps:
            self._found.append(Dropped(index - self._steps))
            self._steps = index


def staging_words(pieces: ReplyPieces) -> int:
    """int32 words that the largest copy of a reader brings."""
    vocab = pieces.program.model.spec.vocab_size
    kept = slot_words(pieces.reply.block_length, vocab, full=True)
    return max(COPIED_WORDS, pieces.ring.words, pieces.reply.log.shape[1], kept)


def _in_words(error: BaseException) -> BaseException:
    """torch and the driver raise RuntimeError for whatever happened on the device."""
    if not isinstance(error, RuntimeError):
        return error
    return RuntimeFailure(
        "runtime.device_failed",
        f"The GPU failed while the answer was being written: {error}",
        "What was written so far is kept. Load the model again; if that fails, restart the app.",
    )
