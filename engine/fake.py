"""A scripted engine behind the same protocol as the real one: any text, any speed, any failure.

It knows the shape of a diffusion reply (blocks, drafts that firm up, commits, edits, a stop token)
and plays it back deterministically, so that a window can be driven without torch, weights or a GPU.
It refuses to know any maths: the confidences are a ramp, the wrong guesses come from a fixed list,
and nothing here is ever a measurement of a model.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from engine.errors import RequestError, RuntimeFailure, UnblurError
from engine.protocol import Engine, ProgressCallback
from engine.trace import Fork, Trace, TraceHeader, TraceParent
from engine.trace.attribution import Attribution, Reach, step_input
from engine.trace.fork import EVERYWHERE, check_same, parent_of
from engine.types import (
    BlockFinished,
    Capture,
    DecodeSettings,
    Event,
    Finished,
    GenerateRequest,
    GenerationStats,
    LoadProgress,
    Message,
    ModelInfo,
    Started,
    StepTaken,
    StopReason,
    TokenState,
)

VOCABULARY = 50_000  # more than any script needs
MASK_PIECE = "<|mask|>"
STOP_PIECE = "<|end|>"
WRONG_GUESSES = (" the", " and", " of", "1", " is", " so", ",", " a", "7", " it", " then", " to")
DEFAULT_ANSWER = (
    "17 × 24 is the same as 17 × 20 plus 17 × 4.\n\n"
    "- 17 × 20 = 340\n"
    "- 17 × 4 = 68\n\n"
    "So 17 × 24 = 340 + 68 = **408**, and 408 + 9 = **417**.\n\n"
    "The working can be checked backwards: 417 - 9 = 408, and 408 / 24 = 17. Both steps hold, "
    "so the answer is 417."
)
Ids = npt.NDArray[np.int32]
States = npt.NDArray[np.uint8]
Shares = npt.NDArray[np.float32]
_PIECE = re.compile(r" ?[A-Za-z]+|\d|\s|[^\sA-Za-z\d]")


@dataclass(frozen=True)
class FakeScript:
    """What the fake engine plays.

    answers: exact last user message -> answer; `default_answer` for any other prompt.
    steps_per_block: forwards per block. edits_per_block: tokens committed wrong and edited one step
    later. seconds_per_step: pause in each forward (0 = as fast as it can). tokens_per_second:
    overrides seconds_per_step with a paced rate. fail_at: (block, step) at which `error` is raised
    instead of a step. error: any exception, typed or not. context: longest templated prompt plus
    answer, in tokens.
    """

    answers: Mapping[str, str] = field(default_factory=dict)
    default_answer: str = DEFAULT_ANSWER
    block_length: int = 32
    steps_per_block: int = 8
    edits_per_block: int = 1
    seconds_per_step: float = 0.0
    tokens_per_second: float | None = None
    fail_at: tuple[int, int] | None = None
    error: Exception = field(
        default_factory=lambda: RuntimeFailure(
            "runtime.non_finite_logits",
            "The model produced numbers that are not finite in block 1.",
            "Try again. If it happens twice, the checkpoint is damaged.",
        )
    )
    context: int = 2048
    name: str = "scripted demo"


class FakeEngine:
    """Implements `engine.protocol.Engine`. `steps_taken` counts every forward ever made, for tests
    of Stop."""

    def __init__(self, script: FakeScript | None = None) -> None:
        self.script = script or FakeScript()
        self.steps_taken = 0
        self.requests: list[GenerateRequest] = []
        self.unloaded = False
        self._pieces: list[str] = [MASK_PIECE, STOP_PIECE, *WRONG_GUESSES]
        self._ids: dict[str, int] = {piece: index for index, piece in enumerate(self._pieces)}

    @property
    def info(self) -> ModelInfo:
        return ModelInfo(
            name=self.script.name,
            family="scripted",
            path="",
            parameters=0,
            quantisation="none",
            context=self.script.context,
            block_length=self.script.block_length,
            decoding="llada2.1",
            device="cpu",
            runtime="scripted, no maths",
            weight_bytes=0,
            mask_id=0,
            stop_ids=(1,),
            defaults=DecodeSettings(),
            notes=("A scripted engine: it plays back text and runs no model.",),
        )

    def encode(self, text: str) -> list[int]:
        """Ids of `text`, growing the vocabulary as needed; `decode` gives the text back exactly."""
        ids: list[int] = []
        for piece in _PIECE.findall(text):
            if piece not in self._ids:
                self._ids[piece] = len(self._pieces)
                self._pieces.append(piece)
            ids.append(self._ids[piece])
        return ids

    def count_tokens(self, messages: Sequence[Message]) -> int:
        return len(self._templated(messages))

    def _templated(self, messages: Sequence[Message]) -> list[int]:
        """Ids of the prompt: each message after its role in angle brackets."""
        text = "".join(f"<{message.role}>{message.content}" for message in messages)
        return self.encode(text + "<assistant>")

    def decode(self, ids: Sequence[int]) -> str:
        return "".join(self._pieces[i] for i in ids if i > 1)

    def pieces(self, ids: Sequence[int]) -> tuple[str, ...]:
        known = len(self._pieces)
        return tuple(self._pieces[i] if i < known else f"<unused {i}>" for i in ids)

    def unload(self) -> None:
        self.unloaded = True

    def generate(
        self, request: GenerateRequest, stop: threading.Event | None = None
    ) -> Iterator[Event]:
        self.requests.append(request)
        play = self._reply(request)
        yield play.started()
        yield from play.blocks(stop or threading.Event())

    def fork(self, fork: Fork, stop: threading.Event | None = None) -> Iterator[Event]:
        """The script once more. A forced token stands where it was forced, one that was taken back
        is a draft for two steps, a banned one gives way to the script's next wrong guess; settings
        change nothing, as in any scripted reply."""
        parent = parent_of(fork)
        header = fork.trace.header
        request = GenerateRequest(
            header.messages, header.max_new_tokens, header.settings, fork.capture
        )
        play = self._reply(request)
        play.changes = (*header.ancestry, parent)
        yield play.started()
        for event in play.blocks(stop or threading.Event()):
            if isinstance(event, StepTaken):
                check_same(fork, event)
            yield event

    def trace_header(self, request: GenerateRequest) -> TraceHeader:
        info, capture = self.info, request.capture
        return TraceHeader(
            model_name=info.name,
            model_family=info.family,
            quantisation=info.quantisation,
            decoding=info.decoding,
            runtime=info.runtime,
            device=info.device,
            messages=request.messages,
            prompt_ids=tuple(self._check(request)),
            settings=request.settings or info.defaults,
            max_new_tokens=request.max_new_tokens,
            mask_id=info.mask_id,
            stop_ids=info.stop_ids,
            vocab_size=VOCABULARY,
            block_length=info.block_length,
            capture=capture.level,
            top_k=_candidates(capture),
        )

    def attribute(
        self,
        trace: Trace,
        step: int,
        position: int,
        reach: Reach = "near",
        stop: threading.Event | None = None,
    ) -> Attribution:
        """Scripted: the token before adds a half of the confidence, each one further on half of
        that, every third speaks against it; of the step's own block, whatever the reach."""
        if stop is not None and stop.is_set():
            raise RequestError("request.stopped", "The question was stopped.", "Ask again.")
        asked = step_input(trace, step, position)
        column = position - asked.start
        base = float(trace.confidence[step, column])
        places = np.flatnonzero(asked.settled & ~asked.given)
        places = places[places != column]
        away = np.abs(places - column)
        effect = base / 2.0**away * np.where(places % 3 == 2, -0.3, 1.0)
        return Attribution(
            step=step,
            position=position,
            token=int(trace.ids[step, column]),
            confidence=base,
            positions=(asked.start + places).astype(np.int32),
            tokens=asked.canvas[places].astype(np.int32),
            without=np.clip(base - effect, 0, 1).astype(np.float32),
        )

    def _reply(self, request: GenerateRequest) -> _Reply:
        prompt_ids = self._check(request)
        prompt = request.messages[-1].content
        answer = [*self.encode(self.script.answers.get(prompt, self.script.default_answer)), 1]
        return _Reply(self, answer, prompt_ids, request)

    def _check(self, request: GenerateRequest) -> list[int]:
        if not request.messages or not request.messages[-1].content.strip():
            raise RequestError(
                "request.empty_prompt", "The message is empty.", "Write something to send."
            )
        prompt_ids = self._templated(request.messages)
        if len(prompt_ids) >= self.script.context:
            raise RequestError(
                "request.too_long",
                f"The prompt is {len(prompt_ids):,} tokens; this model reads "
                f"{self.script.context:,} at most.",
                "Shorten the prompt, or start a new chat.",
            )
        return prompt_ids


class _Reply:
    """One reply being played: where its blocks lie and what each step shows."""

    def __init__(
        self, engine: FakeEngine, answer: list[int], prompt_ids: list[int], request: GenerateRequest
    ) -> None:
        self.engine = engine
        self.script = engine.script
        self.changes: tuple[TraceParent, ...] = ()
        self.candidates = _candidates(request.capture)
        self.cut = len(answer) > request.max_new_tokens
        self.answer = answer[: request.max_new_tokens]
        self.prompt_tokens = len(prompt_ids)
        length = self.script.block_length
        self.first = self.prompt_tokens // length * length
        self.overlap = self.prompt_tokens - self.first
        self.prompt_tail = prompt_ids[self.first :]
        self.count = -(-(self.overlap + len(self.answer)) // length)
        self.forwards = 0
        self.first_block_seconds = 0.0
        self.begun = time.perf_counter()

    def started(self) -> Started:
        return Started(
            prompt_tokens=self.prompt_tokens,
            block_length=self.script.block_length,
            first_block_start=self.first,
            max_blocks=self.count,
            prefill_seconds=0.0,
            path=self.engine.info.runtime,
        )

    def blocks(self, stop: threading.Event) -> Iterator[Event]:
        kept = 0
        for block in range(self.count):
            for step in range(self.script.steps_per_block):
                if stop.is_set():
                    yield self._finished("stopped", kept, block)
                    return
                yield self._step(block, step)
            kept = min(len(self.answer), (block + 1) * self.script.block_length - self.overlap)
            if block == 0:
                self.first_block_seconds = self._seconds()
            yield BlockFinished(
                block=block,
                block_start=self.first + block * self.script.block_length,
                ids=self._final(block),
                converged=True,
                text=self.engine.decode(self.answer[:kept]),
                seconds=self._seconds(),
            )
        yield self._finished("length" if self.cut else "stop_token", kept, self.count)

    def _step(self, block: int, step: int) -> StepTaken:
        if self.script.fail_at == (block, step):
            raise self.script.error
        self._wait(block, step)
        self.engine.steps_taken += 1
        self.forwards += 1
        self._change(block, step)
        ids, state, confidence, edited_from = self._canvas(block, step)
        self._take_back(block, step, ids, state, confidence)
        top_ids, top_p = self._top(ids, state, confidence)
        return StepTaken(
            block=block,
            step=step,
            block_start=self.first + block * self.script.block_length,
            forwards=self.forwards,
            ids=ids,
            state=state,
            confidence=confidence,
            entropy=((1.0 - confidence) * 3.0).astype(np.float32),
            edited_from=edited_from,
            seconds=self._seconds(),
            top_ids=top_ids,
            top_p=top_p,
        )

    def _change(self, block: int, step: int) -> None:
        """Puts what is forced from this step on into the answer, and takes what is banned out."""
        start = self.first + block * self.script.block_length
        for made in self.changes:
            if (made.block_start, made.block_step) != (start, step):
                continue
            for position, token in made.change.force:
                self._say(position, token)
            for position, token in made.change.ban:
                places = range(len(self.answer))
                if position != EVERYWHERE:
                    places = [position - self.prompt_tokens]
                for place in places:
                    if 0 <= place < len(self.answer) and self.answer[place] == token:
                        self.answer[place] = 2 + (token - 1) % len(WRONG_GUESSES)

    def _say(self, position: int, token: int) -> None:
        place = position - self.prompt_tokens
        if 0 <= place < len(self.answer):
            self.answer[place] = token

    def _take_back(
        self, block: int, step: int, ids: Ids, state: States, confidence: Shares
    ) -> None:
        """Makes drafts of positions that were taken back in this step or the one before."""
        start = self.first + block * self.script.block_length
        for made in self.changes:
            if made.block_start == start and made.block_step in (step, step - 1):
                for position in made.change.mask:
                    i = position - start
                    ids[i], state[i] = 2 + i % len(WRONG_GUESSES), TokenState.DRAFT
                    confidence[i] = 0.4

    def _top(self, ids: Ids, state: States, confidence: Shares) -> tuple[Ids | None, Shares | None]:
        """The token shown and the script's wrong guesses, each half as likely as the one before."""
        if not self.candidates:
            return None, None
        k = self.candidates
        top_ids = np.full((len(ids), k), -1, dtype=np.int32)
        top_p = np.full((len(ids), k), np.nan, dtype=np.float32)
        judged = state != TokenState.PROMPT
        top_ids[judged, 0] = ids[judged]
        top_p[judged, 0] = confidence[judged]
        for rank in range(1, k):
            guess = 2 + (ids[judged] + rank - 2) % len(WRONG_GUESSES)  # never the token itself
            top_ids[judged, rank] = guess
            top_p[judged, rank] = np.minimum(1 - confidence[judged], confidence[judged]) / 2**rank
        return top_ids, top_p

    def _wait(self, block: int, step: int) -> None:
        if self.script.tokens_per_second is None:
            time.sleep(self.script.seconds_per_step)
            return
        done = (block + (step + 1) / self.script.steps_per_block) * self.script.block_length
        time.sleep(
            max(0.0, self.begun + done / self.script.tokens_per_second - time.perf_counter())
        )

    def _final(self, block: int) -> np.ndarray:
        """Ids of the finished block, int32 [block_length]: prompt, answer, then stop tokens."""
        length = self.script.block_length
        row = np.full(length, 1, dtype=np.int32)
        begin = block * length - self.overlap
        for i in range(length):
            if 0 <= begin + i < len(self.answer):
                row[i] = self.answer[begin + i]
            elif begin + i < 0:
                row[i] = self.prompt_tail[i]
        return row

    def _canvas(
        self, block: int, step: int
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """(ids, state, confidence, edited_from), each [block_length], after `step`."""
        length, steps = self.script.block_length, self.script.steps_per_block
        ids = self._final(block)
        state = np.full(length, TokenState.DRAFT, dtype=np.uint8)
        confidence = np.zeros(length, dtype=np.float32)
        edited_from = np.full(length, -1, dtype=np.int32)
        for i in range(length):
            if block == 0 and i < self.overlap:
                state[i], confidence[i] = TokenState.PROMPT, np.nan
                continue
            due = _due(block, i, length, steps)
            wrong = 2 + (i * 7 + block * 3 + step // 3) % len(WRONG_GUESSES)
            edited = self._is_edited(block, i) and due + 1 < steps
            confidence[i] = min(0.99, 0.25 + 0.7 * (step + 1) / (due + 1))
            if step < due - 1:
                ids[i] = wrong
            if step >= due:
                state[i] = TokenState.COMMITTED
                if edited and step == due:
                    ids[i] = wrong
                elif edited:
                    state[i] = TokenState.EDITED
                    if step == due + 1:
                        edited_from[i] = 2 + (i * 7 + block * 3 + due // 3) % len(WRONG_GUESSES)
        return ids, state, confidence, edited_from

    def _is_edited(self, block: int, i: int) -> bool:
        first = self.overlap if block == 0 else 0
        spacing = max(1, (self.script.block_length - first) // (self.script.edits_per_block + 1))
        at = i - first
        return at > 0 and at % spacing == 0 and at // spacing <= self.script.edits_per_block

    def _seconds(self) -> float:
        return time.perf_counter() - self.begun

    def _finished(self, reason: StopReason, kept: int, blocks: int) -> Finished:
        return Finished(
            reason=reason,
            text=self.engine.decode(self.answer[:kept]),
            ids=tuple(self.answer[:kept]),
            stats=GenerationStats(
                tokens=kept,
                forwards=self.forwards,
                commit_forwards=0,
                prefill_forwards=1,
                blocks=blocks,
                seconds=self._seconds(),
                time_to_first_block=self.first_block_seconds,
                ceiling=kept / blocks if blocks else 0.0,
            ),
        )


def _candidates(capture: Capture) -> int:
    """How many candidates a scripted reply has to offer: the token and its wrong guesses."""
    return min(capture.top_k, len(WRONG_GUESSES)) if capture.level in ("top-k", "full") else 0


def _due(block: int, i: int, length: int, steps: int) -> int:
    """Step at which position i is committed: roughly left to right, with a deterministic
    scatter."""
    scatter = (i * 5 + block * 11) % 7 - 3
    return min(steps - 1, max(0, (i + scatter * 2) * steps // length))


@dataclass
class FakeLoader:
    """Implements `engine.protocol.EngineLoader`: reports `chunks` of progress, then gives a
    `FakeEngine`.

    error: raised instead of finishing. seconds_per_chunk: how slow the load is. engines: every
    engine handed out.
    """

    script: FakeScript = field(default_factory=FakeScript)
    chunks: int = 4
    seconds_per_chunk: float = 0.0
    error: Exception | None = None
    engines: list[FakeEngine] = field(default_factory=list)

    def __call__(self, path: str, progress: ProgressCallback, stop: threading.Event) -> Engine:
        total = 20_000_000
        for chunk in range(self.chunks):
            if stop.is_set():
                raise UnblurError("load.stopped", "Loading was stopped.", "Load it again.")
            progress(LoadProgress(total * chunk // self.chunks, total, "Reading weights"))
            time.sleep(self.seconds_per_chunk)
        if self.error is not None:
            raise self.error
        progress(LoadProgress(total, total, "Ready"))
        engine = FakeEngine(self.script)
        self.engines.append(engine)
        return engine
