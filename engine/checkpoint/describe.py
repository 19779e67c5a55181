"""A checkpoint in words and numbers: which kind of module is stored in which form, and how large it
is.

What people call a matrix is its family's business (`FamilySpec.kind`). Reads nothing from disk.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from engine.checkpoint.checkpoint import Checkpoint

_DTYPE_WORDS = {"BF16": "bfloat16", "F16": "float16", "F32": "float32"}
_PACKED_WORDS = {
    "modelopt": "NVFP4 (ModelOpt)",
    "compressed-tensors": "NVFP4 (compressed-tensors)",
}


@dataclass(frozen=True)
class ModuleGroup:
    """Modules of one kind in one form. count: matrices or vectors. stored_bytes: in the files,
    scales included.

    weights: numbers they stand for.
    """

    kind: str
    form: str
    count: int
    weights: int
    stored_bytes: int


def module_groups(checkpoint: Checkpoint) -> tuple[ModuleGroup, ...]:
    """The checkpoint's parts, largest first; a kind stored in two forms appears twice."""
    sums: dict[tuple[str, str], list[int]] = {}

    def add(kind: str, form: str, count: int, weights: int, stored: int) -> None:
        total = sums.setdefault((kind, form), [0, 0, 0])
        for index, value in enumerate((count, weights, stored)):
            total[index] += value

    for module, matrix in checkpoint.inventory.matrices.items():
        rows, cols = matrix.weight.shape
        weights = rows * cols * (1 if matrix.form == "dense" else 2)
        add(_kind(checkpoint, module), stored_form(checkpoint, module), 1, weights, matrix.nbytes)
    for stack in checkpoint.inventory.stacks.values():
        for entry in stack.values():
            weights = entry.shape[0] * entry.shape[1] * entry.shape[2]
            add("routed experts", _DTYPE_WORDS[entry.dtype], entry.shape[0], weights, entry.nbytes)
    for entry in checkpoint.inventory.tensors.values():
        weights = prod(entry.shape)
        add("norms and biases", _DTYPE_WORDS[entry.dtype], 1, weights, entry.nbytes)
    groups = [ModuleGroup(kind, form, *total) for (kind, form), total in sums.items()]
    return tuple(sorted(groups, key=lambda group: -group.stored_bytes))


def stored_form(checkpoint: Checkpoint, module: str) -> str:
    """The form of one matrix in words, e.g. "bfloat16" or "NVFP4 (ModelOpt)"."""
    matrix = checkpoint.inventory.matrices[module]
    if matrix.form == "dense":
        return _DTYPE_WORDS[matrix.weight.dtype]
    return _PACKED_WORDS[matrix.form]


def quantisation_words(checkpoint: Checkpoint) -> str:
    """One line, e.g. "NVFP4 (ModelOpt): routed experts; bfloat16: the rest"."""
    groups = [group for group in module_groups(checkpoint) if group.kind != "norms and biases"]
    kinds = [group.kind for group in groups]
    by_form: dict[str, list[str]] = {}
    for group in groups:
        some = "some " if kinds.count(group.kind) > 1 else ""
        by_form.setdefault(group.form, []).append(some + group.kind)
    if len(by_form) == 1:
        return next(iter(by_form))
    packed = [form for form in by_form if form.startswith("NVFP4")]
    words = [f"{form}: {', '.join(by_form[form])}" for form in packed]
    plain = [form for form in by_form if form not in packed]
    if len(plain) == 1 and packed:
        return "; ".join([*words, f"{plain[0]}: the rest"])
    return "; ".join([*words, *(f"{form}: {', '.join(by_form[form])}" for form in plain)])


def _kind(checkpoint: Checkpoint, module: str) -> str:
    if module == checkpoint.spec.table.embedding:
        return "embedding"
    if checkpoint.spec.checkpoint_name("lm_head") == module:
        return "head"
    return checkpoint.spec.kind(module)
