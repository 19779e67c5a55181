"""Which modules become NVFP4, which stay, and why.

Takes the family's own table of modules, so that a new family needs nothing here. Routers, the
embedding, and matrices that do not divide into blocks are never chosen; the head and
self-conditioning only by name (models.md 5c). Knows names and shapes, never values.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Literal

from engine.checkpoint.refusals import printable, refuse
from engine.kernels.nvfp4 import BLOCK
from engine.models.family import FamilySpec

What = Literal["experts", "linears"]


@dataclass(frozen=True)
class Choice:
    """what: "experts" = the routed experts, "linears" = these and all other linear modules but the
    head; None = experts where the model has any, else linears. modules: patterns as in a shell that
    are taken instead. exclude: patterns that are taken out again."""

    what: What | None = None
    modules: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()


@dataclass(frozen=True)
class Chosen:
    """modules: those that become NVFP4, in the table's order. left: reason -> how many matrices
    stay. words: the choice for a person."""

    modules: frozenset[str]
    left: Mapping[str, int]
    words: str


def choose(spec: FamilySpec, choice: Choice) -> Chosen:
    """Resolves a choice. Raises CheckpointError `quantise.no_experts`, `quantise.unknown_module`,
    `quantise.module_stays` or `quantise.nothing_chosen`."""
    fixed = _fixed(spec)
    held = _by_name_only(spec)
    table = spec.table
    known = [*table.linears, table.embedding]
    if choice.modules:
        taken = _matching(choice.modules, known, fixed)
        words = ", ".join(choice.modules)
    else:
        bases = _expert_bases(spec)
        what = choice.what or ("experts" if bases else "linears")
        if what == "experts" and not bases:
            raise refuse(
                "quantise.no_experts",
                "This model has no routed experts.",
                "Quantise all linear modules instead.",
            )
        taken = {
            module
            for module in table.linears
            if module not in fixed
            and module not in held
            and (what == "linears" or module.startswith(bases))
        }
        words = "routed experts" if what == "experts" else "all linear modules"
    if choice.exclude:
        taken -= _matching(choice.exclude, known, {})
        words += f" without {', '.join(choice.exclude)}"
    if not taken:
        raise refuse(
            "quantise.nothing_chosen",
            "No module is left to quantise.",
            "Choose more modules, or exclude fewer.",
        )
    left = Counter(
        fixed.get(module) or held.get(module) or "not chosen"
        for module in known
        if module not in taken
    )
    return Chosen(frozenset(taken), dict(left), words)


def excluded_names(spec: FamilySpec, taken: frozenset[str], *, embedding: bool) -> list[str]:
    """The modules that stay, for the config's list. A layer's experts that all stay are one pattern
    that ends in `.*`. embedding: whether to list it too."""
    experts = spec.table.experts
    whole: dict[str, bool] = {}  # experts' base -> whether all of them stay
    for base in _expert_bases(spec):
        whole[base] = not any(module.startswith(base) for module in taken)
    names: list[str] = []
    for module in spec.table.linears:
        if module in taken:
            continue
        base = next((base for base in whole if module.startswith(base)), "") if experts else ""
        name = f"{base}*" if base and whole[base] else module
        if not names or names[-1] != name:
            names.append(name)
    return [*names, spec.table.embedding] if embedding else names


def _fixed(spec: FamilySpec) -> dict[str, str]:
    """Modules that no choice can take -> why."""
    table = spec.table
    fixed = {
        module: f"its {cols} inputs are no multiple of {BLOCK}"
        for module, (_, cols) in table.linears.items()
        if cols % BLOCK
    }
    if table.experts is not None:
        for layer in table.experts.layers:
            fixed[table.experts.router_of(layer)] = "routers stay as they are: near ties would flip"
    fixed[table.embedding] = "an embedding in NVFP4 is not read by other programs"
    return fixed


def _by_name_only(spec: FamilySpec) -> dict[str, str]:
    held = {
        module: "self-conditioning stays as it is unless it is named"
        for module in spec.table.linears
        if ".self_conditioning." in module
    }
    held[spec.checkpoint_name("lm_head")] = "the head stays as it is unless it is named"
    return held


def _matching(patterns: Sequence[str], known: Sequence[str], fixed: Mapping[str, str]) -> set[str]:
    """What the patterns match and nothing forbids; each must match something."""
    found: set[str] = set()
    for pattern in patterns:
        matched = [module for module in known if fnmatchcase(module, pattern)]
        allowed = [module for module in matched if module not in fixed]
        shown = printable(pattern)
        if not matched:
            raise refuse(
                "quantise.unknown_module",
                f"No module of this model matches {shown}.",
                "List the modules with: inspect --modules DIR. A pattern must match a whole name,"
                " e.g. *.attention.*",
                item=shown,
            )
        if not allowed:
            raise refuse(
                "quantise.module_stays",
                f"{matched[0]} cannot become NVFP4: {fixed[matched[0]]}.",
                "Choose other modules.",
                item=shown,
            )
        found.update(allowed)
    return found


def _expert_bases(spec: FamilySpec) -> tuple[str, ...]:
    """What the names of each layer's experts begin with."""
    experts = spec.table.experts
    return tuple(f"{experts.base(layer)}." for layer in experts.layers) if experts else ()
