"""One run of the benchmark, from a shape's name to a report.

Knows in which order things are measured, so that nothing that is timed shares the device with
anything else, and that what does not fit is said and not guessed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

import torch

from engine.bench.arms import (
    EAGER,
    LIGHT,
    PER_STEP,
    REPLY,
    WITH_TOP,
    Place,
    count_experts,
    measure_arms,
)
from engine.bench.bytes_moved import Forms, even_experts, step_bytes, step_products
from engine.bench.even_routing import RoutingName
from engine.bench.kernel_share import measure_kernels
from engine.bench.machine import Machine, Spread, give_back, measure_machine
from engine.bench.random_model import Built, build_random
from engine.bench.reference import measure_reference, why_not
from engine.bench.replies import Neighbours, Script
from engine.bench.report import ArmRow, Forward, Report, TokenRow, arm_row
from engine.bench.shapes import BenchSpec, Shape
from engine.errors import RequestError, RuntimeFailure
from engine.models.dense import Dense
from engine.runtime.choice import has_triton

LONG = 32  # forwards a block of the script that steps are timed by
REPLY_TOKENS = 256  # about, and three blocks at the least
ROUNDS = 3
Say = Callable[[str], None]


@dataclass(frozen=True)
class BenchOptions:
    """context: tokens of prompt, whole blocks. tpf: at least one. reference_tokens: 0 = no
    reference arm."""

    context: int
    tpf: tuple[float, ...] = (8.5,)
    routing: RoutingName = "uniform"
    all_nvfp4: bool = False
    rounds: int = ROUNDS
    reference_tokens: int = 544


def run_bench(
    shape: Shape, device: torch.device, options: BenchOptions, command: str, say: Say
) -> Report:
    """say: told what is being done. Raises RequestError for what cannot be asked, RuntimeFailure
    for what failed."""
    spec = shape.spec
    _check(shape, device, options)
    with _memory_in_words(shape.name):
        wanted = [Neighbours.of(tpf, spec.block_length) for tpf in options.tpf]
        say("Measuring the machine")
        machine = measure_machine(device)
        dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
        forms = _forms(spec, device, options)
        say("Drawing a random model")
        kernels = device.type == "cuda" and has_triton()
        give_back(device)
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(device)
        built = build_random(spec, device, dtype, forms, kernels=kernels)
        report = _with_model(shape, built, machine, forms, options, wanted, command, say)
        del built
        give_back(device)
        return _with_reference(report, spec, device, dtype, options, say)


def _forms(spec: BenchSpec, device: torch.device, options: BenchOptions) -> Forms:
    """As a load would leave the weights: on a CPU, NVFP4 is expanded once."""
    if device.type != "cuda":
        return Forms(4, experts_packed=False)
    return Forms(2, spec.table.experts is not None, options.all_nvfp4)


def _check(shape: Shape, device: torch.device, options: BenchOptions) -> None:
    if device.type != "cuda" and not shape.on_cpu:
        raise RequestError(
            "bench.needs_gpu",
            f"The shape {shape.name} is measured on an NVIDIA GPU, and not on {device.type}.",
            "Measure the demo's shape here: --shape demo.",
        )
    if device.type != "cuda" and options.all_nvfp4:
        raise RequestError(
            "bench.nvfp4_on_cpu",
            "On a CPU every NVFP4 weight is expanded as it is loaded: there is nothing to measure.",
            "Leave --all-nvfp4 out, or measure on an NVIDIA GPU.",
        )
    spec = shape.spec
    longest = spec.max_position_embeddings - (_blocks(spec) + 1) * spec.block_length
    if not 0 < options.context <= longest or options.context % spec.block_length:
        raise RequestError(
            "bench.context",
            f"A prompt of {options.context} tokens cannot be measured at this shape.",
            f"Choose a multiple of {spec.block_length}, up to {longest}.",
        )


def _blocks(spec: BenchSpec) -> int:
    return max(3, REPLY_TOKENS // spec.block_length)


def scripts_of(spec: BenchSpec, wanted: list[Neighbours]) -> tuple[Script, ...]:
    """The longest first, then the neighbours of every TPF."""
    longest = min(LONG, spec.block_length)
    counts = {longest, *(n.low for n in wanted), *(n.high for n in wanted)}
    return tuple(Script(n, _blocks(spec)) for n in sorted(counts, reverse=True))


def _with_model(
    shape: Shape,
    built: Built,
    machine: Machine,
    forms: Forms,
    options: BenchOptions,
    wanted: list[Neighbours],
    command: str,
    say: Say,
) -> Report:
    """Everything but the reference."""
    spec = shape.spec
    device = built.model.norm.weight.device
    place = Place(built, spec, options.context, scripts_of(spec, wanted), options.rounds)
    say("Counting experts")
    count, own = (count_experts(place, how) for how in (options.routing, "own"))
    length = spec.block_length
    forwards = [
        _forward(spec, forms, machine, tokens, count.mean(tokens), options.context)
        for tokens in (length, 2 * length)
    ]
    say("Compiling, capturing and timing the arms")
    arms = measure_arms(place, options.routing)
    rows = [arm_row(arm.name, arm.clocks, wanted, length) for arm in arms.there]
    peak, used = _memory(device)
    arms.close()
    share = None
    if device.type == "cuda":
        say("Profiling kernels")
        share = measure_kernels(place, options.routing)
    give_back(device)
    missing = dict(arms.missing)
    tokens = _token_rows(built, options, missing, say)
    floor = None
    if tokens:
        reads = step_bytes(spec, forms, 0.0, options.context).total
        floor = machine.floor_ms(reads, step_products(spec, 1, 1, options.context).total)
    return Report(
        command=command,
        shape=shape.name,
        words=shape.words,
        weights=forms.words,
        parameters=spec.table.parameters,
        routing=options.routing,
        context=options.context,
        block=length,
        machine=machine,
        build_seconds=built.seconds,
        step=forwards[0],
        first=forwards[1],
        own_distinct=own.mean(length),
        arms=rows,
        missing=missing,
        kernels_busy_ms=None if share is None else share.busy_ms,
        kernels_by_part={} if share is None else share.parts,
        launches=None if share is None else share.launches,
        tokens=tokens,
        token_floor_ms=floor,
        reference=None,
        reference_tokens=0,
        peak_bytes=peak,
        used_bytes=used,
        disagreeing=arms.disagreeing,
        compared=compare(rows, forwards[0], None if share is None else share.busy_ms, tokens),
        notes=[*_notes(rows), *built.report.sentences],
    )


def _forward(
    spec: BenchSpec, forms: Forms, machine: Machine, tokens: int, distinct: float, context: int
) -> Forward:
    """In the middle of a reply."""
    seen = context + (_blocks(spec) // 2 + 1) * spec.block_length
    experts = spec.table.experts
    even = even_experts(experts.count, experts.per_token, tokens) if experts else 0.0
    reads = step_bytes(spec, forms, distinct, seen)
    products = step_products(spec, tokens, spec.block_length, seen).total
    return Forward(
        tokens,
        distinct,
        even,
        reads,
        machine.floor_ms(reads.total, products),
        machine.bound_by(reads.total, products),
    )


def _token_rows(
    built: Built, options: BenchOptions, missing: dict[str, str], say: Say
) -> list[TokenRow]:
    """The autoregressive arm, where there is one; else why not goes to `missing`."""
    name, model = "autoregressive", built.model
    if not isinstance(model, Dense):
        missing[name] = "It is measured at the dense shape: --shape qwen3-4b."
    elif not built.report.used:
        missing[name] = "It needs a GPU and Triton."
    elif options.all_nvfp4:
        missing[name] = "It is measured with weights in bfloat16."
    else:
        from engine.bench.autoregressive import capture_versions  # needs Triton

        say("Timing the autoregressive arm")
        versions = capture_versions(model, options.context)
        for _ in range(options.rounds):
            for version in versions:
                version.round()
        return [TokenRow(version.name, Spread.of(version.times)) for version in versions]
    return []


def compare(
    rows: list[ArmRow], step: Forward, busy: float | None, tokens: list[TokenRow]
) -> dict[str, float]:
    """The figures that are ratios of others."""
    by_name = {row.name: row for row in rows}
    found: dict[str, float] = {}
    best = by_name.get(REPLY) or by_name[EAGER]
    if best.step is not None:
        found[f"{best.name}: step over its floor"] = best.step.median / step.floor_ms
        if busy is not None:
            found[f"{best.name}: kernels' share of a step"] = busy / best.step.median
    if best.name == REPLY:
        for name in (PER_STEP, LIGHT, WITH_TOP):
            if name in by_name:
                found[f"{name} over {REPLY}, time"] = by_name[name].reply_ms / best.reply_ms
        found[f"{REPLY}: processor time, of one core"] = best.processor
    if tokens:
        fastest = max(tokens, key=lambda row: row.tokens_s)
        for tpf, speed in best.tokens_s.items():
            found[f"{best.name} at TPF {tpf:g} over autoregressive"] = speed / fastest.tokens_s
    return found


def _with_reference(
    report: Report,
    spec: BenchSpec,
    device: torch.device,
    dtype: torch.dtype,
    options: BenchOptions,
    say: Say,
) -> Report:
    if not options.reference_tokens:
        return report
    why = why_not(spec, device, dtype)
    if why:
        report.missing["reference"] = why[0].upper() + why[1:] + "."
        return report
    say("Timing the reference")
    found = measure_reference(spec, device, dtype, options.reference_tokens)
    row = next((row for row in report.arms if row.name == REPLY), report.arms[0])
    if row.step is not None:
        report.compared[f"Reference over {row.name}, a step"] = (
            found.step_ms.median / row.step.median
        )
    return replace(report, reference=found.step_ms, reference_tokens=found.tokens)


def _memory(device: torch.device) -> tuple[int, int]:
    """Bytes: the most that torch held, and what is in use on the card. 0 on a CPU."""
    if device.type != "cuda":
        return 0, 0
    free, total = torch.cuda.mem_get_info(device)
    return torch.cuda.max_memory_allocated(device), total - free


def _notes(rows: list[ArmRow]) -> list[str]:
    notes: list[str] = []
    if any(not row.direct for row in rows):
        notes.append(
            "* No stamp a step: from whole blocks of fewer and more forwards; p10 and p90 are of"
            " means over a block."
        )
    if any(row.name == WITH_TOP for row in rows):
        notes.append(
            "The best tokens are searched on the device, kept in a ring and fetched from there."
        )
    return notes


@contextmanager
def _memory_in_words(shape: str) -> Iterator[None]:
    try:
        yield
    except torch.OutOfMemoryError as error:
        raise RuntimeFailure(
            "bench.out_of_memory",
            f"The device's memory is not enough to measure {shape}.",
            "Close other programs, leave the reference out (--no-reference), or choose another"
            " shape.",
        ) from error
