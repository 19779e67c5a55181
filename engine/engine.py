"""The real engine: a loaded model behind the protocol of `engine.protocol`.

Knows how the parts are put together (checkpoint, model, tokenizer, rule, runtime) and what a
request may ask for. The maths is in `models`, what is accepted in `decoding`, the loop in
`runtime`.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch

from engine.attribution import attribute
from engine.capacity import answer_room, context_of, room_for
from engine.check_request import check_capture, check_settings
from engine.checkpoint import Checkpoint, open_checkpoint
from engine.compose import make_program
from engine.decoding.rules import RuleOptions
from engine.errors import RequestError, RuntimeFailure
from engine.forks import check_fork, check_model, check_repeatable, compared, steering_of
from engine.hardware import LoopPath
from engine.loading import (
    Placement,
    build_model,
    choose_device,
    choose_placement,
    load_model,
    use_device,
)
from engine.memory import free_memory, release_memory
from engine.model_info import describe
from engine.models.backbone import AnyBackbone
from engine.models.kernel_report import Arithmetic
from engine.models.registry import family_of
from engine.protocol import ProgressCallback
from engine.runtime.choice import (
    Runtime,
    choose_loop,
    make_runtime,
)
from engine.runtime.rows import Row
from engine.runtime.step import StepProgram
from engine.runtime.whole import WholeSequenceProgram
from engine.tokenizer import ChatTokenizer
from engine.trace import Fork, Trace, TraceHeader
from engine.trace.attribution import Attribution, Reach
from engine.trace.fork import parent_of
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
    Started,
    StepTaken,
    StopReason,
)


@dataclass(frozen=True)
class BatchReply:
    """One row of `generate_batch`: ids without the prompt, stop token included."""

    ids: tuple[int, ...]
    forwards: int
    blocks: int
    reason: StopReason


class TorchEngine:
    """A model in memory. One reply at a time; call every method from one thread."""

    def __init__(
        self,
        checkpoint: Checkpoint,
        model: AnyBackbone,
        placement: Placement,
        tokenizer: ChatTokenizer,
        loop: LoopPath | None = None,
    ) -> None:
        self._model: AnyBackbone | None = model
        self._tokenizer = tokenizer
        self._placement = placement
        self._context = context_of(checkpoint.spec, placement, free_memory(placement.device))
        self._choice = choose_loop(placement.device, loop)
        self._runtime: Runtime | None = None
        if not checkpoint.spec.whole_sequence:  # whose canvas is known with the request
            self._runtime = self._prepared(model, self._context)
        self._batch_runtime: tuple[int, int, Runtime] | None = None
        words = [WholeSequenceProgram.attends]
        if self._runtime is not None:
            pieces = self._runtime.pieces
            words = [pieces.words, pieces.program.attends]
        if placement.device.type != "cuda":
            words = []
        self.info = describe(checkpoint, placement, self._context, self._choice, words)

    def count_tokens(self, messages: Sequence[Message]) -> int:
        return len(self._tokenizer.encode_chat(messages))

    def decode(self, ids: Sequence[int]) -> str:
        return self._tokenizer.decode(ids)

    def pieces(self, ids: Sequence[int]) -> tuple[str, ...]:
        return tuple(self._tokenizer.piece(token) for token in ids)

    def generate(
        self, request: GenerateRequest, stop: threading.Event | None = None
    ) -> Iterator[Event]:
        """See `engine.protocol.Engine.generate`. Raises RequestError before the first event,
        RuntimeFailure later."""
        return self._reply(lambda: self._row(request), stop)

    def fork(self, fork: Fork, stop: threading.Event | None = None) -> Iterator[Event]:
        """A recorded reply again, with a change from a step on: all its events, the first step's
        on (`engine.forks`). Raises TraceError and RequestError before the first event, TraceError
        `trace.fork_differs` while the steps before the fork are taken, RuntimeFailure later."""
        return compared(fork, self._reply(lambda: self._forked_row(fork), stop))

    def attribute(
        self,
        trace: Trace,
        step: int,
        position: int,
        reach: Reach = "near",
        stop: threading.Event | None = None,
    ) -> Attribution:
        """How much each token accepted before adds to the confidence of one position in one step
        (row of the trace; `engine.attribution`). Raises TraceError, RequestError `request.stopped`,
        RuntimeFailure."""
        row = self._row_of_trace(trace, Capture())
        row.steering = steering_of(trace.header.ancestry, trace.ids.shape[1])
        with _failures_in_words():
            return attribute(trace, step, position, reach, row, self._program, stop)

    def trace_header(self, request: GenerateRequest) -> TraceHeader:
        """What a trace of the reply will say of itself (`engine.trace.recording`)."""
        row, info, capture = self._row(request), self.info, request.capture
        return TraceHeader(
            model_name=info.name,
            model_family=info.family,
            model_path=info.path,
            quantisation=info.quantisation,
            decoding=info.decoding,
            runtime=info.runtime,
            device=info.device,
            messages=request.messages,
            prompt_ids=tuple(row.prompt),
            settings=row.settings,
            max_new_tokens=row.max_new_tokens,
            mask_id=info.mask_id,
            stop_ids=info.stop_ids,
            vocab_size=self._loaded().spec.vocab_size,
            block_length=self._width(row),
            capture=capture.level,
            top_k=capture.top_k if capture.level in ("top-k", "full") else 0,
        )

    def _reply(self, make_row: Callable[[], Row], stop: threading.Event | None) -> Iterator[Event]:
        accepted = time.perf_counter()
        row = make_row()
        width = self._width(row)
        with _failures_in_words():
            runtime = self._runtime_for(row)
            prefill_forwards = runtime.prefill([row], stop)
            yield Started(
                prompt_tokens=len(row.prompt),
                block_length=width,
                first_block_start=row.first_block_start,
                max_blocks=row.max_blocks,
                prefill_seconds=time.perf_counter() - accepted,
                path=self.info.runtime,
            )
            seconds, first_block = 0.0, 0.0
            if stop is not None and stop.is_set():
                row.reason = "stopped"
            for mark in runtime.run([row], stop, record=row.capture.level != "off"):
                seconds = mark.seconds
                if mark.step_taken is not None:
                    yield _cut(mark.step_taken, width)
                if mark.block_done:
                    first_block = first_block or time.perf_counter() - accepted
                    yield self._block_finished(row, seconds, width)
        yield self._finished(row, prefill_forwards, seconds, first_block)

    def generate_batch(
        self,
        prompts: Sequence[Sequence[int]],
        settings: DecodeSettings,
        max_new_tokens: int,
        batch: int,
    ) -> list[BatchReply]:
        """Replies to many prompts of token ids, `batch` rows at a time: evaluation and rollouts.
        Same ids as one by one, up to the rounding of larger matrix products. Prompts are grouped by
        length."""
        model = self._loaded()
        stop_ids = frozenset(model.spec.stop_ids)
        batch = min(batch, len(prompts))
        longest = max(len(prompt) for prompt in prompts)
        capacity = room_for(model.spec, longest, max_new_tokens, self._context)
        order = sorted(range(len(prompts)), key=lambda index: len(prompts[index]))
        replies: dict[int, BatchReply] = {}
        with _failures_in_words():
            runtime = self._for_batches(model, batch, capacity)
            block, grid = runtime.pieces.reply.block_length, model.spec.on_grid
            for first in range(0, len(order), batch):
                chosen = order[first : first + batch]
                rows = [
                    Row(prompts[index], max_new_tokens, settings, block, stop_ids, grid)
                    for index in chosen
                ]
                spare = Row(prompts[order[0]], 1, settings, block, stop_ids, grid, reason="stopped")
                batch_rows = [*rows, *[spare] * (batch - len(rows))]
                runtime.prefill(batch_rows)
                for _ in runtime.run(batch_rows, record=False):
                    pass
                for index, row in zip(chosen, rows, strict=True):
                    replies[index] = BatchReply(
                        tuple(row.ids), row.forwards, row.blocks, row.reason or "length"
                    )
        return [replies[index] for index in range(len(prompts))]

    def unload(self) -> None:
        """Drops weights and cache and hands the pages back to the system."""
        self._drop_runtime()
        self._drop_batch_runtime()
        self._model = None
        release_memory()

    def _make_runtime(self, model: AnyBackbone, batch: int, capacity: int) -> Runtime:
        program = self._program(batch, capacity)
        return make_runtime(program, RuleOptions().stop_after_block, self._choice)

    def _program(self, batch: int, capacity: int) -> StepProgram:
        place, options = self._placement, RuleOptions()
        return make_program(
            self._loaded(), batch, capacity, options, place.kept_dtype, kernels=place.kernels.used
        )

    def _for_batches(self, model: AnyBackbone, batch: int, capacity: int) -> Runtime:
        """The runtime of the last batches where it fits, since a captured one is worth keeping."""
        kept = self._batch_runtime
        if kept is not None and kept[0] == batch and kept[1] >= capacity:
            return kept[2]
        self._drop_batch_runtime()
        runtime = self._make_runtime(model, batch, capacity)
        self._batch_runtime = (batch, capacity, runtime)
        return runtime

    def _drop_batch_runtime(self) -> None:
        if self._batch_runtime is not None:
            self._batch_runtime[2].close()
            self._batch_runtime = None

    def _prepared(self, model: AnyBackbone, capacity: int) -> Runtime:
        runtime = self._make_runtime(model, 1, capacity)
        runtime.prepare()
        return runtime

    def _runtime_for(self, row: Row) -> Runtime:
        """The runtime of a reply. A canvas of another length than the last one's takes a new
        runtime, which captures anew on a GPU."""
        model = self._loaded()
        if model.spec.whole_sequence and (
            self._runtime is None or self._runtime.pieces.reply.block_length != row.block_length
        ):
            self._drop_runtime()
            self._runtime = self._prepared(model, row.block_length)
        assert self._runtime is not None
        return self._runtime

    def _drop_runtime(self) -> None:
        if self._runtime is not None:
            self._runtime.close()
            self._runtime = None

    def _width(self, row: Row) -> int:
        """Positions of a block that mean anything: a whole-sequence canvas ends with the reply."""
        if self._loaded().spec.whole_sequence:
            return len(row.prompt) + row.max_new_tokens
        return row.block_length

    def _loaded(self) -> AnyBackbone:
        if self._model is None:
            raise RuntimeFailure(
                "engine.unloaded", "This model has been unloaded.", "Load the model again."
            )
        return self._model

    def _row(self, request: GenerateRequest) -> Row:
        model = self._loaded()
        settings = request.settings or model.spec.defaults
        check_settings(settings)
        check_capture(request.capture, model.spec.vocab_size)
        if not request.messages or not request.messages[-1].content.strip():
            raise RequestError(
                "request.empty_prompt", "The message is empty.", "Write something to send."
            )
        if request.max_new_tokens < 1:
            raise RequestError(
                "request.settings",
                f"The answer's length limit is {request.max_new_tokens} tokens.",
                "Choose a limit of at least 1 token.",
            )
        prompt = self._tokenizer.encode_chat(request.messages)
        return self._row_of(prompt, request.max_new_tokens, settings, request.capture)

    def _row_of_trace(self, trace: Trace, capture: Capture) -> Row:
        """The row a trace's root was recorded with."""
        header, spec = trace.header, self._loaded().spec
        check_model(header, self.info, spec)
        check_capture(capture, spec.vocab_size)
        assert header.settings is not None  # `check_model`
        check_settings(header.settings)
        row = self._row_of(header.prompt_ids, header.max_new_tokens, header.settings, capture)
        check_repeatable(trace, row.max_new_tokens, self._width(row), spec)
        return row

    def _forked_row(self, fork: Fork) -> Row:
        spec = self._loaded().spec
        row = self._row_of_trace(fork.trace, fork.capture)
        check_fork(fork, spec, self._runtime_for(row).pieces.program.foresees)
        chain = (*fork.trace.header.ancestry, parent_of(fork))
        row.steering = steering_of(chain, fork.trace.ids.shape[1])
        return row

    def _row_of(
        self, prompt: Sequence[int], wanted: int, settings: DecodeSettings, capture: Capture
    ) -> Row:
        """Raises RequestError where there is no room for an answer."""
        model = self._loaded()
        room = answer_room(model.spec, len(prompt), self._context)
        if room < 1:
            raise RequestError(
                "request.too_long",
                f"The conversation has {len(prompt)} tokens, and this model can hold "
                f"{self._context} with its answer.",
                "Shorten the message, or start a new chat.",
            )
        limit = min(wanted, room)
        length = model.spec.block_length
        if model.spec.whole_sequence:
            length = room_for(model.spec, len(prompt), limit, self._context)
        spec = model.spec
        stops = frozenset(spec.stop_ids)
        return Row(prompt, limit, settings, length, stops, spec.on_grid, capture=capture)

    def _text(self, row: Row) -> str:
        return self._tokenizer.decode([token for token in row.ids if token not in row.stop_ids])

    def _block_finished(self, row: Row, seconds: float, width: int) -> BlockFinished:
        return BlockFinished(
            block=row.blocks - 1,
            block_start=row.block_start - row.block_length,
            ids=np.asarray(row.block_tokens[:width], dtype=np.int32),
            converged=row.converged,
            text=self._text(row),
            seconds=seconds,
        )

    def _finished(
        self, row: Row, prefill_forwards: int, seconds: float, first_block: float
    ) -> Finished:
        least = max(row.blocks, 1) + row.commits
        stats = GenerationStats(
            tokens=len(row.ids),
            forwards=row.forwards,
            commit_forwards=row.commits,
            prefill_forwards=prefill_forwards,
            blocks=row.blocks,
            seconds=seconds,
            time_to_first_block=first_block,
            ceiling=len(row.ids) / least,
        )
        return Finished(row.reason or "stopped", self._text(row), tuple(row.ids), stats)


def _cut(step: StepTaken, width: int) -> StepTaken:
    """Without the positions behind a canvas's end."""
    if len(step.ids) == width:
        return step
    return replace(
        step,
        ids=step.ids[:width],
        state=step.state[:width],
        confidence=step.confidence[:width],
        entropy=step.entropy[:width],
        edited_from=step.edited_from[:width],
        top_ids=None if step.top_ids is None else step.top_ids[:width],
        top_p=None if step.top_p is None else step.top_p[:width],
    )


def load_engine(
    path: str | os.PathLike[str],
    progress: ProgressCallback | None = None,
    stop: threading.Event | None = None,
    *,
    device: str | None = None,
    dtype: torch.dtype | None = None,
    loop: LoopPath | None = None,
    kernels: bool = True,
    arithmetic: Arithmetic = "stored",
    kv_fp8: bool = False,
) -> TorchEngine:
    """Opens, validates and loads a checkpoint folder. Raises CheckpointError or RuntimeFailure; a
    failed load leaves no memory behind. device: see `engine.loading.choose_device`. loop: see
    `engine.runtime.choice.choose_loop`. kernels: False = plain PyTorch operations only, to compare
    with. arithmetic: see `engine.models.reduced`. kv_fp8: keys and values are kept in FP8, where
    the family can (else RequestError)."""
    target = choose_device(device)
    use_device(target)
    if target.type == "cpu":
        leave_a_core_free()

    def checking(done: int, total: int) -> None:
        if progress is not None:
            progress(LoadProgress(done, total, "Checking the files"))

    on_gpu = target.type == "cuda"  # which checks values as they arrive, without a second reading
    checkpoint = open_checkpoint(path, progress=checking, stop=stop, check_values_now=not on_gpu)
    try:
        family = family_of(checkpoint.family)
        if kv_fp8 and not family.kv_fp8:
            raise RequestError(
                "request.kv_fp8",
                f"The KV cache of {family.title} models is not kept in FP8.",
                "Load the model without this option.",
            )
        if arithmetic != "stored" and not kernels:
            raise RequestError(
                "request.arithmetic",
                f"Products in {arithmetic.upper()} need kernels, and none were asked for.",
                "Load the model without one of the two options.",
            )
        tokenizer = ChatTokenizer.open(Path(path), family.template)
        placement = choose_placement(checkpoint, target, free_memory(target), dtype)
        if kv_fp8:
            placement = replace(placement, kv_dtype=torch.float8_e4m3fn)
        if kernels:
            model, report = load_model(checkpoint, placement, progress, stop, arithmetic)
            placement = replace(placement, kernels=report)
        else:
            model = build_model(checkpoint, placement, progress, stop)
        release_memory()  # what reading took along the way is room for a longer context
        return TorchEngine(checkpoint, model, placement, tokenizer, loop)
    except torch.OutOfMemoryError as error:
        release_memory()
        raise RuntimeFailure(
            "load.out_of_memory",
            f"The model fits, but no memory is left on {target} to run it.",
            "Close other programs, or choose a smaller or more quantised model.",
        ) from error
    except BaseException:
        release_memory()
        raise
    finally:
        checkpoint.release()


def leave_a_core_free() -> None:
    """One thread fewer than cores, unless OMP_NUM_THREADS says otherwise.

    Threads of one operation wait for each other spinning: when anything else needs a core (the
    window's painting is enough), every small operation waits a time slice. Measured on 2 cores with
    a busy neighbour: 465 tok/s with one thread, 45 with two (bench/generate.py).
    """
    if "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(max(1, (os.cpu_count() or 1) - 1))


@contextmanager
def _failures_in_words() -> Iterator[None]:
    """Turns torch's own failures into typed ones; the engine stays usable."""
    try:
        yield
    except torch.OutOfMemoryError as error:
        release_memory()
        raise RuntimeFailure(
            "runtime.out_of_memory",
            "Memory ran out while the answer was being written. What was written so far is kept.",
            "Ask for a shorter answer, start a new chat, or close other programs.",
        ) from error
