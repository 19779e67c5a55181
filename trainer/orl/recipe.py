"""How ORL learns, as one value: every number of the method that a run may choose.

Knows names, ranges and defaults; no tensors, no data, no files. Where a default comes from is said
beside it: "published" is orl.md's public part, all else is this project's choice and is measured
in docs/orl-results.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from engine.errors import RequestError

Gate = Literal["start", "disagreement", "either", "all"]
Trains = Literal["all", "lora"]


@dataclass(frozen=True)
class Recipe:
    """One update is one batch of fresh rollouts (published), then thrown away.

    Rollouts. rollouts: replies an update; rows: how many run side by side; group: replies to the
    same prompt, each at a threshold of its own; thresholds: the range they are drawn from;
    temperature: of the sampler; max_new_tokens: the longest reply. fastest: of a group's verified
    replies only those with the fewest forwards teach.

    States. states_per_block: how many of a block's states are replayed, as adjacent pairs, the
    earliest first. micro_blocks: blocks of a forward of training, the memory's handle. window:
    blocks of a row, clean ones included; a reply must fit in one.

    Losses. prediction, contraction, anchor: weights of the three (orl.md 3); rho: how much a step
    should contract entropy (published .25); gate: which positions are uncertain, by the frozen
    start model's entropy (above gate_nats), by disagreement with the final token, by either, or
    all; anchor_cap: nats a position. failed_anchor: replies that fail are replayed with the
    anchor alone. agreement: prediction weighs a position by how often the group's verified replies
    of the same length agree on it.

    Floor. floor: share of an update's replies that are replaced by a reference answer, where the
    prompt's own replies all failed; balanced: accepted replies of every skill weigh the same.

    Teaching. teach: updates at the beginning that learn reference answers alone, without rollouts
    (ORL gives no gradient where nothing verifies); teach_until: verified share of a trial rollout
    at which they end early; teach_rate: times the learning rates, meanwhile.

    Residual. residual: the model gets an ORL adapter where it has none; top_k: of z (0: the whole
    vocabulary); adapter_size: 0 is hidden / 8; norm_cap: the adapter's output against the
    embedding's norm, "residual scaling" (published: training collapses without it).

    What trains. trains: "all" weights, or LoRA of lora_rank and lora_scale on the modules whose
    names end with one of lora_modules, and the adapter in full. quantised: weights pass through the
    checkpoint's NVFP4 at every update, so that an export changes nothing. learning_rate: of AdamW;
    muon: matrices take Muon at this rate instead (0: AdamW for all); adapter_rate: times
    learning_rate, for the adapter. warmup: updates; decay: share of the rate left at the end.

    Off-policy replay, for comparison only: keep_rollouts > 1 uses a batch of rollouts for so many
    updates.
    """

    rollouts: int = 256
    rows: int = 192
    group: int = 2
    thresholds: tuple[float, float] = (0.8, 0.97)
    temperature: float = 0.0
    max_new_tokens: int = 256
    fastest: bool = True

    states_per_block: int = 2
    micro_blocks: int = 2048
    window: int = 32

    prediction: float = 1.0
    contraction: float = 0.005
    anchor: float = 0.0
    rho: float = 0.25
    gate: Gate = "all"
    gate_nats: float = 0.1
    anchor_cap: float = 1.0
    failed_anchor: bool = False
    agreement: bool = False

    floor: float = 0.25
    balanced: bool = True

    teach: int = 0
    teach_until: float = 0.9
    teach_rate: float = 2.0

    residual: bool = True
    top_k: int = 64
    adapter_size: int = 0
    norm_cap: float = 0.5

    trains: Trains = "lora"
    lora_rank: int = 16
    lora_scale: float = 2.0
    lora_modules: tuple[str, ...] = (
        "query_key_value",
        "attention.dense",
        "q_proj",
        "k_proj",
        "v_proj",
        "o_proj",
        "mlp.gate_proj",
        "mlp.up_proj",
        "mlp.down_proj",
        "shared_experts.gate_proj",
        "shared_experts.up_proj",
        "shared_experts.down_proj",
    )
    quantised: bool = True
    learning_rate: float = 1e-4
    muon: float = 0.0
    adapter_rate: float = 5.0
    weight_decay: float = 0.0
    clip: float = 1.0
    warmup: int = 5
    decay: float = 0.1
    keep_rollouts: int = 1

    def __post_init__(self) -> None:
        for name, good, wanted in self._checks():
            if not good:
                raise RequestError(
                    "recipe.value",
                    f"The recipe's '{name}' is {getattr(self, name)!r}; it must be {wanted}.",
                    "Change it, or leave it out to take the default.",
                )

    def _checks(self) -> list[tuple[str, bool, str]]:
        low, high = self.thresholds
        return [
            ("rollouts", 1 <= self.rollouts <= 4096, "1 to 4096"),
            ("rows", self.rows >= 1, "at least 1"),
            ("group", 1 <= self.group <= self.rollouts, "1 to the number of rollouts"),
            ("thresholds", 0.0 < low <= high < 1.0, "two rising numbers between 0 and 1"),
            ("temperature", 0.0 <= self.temperature <= 2.0, "0 to 2"),
            ("max_new_tokens", self.max_new_tokens >= 1, "at least 1"),
            ("states_per_block", self.states_per_block >= 1, "at least 1"),
            ("micro_blocks", self.micro_blocks >= self.window, "at least the window"),
            ("window", self.window >= 2, "at least 2"),
            ("prediction", self.prediction >= 0.0, "0 or more"),
            ("contraction", self.contraction >= 0.0, "0 or more"),
            ("anchor", self.anchor >= 0.0, "0 or more"),
            ("rho", 0.0 <= self.rho < 1.0, "0 to below 1"),
            ("gate_nats", self.gate_nats >= 0.0, "0 or more"),
            ("anchor_cap", self.anchor_cap > 0.0, "above 0"),
            ("floor", 0.0 <= self.floor <= 1.0, "0 to 1"),
            ("teach", self.teach >= 0, "0 or more"),
            ("teach_until", 0.0 < self.teach_until <= 1.0, "above 0, at most 1"),
            ("teach_rate", self.teach_rate > 0.0, "above 0"),
            ("top_k", self.top_k >= 0, "0 or more"),
            ("norm_cap", self.norm_cap > 0.0, "above 0"),
            ("lora_rank", self.lora_rank >= 1, "at least 1"),
            ("learning_rate", 0.0 < self.learning_rate < 1.0, "above 0"),
            ("muon", 0.0 <= self.muon < 1.0, "0 or more"),
            ("adapter_rate", self.adapter_rate > 0.0, "above 0"),
            ("clip", self.clip > 0.0, "above 0"),
            ("warmup", self.warmup >= 0, "0 or more"),
            ("decay", 0.0 < self.decay <= 1.0, "above 0, at most 1"),
            ("keep_rollouts", self.keep_rollouts >= 1, "at least 1"),
        ]

    @property
    def asks_the_start(self) -> bool:
        """Whether any loss needs what the frozen start model says."""
        return self.anchor > 0.0 or self.gate != "all"

    def rate(self, update: int, updates: int) -> float:
        """What multiplies the rates at `update` (from 0) of `updates`: a warm-up, then a line down
        to `decay`."""
        warm = min(1.0, (update + 1) / max(1, self.warmup))
        return warm * (1.0 - (1.0 - self.decay) * min(1.0, update / max(1, updates)))
