"""The engine's seam: what goes in (`GenerateRequest`) and what comes out (`Event`), as frozen
dataclasses.

The same types serve the window, the command line, the server and the tests. Knows no maths and no
torch: arrays are numpy, so that a window can be built where torch is not installed.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum
from typing import Literal

import numpy as np
import numpy.typing as npt

from engine.models.noise_canvas import NoiseCanvas

Role = Literal["system", "user", "assistant"]


class TokenState(IntEnum):
    """What a canvas position is at the end of a step (stored as uint8 in traces)."""

    MASKED = 0  # noise, and no guess has been made yet
    DRAFT = 1  # still noise on the canvas; `ids` holds the model's current best guess for it
    COMMITTED = 2  # accepted onto the canvas
    EDITED = 3  # accepted earlier, replaced by a later step of the same block
    PROMPT = 4  # a prompt token that shares the block


@dataclass(frozen=True)
class Message:
    role: Role
    content: str


@dataclass(frozen=True)
class DecodeSettings:
    """How a block is denoised. Which fields apply depends on the checkpoint's decoding rule
    (models.md 1.6-1.8).

    threshold: accept masked positions whose confidence is strictly above this, in [0, 1].
    editing_threshold: replace accepted tokens the model now disagrees with, when its confidence is
        strictly above this. None means editing is off; 0.0 means edit on every change of argmax.
        The two are never conflated.
    max_post_steps: forwards allowed after the last mask of a block is filled (editing rules only).
    min_transfer: positions committed at least per step (2.1 `num_to_transfer`); also bounds steps
        under the quota rule.
    steps: the quota rule's steps per block (2.0 and 2.2): the block's positions are split evenly
        over them.
    temperature: 0 = argmax. top_k: 0 = off. top_p: 1.0 = off. seed: same seed, same text.
    noise: the sampler of a canvas of noise (models.md 2.5), which takes `steps`, too.
    """

    threshold: float = 0.95
    editing_threshold: float | None = None
    max_post_steps: int = 16
    min_transfer: int = 1
    steps: int = 32
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int = 0
    noise: NoiseCanvas = field(default_factory=NoiseCanvas)


CaptureLevel = Literal["off", "light", "top-k", "full"]


@dataclass(frozen=True)
class Capture:
    """What is kept of every step. off: nothing, so that no `StepTaken` comes. light: the canvas
    with confidence and entropy. top-k: also the `top_k` most likely tokens of every position.
    full: also the logits of up to a few `positions` (absolute), in the steps of their block.
    """

    level: CaptureLevel = "light"
    top_k: int = 16
    positions: tuple[int, ...] = ()


@dataclass(frozen=True)
class GenerateRequest:
    """One reply to generate. `settings=None` takes the checkpoint's own defaults
    (`ModelInfo.defaults`).
    """

    messages: tuple[Message, ...]
    max_new_tokens: int = 256
    settings: DecodeSettings | None = None
    capture: Capture = field(default_factory=Capture)


@dataclass(frozen=True)
class Started:
    """The prompt is accepted and prefilled.

    prompt_tokens: length of the templated prompt. block_length: positions per block.
    first_block_start: absolute position of the first block to be denoised (it may begin with prompt
    tokens). path: which runtime and kernels run.
    """

    prompt_tokens: int
    block_length: int
    first_block_start: int
    max_blocks: int
    prefill_seconds: float
    path: str


@dataclass(frozen=True, eq=False)
class StepTaken:
    """One denoising forward and what the decoding rule did with it. Arrays are [block_length],
    owned by the event.

    ids int32: the token shown at each position (for MASKED and DRAFT: the guess; MASKED carries the
    mask id).
    state uint8: `TokenState`. confidence float32: softmax probability of the token shown, NaN where
    no forward has judged the position. entropy float32: nats, same convention. edited_from int32:
    the token replaced in this step, -1 elsewhere. seconds: since the first decode forward began, at
    the end of this step.
    top_ids int32, top_p float32 [block_length, k]: most likely tokens, best first, and their plain
    softmax probabilities; -1 and NaN at prompt positions. None = not captured. logits float32 [n,
    vocabulary] of the absolute logit_positions int32 [n] that lie in this block. None = not
    captured.
    """

    block: int  # 0 = first block of the reply
    step: int  # 0 = first forward of this block
    block_start: int  # absolute position of the block
    forwards: int  # decode forwards so far, this one and commits included
    ids: npt.NDArray[np.int32]
    state: npt.NDArray[np.uint8]
    confidence: npt.NDArray[np.float32]
    entropy: npt.NDArray[np.float32]
    edited_from: npt.NDArray[np.int32]
    seconds: float
    top_ids: npt.NDArray[np.int32] | None = None
    top_p: npt.NDArray[np.float32] | None = None
    logits: npt.NDArray[np.float32] | None = None
    logit_positions: npt.NDArray[np.int32] | None = None


@dataclass(frozen=True, eq=False)
class BlockFinished:
    """A block is final. `text` is the whole reply so far (stop token and prompt excluded)."""

    block: int
    block_start: int
    ids: npt.NDArray[np.int32]
    converged: bool  # False: the step cap ended it
    text: str
    seconds: float


StopReason = Literal["stop_token", "length", "stopped", "did_not_converge"]


@dataclass(frozen=True)
class GenerationStats:
    """Figures of one reply, as defined in docs/how-it-works.md.

    tokens: kept, up to and including the first stop token. forwards: decode forwards including
    commits that could not be shared (`commit_forwards` of them). seconds: first decode forward to
    the last, prefill apart.
    time_to_first_block: from accepting the request to the end of the first block, prefill included,
    in seconds.
    ceiling: the TPF this answer would have at one forward per block.
    """

    tokens: int
    forwards: int
    commit_forwards: int
    prefill_forwards: int
    blocks: int
    seconds: float
    time_to_first_block: float
    ceiling: float

    @property
    def tpf(self) -> float:
        """Tokens per forward, commits counted."""
        return self.tokens / self.forwards if self.forwards else 0.0

    @property
    def tokens_per_second(self) -> float:
        return self.tokens / self.seconds if self.seconds > 0 else 0.0


@dataclass(frozen=True)
class Finished:
    """The reply is complete (or was stopped). `ids` excludes the prompt and includes the stop token
    if there is one.
    """

    reason: StopReason
    text: str
    ids: tuple[int, ...]
    stats: GenerationStats


Event = Started | StepTaken | BlockFinished | Finished


@dataclass(frozen=True)
class LoadProgress:
    """Progress of a load: bytes of weights in place of the total, and what is being done, in
    words.
    """

    done_bytes: int
    total_bytes: int
    phase: str


@dataclass(frozen=True)
class ModelInfo:
    """What a loaded model is, for people. `notes` are sentences (e.g. that weights were expanded,
    and why).
    """

    name: str
    family: str
    path: str
    parameters: int
    quantisation: str
    context: int
    block_length: int
    decoding: str  # "llada2.0", "llada2.1", "llada2.2"
    device: str  # "cpu", "cuda:0"
    runtime: str  # e.g. "eager, float32"
    weight_bytes: int
    mask_id: int
    stop_ids: tuple[int, ...]
    defaults: DecodeSettings
    notes: tuple[str, ...] = field(default=())
