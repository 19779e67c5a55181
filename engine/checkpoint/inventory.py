"""Which tensor of the files holds which module, in which form; and the refusal of everything that
does not fit.

Knows the two public NVFP4 layouts (models.md 5) and the expert layouts; a family's names and shapes
come as its `TensorTable`. Looks at names, dtypes and shapes only, never at values. The form is
taken from tensor names and dtypes, not from the config's lists.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, NoReturn

from engine.checkpoint.folder import INDEX
from engine.checkpoint.refusals import OTHER_CHECKPOINT, refuse
from engine.checkpoint.tensor_file import TensorEntry
from engine.models.family import ExpertLayout, FamilySpec, TensorTable

Form = Literal["dense", "modelopt", "compressed-tensors"]
Role = Literal["float", "codes", "block_scale", "scale_multiply", "scale_divide", "input_scale"]

FLOAT_DTYPES = ("BF16", "F16", "F32")
NVFP4_BLOCK = 16

# Tensors that checkpoints may carry and that the engine has no use for.
_IGNORED_PARTS = ("v_head", "inv_freq", "rotary_emb", "vision_tower", "embed_vision")
_IGNORED_ENDS = (".k_scale", ".v_scale", ".q_scale")  # scales of a quantised KV cache; ours is not


@dataclass(frozen=True)
class StoredMatrix:
    """Where one module's weight is. scale and global_scale are None for the dense form."""

    form: Form
    weight: TensorEntry
    scale: TensorEntry | None = None
    global_scale: TensorEntry | None = None

    @property
    def nbytes(self) -> int:
        parts = (self.weight, self.scale, self.global_scale)
        return sum(part.nbytes for part in parts if part is not None)


@dataclass
class Inventory:
    """The resolved checkpoint. `matrices`: linears, the embedding and per-expert modules by name
    without `.weight`.

    stacks: layer -> (layout, tensors in file form) where experts are stored stacked or fused.
    roles: every tensor that will be read, with what its values must satisfy. ignored: names left
    aside.
    """

    matrices: dict[str, StoredMatrix] = field(default_factory=dict)
    tensors: dict[str, TensorEntry] = field(default_factory=dict)
    stacks: dict[int, dict[str, TensorEntry]] = field(default_factory=dict)
    expert_layouts: dict[int, ExpertLayout] = field(default_factory=dict)
    roles: dict[str, Role] = field(default_factory=dict)
    ignored: list[str] = field(default_factory=list)


def take_inventory(
    entries: Mapping[str, TensorEntry], files: Sequence[str], spec: FamilySpec
) -> Inventory:
    """Resolves every expected module and refuses missing, extra, misshapen and mistyped tensors.

    Raises CheckpointError whose message names the file and the tensor (or config field).
    """
    return _Resolver(entries, files, spec).run()


class _Resolver:
    def __init__(
        self, entries: Mapping[str, TensorEntry], files: Sequence[str], spec: FamilySpec
    ) -> None:
        self.spec = spec
        self.table: TensorTable = spec.table
        self.stored = entries
        self.entries = {**entries, **_from_copies(entries, self.table)}
        self.result = Inventory()
        # The place to look for a tensor that is absent: any file of the set will do when there is
        # one only.
        self.file = files[0] if len(files) == 1 else INDEX

    def run(self) -> Inventory:
        self._check_geometry()
        table, result = self.table, self.result
        for name, shape in table.tensors.items():
            if name == f"{table.embedding}.weight":
                result.matrices[table.embedding] = self._matrix(
                    table.embedding, (shape[0], shape[1])
                )
            else:
                result.tensors[name] = self._float_tensor(name, shape)
        if table.experts is not None:
            for layer in table.experts.layers:
                self._stacked_experts(layer)
        stacked = self._stacked_modules()
        for module, shape in table.linears.items():
            if not module.startswith(stacked):
                result.matrices[module] = self._matrix(module, shape)
        self._leftovers()
        return result

    def _check_geometry(self) -> None:
        """Blames the config where the tensors agree with each other and not with it.

        After this, layers and experts are numbers that the files bear out, so loops over them are
        bounded.
        """
        spec, table = self.spec, self.table
        norm = self.entries.get(f"{table.final_norm}.weight")
        if norm is not None and len(norm.shape) == 1 and norm.shape[0] != spec.hidden_size:
            _config_says("hidden_size", spec.hidden_size, norm.shape[0])
        embedding = self._weight(table.embedding)
        if embedding.shape[0] != spec.vocab_size:
            _config_says("vocab_size", spec.vocab_size, embedding.shape[0])
        layers = _layer_count(self.entries, table.layers)
        if layers != spec.num_layers:
            _config_says("num_hidden_layers", spec.num_layers, layers)
        experts = table.experts
        if experts is None:
            return
        routers = [self._weight(experts.router_of(layer)) for layer in experts.layers]
        counts = {router.shape[0] for router in routers}
        if len(counts) == 1 and experts.count not in counts:
            _config_says("num_experts", experts.count, counts.pop())
        for router in routers:
            if router.shape[0] != experts.count:
                self._wrong(
                    router,
                    "checkpoint.shape",
                    f"has {router.shape[0]} rows; config.json: num_experts says {experts.count}",
                )

    def _weight(self, module: str) -> TensorEntry:
        """A module's weight in whichever form, as a matrix of any size."""
        entry = self.entries.get(f"{module}.weight_packed") or self.entries.get(f"{module}.weight")
        if entry is None:
            self._missing(f"{module}.weight")
        if len(entry.shape) != 2:
            self._wrong(entry, "checkpoint.shape", f"has shape {list(entry.shape)}; not a matrix")
        return entry

    def _stacked_experts(self, layer: int) -> None:
        experts = self.table.experts
        assert experts is not None
        layout = self._expert_layout(experts.base(layer))
        self.result.expert_layouts[layer] = layout
        if layout == "per_expert":
            return
        stack: dict[str, TensorEntry] = {}
        for base, shape in experts.stacks(layer, layout).items():
            name = base if base in self.entries else f"{base}.weight"
            stack[base.rpartition(".")[2]] = self._float_tensor(name, shape)
        self.result.stacks[layer] = stack

    def _expert_layout(self, base: str) -> ExpertLayout:
        if self._any_of(f"{base}.gate_up_proj"):
            return "fused"
        return "stacked" if self._any_of(f"{base}.gate_proj") else "per_expert"

    def _stacked_modules(self) -> tuple[str, ...]:
        """What the names of experts begin with that are in a stack."""
        experts = self.table.experts
        if experts is None:
            return ()
        return tuple(f"{experts.base(layer)}." for layer in self.result.stacks)

    def _any_of(self, base: str) -> bool:
        """Stacks come with or without `.weight`."""
        return base in self.entries or f"{base}.weight" in self.entries

    def _matrix(self, module: str, shape: tuple[int, int]) -> StoredMatrix:
        packed = self.entries.get(f"{module}.weight_packed")
        weight = self.entries.get(f"{module}.weight")
        if packed is not None:
            return self._packed(module, shape, packed, "compressed-tensors")
        if weight is None:
            absent = (
                "weight_packed" if f"{module}.weight_global_scale" in self.entries else "weight"
            )
            self._missing(f"{module}.{absent}")
        if weight.dtype == "U8":
            return self._packed(module, shape, weight, "modelopt")
        return StoredMatrix("dense", self._float_tensor(f"{module}.weight", shape))

    def _packed(
        self, module: str, shape: tuple[int, int], codes: TensorEntry, form: Form
    ) -> StoredMatrix:
        rows, cols = shape
        if cols % NVFP4_BLOCK:
            self._wrong(
                codes, "checkpoint.shape", f"is NVFP4, but {cols} inputs are no multiple of 16"
            )
        if f"{module}.pre_quant_scale" in self.entries:
            raise refuse(
                "checkpoint.unsupported_quantisation",
                f"{codes.file}: {module}.pre_quant_scale rescales the layer's input (NVFP4 with"
                " AWQ), which this engine does not compute.",
                "Use a checkpoint in plain NVFP4.",
                file=codes.file,
                item=f"{module}.pre_quant_scale",
            )
        self._take(codes.name, ("U8",), (rows, cols // 2), "codes")
        scale = self._take(
            f"{module}.weight_scale", ("F8_E4M3",), (rows, cols // NVFP4_BLOCK), "block_scale"
        )
        name, role = _GLOBAL_SCALES[form]
        global_scale = self._take(f"{module}.{name}", ("F32",), None, role)
        for name in ("input_scale", "input_global_scale"):  # checked, though activations stay float
            if f"{module}.{name}" in self.entries:
                self._take(f"{module}.{name}", ("F32",), None, "input_scale")
        return StoredMatrix(form, codes, scale, global_scale)

    def _float_tensor(self, name: str, shape: tuple[int, ...]) -> TensorEntry:
        return self._take(name, FLOAT_DTYPES, shape, "float")

    def _take(
        self, name: str, dtypes: tuple[str, ...], shape: tuple[int, ...] | None, role: Role
    ) -> TensorEntry:
        """The named tensor, checked. shape None: one value, as [] or [1]."""
        entry = self.entries.get(name)
        if entry is None:
            self._missing(name)
        if entry.dtype not in dtypes:
            self._wrong(
                entry,
                "checkpoint.dtype",
                f"is stored as {entry.dtype}; expected {' or '.join(dtypes)}",
            )
        if shape is None and entry.shape not in ((), (1,)):
            self._wrong(
                entry, "checkpoint.shape", f"has shape {list(entry.shape)}; expected one value"
            )
        if shape is not None and entry.shape != shape:
            self._wrong(
                entry,
                "checkpoint.shape",
                f"has shape {list(entry.shape)}; config.json asks for {list(shape)}",
            )
        self.result.roles[entry.name] = role
        return entry

    def _leftovers(self) -> None:
        extra = [name for name in self.stored if name not in self.result.roles]
        for name in extra:
            copied = _original(name, self.table) in self.result.roles
            unused = any(part in name for part in _IGNORED_PARTS) or name.endswith(_IGNORED_ENDS)
            if copied or unused:
                self.result.ignored.append(name)
        extra = sorted(set(extra) - set(self.result.ignored))
        if extra:
            entry = self.stored[extra[0]]
            more = f" ({len(extra) - 1} more like it)" if len(extra) > 1 else ""
            self._wrong(
                entry, "checkpoint.unexpected_tensor", f"belongs to no part of this model{more}"
            )

    def _missing(self, name: str) -> NoReturn:
        raise refuse(
            "checkpoint.missing_tensor",
            f"{self.file}: tensor {name} is missing.",
            OTHER_CHECKPOINT,
            file=self.file,
            item=name,
        )

    def _wrong(self, entry: TensorEntry, code: str, problem: str) -> NoReturn:
        raise refuse(
            code,
            f"{entry.file}: tensor {entry.name} {problem}.",
            OTHER_CHECKPOINT,
            file=entry.file,
            item=entry.name,
        )


_GLOBAL_SCALES: dict[Form, tuple[str, Role]] = {
    "modelopt": ("weight_scale_2", "scale_multiply"),
    "compressed-tensors": ("weight_global_scale", "scale_divide"),
}


def _original(name: str, table: TensorTable) -> str | None:
    """The name a copy's tensor has in the original; None for what is no copy."""
    if table.copies is None or name in table.tensors:
        return None
    prefix, original = table.copies
    return original + name.removeprefix(prefix) if name.startswith(prefix) else None


def _from_copies(entries: Mapping[str, TensorEntry], table: TensorTable) -> dict[str, TensorEntry]:
    """Tensors that are stored as a copy alone, under their original names."""
    found = {_original(name, table): entry for name, entry in entries.items()}
    return {name: entry for name, entry in found.items() if name and name not in entries}


def _layer_count(entries: Mapping[str, TensorEntry], prefix: str) -> int:
    """The number of layers that tensors name."""
    layers = 0
    for name in entries:
        index, dot, _ = name.removeprefix(f"{prefix}.").partition(".")
        if dot and name.startswith(f"{prefix}.") and _is_index(index):
            layers = max(layers, int(index) + 1)
    return layers


def _is_index(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) < 8


def _config_says(name: str, stated: int, found: int) -> NoReturn:
    raise refuse(
        "checkpoint.config_disagrees",
        f"config.json: {name} says {stated}, the tensors hold {found}.",
        "Download config.json and the weights of one model.",
        file="config.json",
        item=name,
    )
