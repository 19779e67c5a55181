"""What the engine needs to know of a model family, and nothing that only one family has.

A family is one spec file (its config, sizes and tensor names: a `FamilySpec`), one model file (a
`Backbone`), one file in `engine/families` that puts its parts together, and one line in
`engine.models.registry`. Knows no torch and reads no files.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal, Protocol

from engine.types import DecodeSettings

ExpertLayout = Literal["per_expert", "stacked", "fused"]
PROJECTIONS = ("gate_proj", "up_proj", "down_proj")


@dataclass(frozen=True)
class ExpertTable:
    """Where a checkpoint keeps its routed experts. layers: indices of the layers that have them.
    experts, router: module names with `{layer}` in them. per_token, shared: for people."""

    layers: tuple[int, ...]
    count: int
    hidden: int
    intermediate: int
    per_token: int
    shared: int
    experts: str
    router: str

    def base(self, layer: int) -> str:
        """The module all experts of a layer lie under."""
        return self.experts.format(layer=layer)

    def router_of(self, layer: int) -> str:
        return self.router.format(layer=layer)

    def module(self, layer: int, expert: int, part: str) -> str:
        """One projection of one expert, stored by itself."""
        return f"{self.base(layer)}.{expert}.{part}"

    @property
    def shapes(self) -> dict[str, tuple[int, int, int]]:
        """Projection -> (experts, out, in)."""
        up = (self.count, self.intermediate, self.hidden)
        down = (self.count, self.hidden, self.intermediate)
        return {"gate_proj": up, "up_proj": up, "down_proj": down}

    def stacks(self, layer: int, layout: ExpertLayout) -> dict[str, tuple[int, int, int]]:
        """The tensors of one layer's experts when they are stored as stacks: name -> (experts, out,
        in).

        "stacked": three tensors `{gate,up,down}_proj`. "fused": `gate_up_proj` [E, 2 inter,
        hidden], gate rows first, and `down_proj`. "per_expert" has no stacks.
        """
        base = self.base(layer)
        down = {f"{base}.down_proj": self.shapes["down_proj"]}
        if layout == "stacked":
            shape = self.shapes["up_proj"]
            return {f"{base}.gate_proj": shape, f"{base}.up_proj": shape} | down
        if layout == "fused":
            fused = (self.count, 2 * self.intermediate, self.hidden)
            return {f"{base}.gate_up_proj": fused} | down
        return {}


@dataclass(frozen=True)
class TensorTable:
    """Every tensor a checkpoint must have.

    linears: name without `.weight` -> (out, in), experts one by one, routers included. tensors:
    everything else by full name, the embedding's weight included. embedding: its module (it too may
    be stored packed). final_norm: module of the last norm. layers: what layer numbers follow in
    names, e.g. `model.layers`. copies: (prefix, original's prefix) where a file may hold tensors a
    second time, or only, under another prefix.
    """

    linears: Mapping[str, tuple[int, int]]
    tensors: Mapping[str, tuple[int, ...]]
    embedding: str
    final_norm: str
    layers: str
    experts: ExpertTable | None = None
    copies: tuple[str, str] | None = None

    @property
    def parameters(self) -> int:
        """Number of weights."""
        total = sum(rows * cols for rows, cols in self.linears.values())
        for shape in self.tensors.values():
            count = 1
            for size in shape:
                count *= size
            total += count
        return total


class FamilySpec(Protocol):
    """The numbers of one checkpoint, as every family gives them.

    family: key of its `Family`. block_length: positions that are denoised together. mask_token_id:
    None where the canvas is not made of masks. decoding: name of the rule, with decoding_evidence
    saying why it is this one. kv_numbers: numbers one position takes in the KV cache, all layers
    together; 0 = there is no cache. kv_fixed_numbers: those that a reply takes whatever its length.
    whole_sequence: prompt and answer are one canvas, as long as the request needs. on_grid: blocks
    lie on multiples of their length; otherwise the first begins where the prompt ends. block_rule:
    who sees whom, in words. notes: sentences for a person.
    """

    @property
    def family(self) -> str: ...
    @property
    def hidden_size(self) -> int: ...
    @property
    def num_layers(self) -> int: ...
    @property
    def vocab_size(self) -> int: ...
    @property
    def max_position_embeddings(self) -> int: ...
    @property
    def block_length(self) -> int: ...
    @property
    def mask_token_id(self) -> int | None: ...
    @property
    def stop_ids(self) -> tuple[int, ...]: ...
    @property
    def decoding(self) -> str: ...
    @property
    def decoding_evidence(self) -> str: ...
    @property
    def defaults(self) -> DecodeSettings: ...
    @property
    def kv_numbers(self) -> int: ...
    @property
    def kv_fixed_numbers(self) -> int: ...
    @property
    def whole_sequence(self) -> bool: ...
    @property
    def on_grid(self) -> bool: ...
    @property
    def block_rule(self) -> str: ...
    @property
    def notes(self) -> tuple[str, ...]: ...
    @property
    def table(self) -> TensorTable: ...

    def checkpoint_name(self, module: str) -> str:
        """Name in the checkpoint of a module of the backbone."""
        ...

    def kind(self, module: str) -> str:
        """What people call a matrix of the table, e.g. "attention"."""
        ...


class SpecReader(Protocol):
    """Reads the two JSON objects of a folder. Raises CheckpointError naming the file and the
    field. folder_name: weak evidence. special_tokens: the tokenizer's added tokens, text -> id."""

    def __call__(
        self,
        config: Mapping[str, object],
        generation_config: Mapping[str, object],
        *,
        folder_name: str = "",
        special_tokens: Mapping[str, int] | None = None,
    ) -> FamilySpec: ...


@dataclass(frozen=True)
class Family:
    """How a family is recognised and read.

    key: in `FamilySpec.family`. title: for people. model_types: exact values of config.json.
    architectures: starts of the architecture's name, lower case, asked where model_type is absent.
    telltale: a module that no other family has. read: its spec. parts: module of
    `engine.families` that puts a loaded checkpoint together (imported when one is loaded).
    claims: whether a config whose model_type is shared with others is this family's. template: the
    chat template of a folder that brings none; None = such a folder is refused. caveat: why running
    such a checkpoint is no promise that it runs right, "" where it is checked against others' code.
    kv_fp8: its KV cache can be kept in FP8.
    """

    key: str
    title: str
    model_types: tuple[str, ...]
    architectures: tuple[str, ...]
    telltale: str | None
    read: SpecReader
    parts: str
    claims: Callable[[Mapping[str, object]], bool] = field(default=lambda config: True)
    template: str | None = None
    kv_fp8: bool = False
    caveat: str = ""
