"""What a forward must read and multiply at the least: the floor that a measured step is held
against.

Knows the tensors of a spec and the form each is stored in. Counts every weight once a forward, the
head for the block alone, and the keys and values that are seen. Sums between layers, logits and
embedding rows stay out: they are small, or could stay in registers.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

from engine.bench.shapes import BenchSpec

PACKED = 9 / 16  # bytes of an NVFP4 weight: half for its code, a sixteenth for its share of a scale


@dataclass(frozen=True)
class Forms:
    """How weights are stored. item: bytes of a dense weight and of a cached number. experts,
    linears: NVFP4 for routed experts, and for every other matrix but routers and a tied head."""

    item: int = 2
    experts_packed: bool = True
    linears_packed: bool = False

    def of(self, packed: bool) -> float:
        """Bytes of one weight."""
        return PACKED if packed else float(self.item)

    @property
    def words(self) -> str:
        dense = {2: "bfloat16", 4: "float32"}[self.item]
        if self.linears_packed:
            return f"NVFP4, routers and norms {dense}"
        return f"NVFP4 experts, the rest {dense}" if self.experts_packed else dense


@dataclass(frozen=True)
class Parts:
    """One number a part: bytes, or multiplications."""

    attention: float = 0.0
    mlp: float = 0.0  # dense layers and shared experts
    router: float = 0.0
    experts: float = 0.0
    head: float = 0.0
    cache: float = 0.0

    @property
    def total(self) -> float:
        return sum(getattr(self, field.name) for field in fields(self))


def even_experts(count: int, per_token: int, tokens: int) -> float:
    """Distinct experts that n tokens meet when each takes k of E evenly: E (1 - (1 - k/E)^n)."""
    return count * (1 - (1 - per_token / count) ** tokens)


def weights_of(spec: BenchSpec) -> Parts:
    """Weights by part, one expert of every layer in `experts`."""
    table = spec.table
    head = spec.checkpoint_name("lm_head")
    sums = dict.fromkeys((field.name for field in fields(Parts)), 0.0)
    routers: set[str] = set()
    bases: tuple[str, ...] = ()
    if table.experts is not None:
        layers = table.experts.layers
        routers = {table.experts.router_of(layer) for layer in layers}
        bases = tuple(f"{table.experts.base(layer)}." for layer in layers)
        one = sum(rows * columns for _, rows, columns in table.experts.shapes.values())
        sums["experts"] = float(one * len(layers))
    for name, (rows, columns) in table.linears.items():
        if bases and name.startswith(bases):
            continue
        if name == head:
            part = "head"
        elif name in routers:
            part = "router"
        else:
            part = "attention" if spec.kind(name) == "attention" else "mlp"
        sums[part] += rows * columns
    if head not in table.linears:
        sums["head"] = float(spec.vocab_size * spec.hidden_size)
    return Parts(**sums)


def step_bytes(spec: BenchSpec, forms: Forms, distinct: float, context: int) -> Parts:
    """Bytes one forward over a block reads. distinct: routed experts met in a layer, 0 without
    any. context: positions seen, the block's own included."""
    weights = weights_of(spec)
    tied = spec.checkpoint_name("lm_head") not in spec.table.linears
    linear = forms.of(forms.linears_packed)
    return Parts(
        attention=weights.attention * linear,
        mlp=weights.mlp * linear,
        router=weights.router * forms.item,
        experts=weights.experts * distinct * forms.of(forms.experts_packed),
        head=weights.head * (forms.item if tied else linear),
        cache=float(spec.kv_numbers * forms.item * context),
    )


def step_products(spec: BenchSpec, tokens: int, judged: int, context: int) -> Parts:
    """Multiplications and additions of one forward over `tokens` positions of which the last
    `judged` get logits, 2 for each weight a token meets; attention's own against `context` keys
    under `cache`."""
    weights = weights_of(spec)
    experts = spec.table.experts
    queries = spec.num_layers * spec.num_heads * spec.head_dim  # numbers of a position's
    return Parts(
        attention=2 * weights.attention * tokens,
        mlp=2 * weights.mlp * tokens,
        router=2 * weights.router * tokens,
        experts=2 * weights.experts * tokens * (experts.per_token if experts else 0),
        head=2 * weights.head * judged,
        cache=2.0 * 2 * queries * tokens * context,
    )
