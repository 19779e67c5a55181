"""What a run of the benchmark found, as one JSON object and as one table for a person.

Knows layout and the figures that follow from others (tokens a second at a TPF, shares of a floor,
ratios). Measures nothing.
"""

from __future__ import annotations

import statistics
from dataclasses import asdict, dataclass, field
from typing import Any

from engine.bench.bytes_moved import Parts
from engine.bench.machine import Machine, Spread
from engine.bench.replies import Clocks, Neighbours


@dataclass(frozen=True)
class Forward:
    """One forward and its floor. tokens: positions it covers. distinct: experts met in a layer,
    counted, 0 without any; even: what chance gives. reads: bytes by part. floor_ms: see
    `Machine.floor_ms`. bound: by memory or by arithmetic."""

    tokens: int
    distinct: float
    even: float
    reads: Parts
    floor_ms: float
    bound: str


@dataclass(frozen=True)
class ArmRow:
    """step: a forward that is no block's first; first: one that also commits the block before.
    direct: both from a time stamp a step (else from whole blocks of different numbers of forwards,
    and the spread is that of means over a block). block_ms: by forwards a block. tokens_s: by TPF.
    first_block_ms, prefill_ms: from the request on, host clock, with the prompt. processor: seconds
    of processor time a second of decoding, all threads. reply_ms: of the longest script."""

    name: str
    step: Spread | None
    first: Spread | None
    direct: bool
    block_ms: dict[int, float]
    tokens_s: dict[float, float]
    first_block_ms: float
    prefill_ms: float
    processor: float
    reply_ms: float


@dataclass(frozen=True)
class TokenRow:
    """A version of the autoregressive arm: milliseconds a token."""

    name: str
    token: Spread

    @property
    def tokens_s(self) -> float:
        return 1e3 / self.token.median


@dataclass(frozen=True)
class Report:
    """Everything of one run. missing: arms that are not there, and why. compared: "A over B" ->
    ratio. notes: sentences."""

    command: str
    shape: str
    words: str
    weights: str
    parameters: int
    routing: str
    context: int
    block: int
    machine: Machine
    build_seconds: float
    step: Forward
    first: Forward
    own_distinct: float
    arms: list[ArmRow]
    missing: dict[str, str]
    kernels_busy_ms: float | None
    kernels_by_part: dict[str, float]
    launches: float | None
    tokens: list[TokenRow]
    token_floor_ms: float | None
    reference: Spread | None
    reference_tokens: int
    peak_bytes: int
    used_bytes: int
    disagreeing: tuple[str, ...] = ()
    compared: dict[str, float] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def arm_row(
    name: str, by_script: dict[int, Clocks], wanted: list[Neighbours], block: int
) -> ArmRow:
    """by_script: clocks by forwards a block; those that `wanted` needs are among them."""
    longest = by_script[max(by_script)]
    block_ms = {n: statistics.median(c.blocks) for n, c in sorted(by_script.items())}
    direct = bool(longest.steps)
    if direct:
        step, first = Spread.of(longest.steps), Spread.of(longest.firsts)
    else:
        step, first = _from_blocks(by_script)
    every = list(by_script.values())
    return ArmRow(
        name=name,
        step=step,
        first=first,
        direct=direct,
        block_ms=block_ms,
        tokens_s={n.tpf: 1e3 * block / n.block_ms(block_ms) for n in wanted},
        first_block_ms=_first_block(by_script, wanted),
        prefill_ms=statistics.median(ms for clocks in every for ms in clocks.prefill),
        processor=statistics.median(longest.processor),
        reply_ms=statistics.median(longest.replies),
    )


def _first_block(by_script: dict[int, Clocks], wanted: list[Neighbours]) -> float:
    """Of the slower neighbour of the first TPF that was asked for."""
    return statistics.median(by_script[wanted[0].high].first_block)


def _from_blocks(by_script: dict[int, Clocks]) -> tuple[Spread | None, Spread | None]:
    """A block of n forwards takes one first forward and n - 1 others: two numbers of forwards give
    both. None with a single one."""
    fewest, most = min(by_script), max(by_script)
    if fewest == most:
        return None, None
    low, high = (statistics.median(by_script[n].blocks) for n in (fewest, most))
    step = (high - low) / (most - fewest)
    first = low - (fewest - 1) * step
    means = [(block - first) / (most - 1) for block in by_script[most].blocks]
    firsts = [block - (fewest - 1) * step for block in by_script[fewest].blocks]
    return Spread.of(means), Spread.of(firsts)


def table(report: Report) -> str:
    """The report for a terminal."""
    tpfs = list(report.arms[0].tokens_s) if report.arms else []
    lines = [
        f"{report.shape}: {report.words}",
        f"{report.parameters / 1e9:.3g}B weights: {report.weights};"
        f" built at random in {report.build_seconds:.1f} s",
        f"{report.machine.device} ({report.machine.software}): reads"
        f" {report.machine.bandwidth / 1e12:.3g} TB/s{_products(report.machine)}",
        f"{report.context} tokens of prompt, blocks of {report.block}, {_experts(report)}",
        "",
        *_forwards(report),
        "",
        _row("", "ms/step", "p10", "p90", "+commit", *(f"tok/s@{t:g}" for t in tpfs), "1st block"),
        *(_arm(row, tpfs) for row in report.arms),
        *(f"  {name}: not here. {why}" for name, why in report.missing.items()),
    ]
    if report.kernels_busy_ms is not None:
        parts = ", ".join(f"{n} {ms:.3f}" for n, ms in report.kernels_by_part.items())
        lines += ["", f"Kernels, ms a step ({report.launches:.0f} launches): {parts}"]
    if report.tokens:
        lines += ["", _row("autoregressive, a token at a time", "ms/token", "p10", "p90", "tok/s")]
        for row in report.tokens:
            t = row.token
            numbers = (f"{t.median:.3f}", f"{t.p10:.3f}", f"{t.p90:.3f}", f"{row.tokens_s:.0f}")
            lines.append(_row(f"  {row.name}", *numbers))
        lines.append(f"  floor {report.token_floor_ms:.3f} ms")
    if report.reference is not None:
        r = report.reference
        lines += [
            "",
            f"Reference in plain PyTorch, {report.reference_tokens} tokens forwarded again a step:"
            f" {r.median:.1f} ms ({r.p10:.1f} to {r.p90:.1f})",
        ]
    lines += ["", *(f"{name}: {value:.4g}" for name, value in report.compared.items())]
    if report.peak_bytes:
        lines.append(
            f"Device memory: {report.peak_bytes / 1e9:.2f} GB at most in tensors and graphs,"
            f" {report.used_bytes / 1e9:.2f} GB in use on the card with the driver's own"
        )
    for name in report.disagreeing:
        lines.append(f"WRONG: {name} did not give the first arm's replies.")
    return "\n".join([*lines, *report.notes])


def _products(machine: Machine) -> str:
    if not machine.products:
        return ""
    return f", multiplies {machine.products / 1e12:.0f} TFLOP/s in bfloat16"


def _experts(report: Report) -> str:
    if not report.step.even:
        return "no routed experts"
    return (
        f"routing {report.routing}: {report.step.distinct:.1f} distinct experts a layer"
        f" (by chance {report.step.even:.1f}; the random model's own {report.own_distinct:.1f})"
    )


def _forwards(report: Report) -> list[str]:
    return [
        f"Floor of a {name} ({f.tokens} tokens): {f.floor_ms:.3f} ms by {f.bound},"
        f" {f.reads.total / 1e9:.4g} GB"
        + (f" with {f.distinct:.1f} experts a layer" if f.distinct else "")
        for name, f in (("step", report.step), ("forward that also commits", report.first))
    ]


def _arm(row: ArmRow, tpfs: list[float]) -> str:
    step, first = row.step, row.first
    numbers = [f"{x:.3f}" for x in (step.median, step.p10, step.p90)] if step else ["-"] * 3
    numbers.append(f"{first.median:.3f}" if first else "-")
    numbers += [f"{row.tokens_s[tpf]:.0f}" for tpf in tpfs]
    return _row(f"  {row.name}{'' if row.direct else ' *'}", *numbers, f"{row.first_block_ms:.1f}")


def _row(name: str, *cells: str) -> str:
    return f"{name:<42}" + "".join(f"{cell:>11}" for cell in cells)
