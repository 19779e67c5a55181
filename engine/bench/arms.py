"""The arms that run the same replies: eager, one graph per step, the whole reply as one graph, and
that one recorded.

Knows which arms a machine can have and why it cannot have the others, and that arms take turns, so
that a clock that drifts drifts for all of them. What a script is, is `engine.bench.replies`'
business.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from engine.bench.even_routing import ExpertCount, Noise, RoutingName, counting, routed
from engine.bench.random_model import Built
from engine.bench.replies import Clocks, Script, run_script
from engine.bench.shapes import BenchSpec
from engine.compose import make_program
from engine.decoding.rules import RuleOptions
from engine.errors import UnblurError
from engine.hardware import LoopPath
from engine.runtime.choice import LoopChoice, Runtime, choose_loop, make_runtime
from engine.types import Capture, CaptureLevel

TOP = Capture().top_k  # best tokens kept a position
EAGER, PER_STEP, REPLY = "eager", "one graph per step", "whole reply"
LIGHT, WITH_TOP = "whole reply, recorded", f"whole reply, recorded, top {TOP}"
OTHER = {"uniform": "whole reply, the model's own routing", "own": "whole reply, uniform routing"}
_ORDER: tuple[LoopPath, ...] = ("eager", "one graph per step", "one graph per reply")


@dataclass(frozen=True)
class Place:
    """A built model, and how replies of it are measured. context: positions before a reply. noise:
    what even routing reads, also in graphs that were captured before."""

    built: Built
    spec: BenchSpec
    context: int
    scripts: tuple[Script, ...]
    rounds: int
    noise: Noise = field(default_factory=Noise)

    @property
    def capacity(self) -> int:
        longest = max(script.blocks for script in self.scripts)
        return self.context + (longest + 1) * self.spec.block_length


@dataclass
class Arm:
    """level: what its steps leave in the trace. few: one round of the longest script is enough,
    since its host decides how long it takes."""

    name: str
    runtime: Runtime
    level: CaptureLevel = "off"
    few: bool = False
    clocks: dict[int, Clocks] = field(default_factory=dict)

    def round(self, place: Place, scripts: Sequence[Script]) -> None:
        for script in scripts:
            into = self.clocks.setdefault(script.forwards, Clocks())
            run_script(self.runtime, place.spec, script, place.context, self.level, into)

    def warm_up(self, place: Place) -> None:
        """Compiles and captures what its replies need, by one of them."""
        shortest = min(place.scripts, key=lambda script: script.forwards)
        script = Script(shortest.forwards, 2)
        run_script(self.runtime, place.spec, script, place.context, self.level, Clocks())


@dataclass(frozen=True)
class Arms:
    """missing: why an arm is not there, by its name. disagreeing: arms whose replies are not the
    first arm's, though they route alike."""

    there: list[Arm]
    missing: dict[str, str]
    disagreeing: tuple[str, ...] = ()

    def close(self) -> None:
        for runtime in {id(arm.runtime): arm.runtime for arm in self.there}.values():
            runtime.close()


def measure_arms(place: Place, routing: RoutingName) -> Arms:
    """Builds every arm this machine can have and runs the rounds."""
    arms = _make(place, routing)
    model = place.built.model
    with routed(model, routing, place.noise):
        for number in range(place.rounds):
            for arm in arms.there:
                if number == 0 or not arm.few:
                    arm.round(place, place.scripts)
    return replace(arms, disagreeing=_disagreeing(arms.there, OTHER[routing]))


def _make(place: Place, routing: RoutingName) -> Arms:
    best = choose_loop(place.built.model.norm.weight.device)
    arms = Arms([], {})

    def add(name: str, path: LoopPath, level: CaptureLevel = "off", few: bool = False) -> None:
        if _ORDER.index(path) > _ORDER.index(best.path):
            arms.missing[name] = best.reason
            return
        try:
            arm = Arm(name, make_runtime_of(place, path), level, few)
            arm.warm_up(place)
        except (RuntimeError, UnblurError) as error:  # the others can still be measured
            arms.missing[name] = f"It failed: {error}"
            return
        arms.there.append(arm)

    with routed(place.built.model, routing, place.noise):
        add(EAGER, "eager", few=True)
        add(PER_STEP, "one graph per step")
        add(REPLY, "one graph per reply")
        add(LIGHT, "one graph per reply", level="light")
        add(WITH_TOP, "one graph per reply", level="top-k")
    if place.spec.table.experts is not None:
        other: RoutingName = "own" if routing == "uniform" else "uniform"
        with routed(place.built.model, other, place.noise):
            add(OTHER[routing], "one graph per reply")
    return arms


def make_runtime_of(place: Place, path: LoopPath) -> Runtime:
    """With a cache and buffers of its own."""
    model = place.built.model
    options = RuleOptions()
    dtype = model.norm.weight.dtype
    kernels = place.built.report.used
    program = make_program(model, 1, place.capacity, options, dtype, kernels=kernels)
    return make_runtime(program, options.stop_after_block, LoopChoice(path, "It is measured."))


def _disagreeing(arms: Sequence[Arm], apart: str) -> tuple[str, ...]:
    """apart: an arm that routes otherwise."""
    alike = [arm for arm in arms if arm.name != apart]
    return tuple(
        arm.name
        for arm in alike
        if any(c.ids != alike[0].clocks[forwards].ids for forwards, c in arm.clocks.items())
    )


def count_experts(place: Place, routing: RoutingName) -> ExpertCount:
    """Distinct experts of the forwards of a short eager reply; nothing without experts."""
    model = place.built.model
    script = Script(4, 3)
    with routed(model, routing, place.noise), counting(model) as count:
        if place.spec.table.experts is not None:
            runtime = make_runtime_of(place, "eager")
            run_script(runtime, place.spec, script, place.context, "off", Clocks())
    return count
