"""The arms of `bench`, graphs on the CPU's stand-in: same replies, the forwards that were scripted,
and an autoregressive arm that decodes what plain torch decodes."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest
import torch
from host_graph import HostBackend
from small import CPU
from torch import Tensor

from engine.bench import arms as arms_module
from engine.bench.arms import (
    EAGER,
    LIGHT,
    OTHER,
    PER_STEP,
    REPLY,
    TOP,
    WITH_TOP,
    Arm,
    Place,
    count_experts,
    make_runtime_of,
    measure_arms,
)
from engine.bench.autoregressive import (
    Decoder,
    GroupAttention,
    lying_together,
    one_vector_products,
)
from engine.bench.bytes_moved import Forms
from engine.bench.gpu_kernels import STEPS, TILINGS, WIDTH, read_all, times_vector
from engine.bench.measure import BenchOptions, run_bench
from engine.bench.random_model import Built, build_random
from engine.bench.reference import measure_reference, reference_step
from engine.bench.replies import Clocks, Neighbours, Script, run_script
from engine.bench.report import arm_row, table
from engine.bench.shapes import shape_of
from engine.compose import make_program
from engine.decoding.rules import RuleOptions
from engine.errors import RuntimeFailure
from engine.models.dense import Dense
from engine.models.layers import Linear, MaskAttend
from engine.runtime.attention import TritonAttention
from engine.runtime.choice import LoopChoice
from engine.runtime.eager import EagerRuntime
from engine.runtime.graph import GraphRuntime, PerStepGraphRuntime
from engine.runtime.pieces import make_pieces

SCRIPTS = (Script(8, 3), Script(2, 3), Script(1, 3))


def built(name: str = "tiny", kernels: bool = False) -> Built:
    forms = Forms(4, experts_packed=False)
    spec = shape_of(name).spec
    return build_random(spec, CPU, torch.float32, forms, kernels=kernels, interpret=kernels)


def place_of(model: Built, scripts: tuple[Script, ...] = SCRIPTS) -> Place:
    return Place(model, shape_of("tiny").spec, 24, scripts, rounds=2)


@pytest.fixture
def on_stand_in(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that can have every arm. Bookkeeping by kernels is interpreted, and slow: only one
    test has it."""
    stand_in(monkeypatch, one_launch=False)


def stand_in(monkeypatch: pytest.MonkeyPatch, one_launch: bool) -> None:
    def choose(_device: torch.device) -> LoopChoice:
        return LoopChoice("one graph per reply", "a test")

    def make(program, stop_after_block: bool, choice: LoopChoice):
        pieces = make_pieces(program, stop_after_block, slots=64, one_launch=one_launch)
        if choice.path == "eager":
            return EagerRuntime(pieces, exact=False)
        kind = GraphRuntime if choice.path == "one graph per reply" else PerStepGraphRuntime
        return kind(pieces, HostBackend(pieces))

    monkeypatch.setattr(arms_module, "choose_loop", choose)
    monkeypatch.setattr(arms_module, "make_runtime", make)


def test_every_arm_gives_the_same_reply_in_the_scripted_forwards(on_stand_in: None) -> None:
    arms = measure_arms(place_of(built(), (Script(4, 3), Script(2, 3))), "uniform")
    names = [arm.name for arm in arms.there]
    assert names == [EAGER, PER_STEP, REPLY, LIGHT, WITH_TOP, OTHER["uniform"]]
    assert arms.missing == {}
    assert arms.disagreeing == ()
    by_name = {arm.name: arm for arm in arms.there}
    rounds = {name: len(arm.clocks[4].replies) for name, arm in by_name.items()}
    assert rounds.pop(EAGER) == 1
    assert set(rounds.values()) == {2}
    light, off = by_name[LIGHT].clocks[4], by_name[REPLY].clocks[4]
    # Three blocks of four: three steps of each are no firsts, and the first block commits nothing.
    assert (len(light.steps), len(light.firsts), len(light.blocks)) == (2 * 9, 2 * 2, 2 * 2)
    assert (len(off.steps), len(off.firsts), len(off.blocks)) == (0, 0, 2 * 2)
    assert len(light.ids) == 24
    assert len(set(light.ids)) > 4  # replies that say one thing only would agree by themselves
    rows = [arm_row(a.name, a.clocks, [Neighbours.of(4.0, 8)], 8) for a in arms.there]
    assert [row.direct for row in rows] == [True, True, False, True, True, False]
    assert all(row.tokens_s[4.0] > 0 for row in rows)


def test_blocks_of_four_have_every_arm(on_stand_in: None) -> None:
    """SDAR's: shorter than any kernel's tile, and than the steps of a long script."""
    shape = shape_of("tiny-block4")
    scripts = (Script(4, 3), Script(2, 3))
    arms = measure_arms(Place(built(shape.name), shape.spec, shape.prompt, scripts, 1), "own")
    assert [arm.name for arm in arms.there][:5] == [EAGER, PER_STEP, REPLY, LIGHT, WITH_TOP]
    assert arms.disagreeing == ()
    wanted = [Neighbours.of(shape.tpf, 4)]
    assert all(arm_row(a.name, a.clocks, wanted, 4).tokens_s[shape.tpf] > 0 for a in arms.there)


def test_blocks_of_four_say_the_same_by_kernels() -> None:
    shape, ids = shape_of("tiny-block4"), list[list[int]]()
    for kernels in (False, True):
        model = built(shape.name, kernels).model
        program = make_program(model, 1, shape.prompt + 16, RuleOptions(), torch.float32)
        if kernels:
            program.cache.attention = TritonAttention(16, shape.config["rope_theta"])
        pieces = make_pieces(program, True, slots=64, one_launch=kernels)
        runtime = GraphRuntime(pieces, HostBackend(pieces))
        row = Script(2, 2).row(shape.spec, shape.prompt, "off")
        runtime.prefill([row])
        assert len(list(runtime.run([row]))) == row.forwards == 4
        ids.append(row.ids)
    assert ids[0] == ids[1]
    assert len(set(ids[0])) > 3


def test_an_arm_that_fails_leaves_the_others(
    on_stand_in: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(_self: PerStepGraphRuntime, _piece: str) -> None:
        raise RuntimeError("no such kernel")

    monkeypatch.setattr(PerStepGraphRuntime, "_call", broken)
    arms = measure_arms(place_of(built(), (Script(2, 3),)), "uniform")
    assert arms.missing[PER_STEP] == "It failed: no such kernel"
    assert [a.name for a in arms.there] == [EAGER, REPLY, LIGHT, WITH_TOP, OTHER["uniform"]]


def test_a_cpu_has_the_eager_arm_and_says_why_no_other() -> None:
    arms = measure_arms(place_of(built()), "uniform")
    assert [arm.name for arm in arms.there] == [EAGER]
    assert set(arms.missing) == {PER_STEP, REPLY, LIGHT, WITH_TOP, OTHER["uniform"]}
    assert set(arms.missing.values()) == {"There is no GPU to capture the steps on."}
    assert sorted(arms.there[0].clocks) == [1, 2, 8]


def test_arms_that_disagree_are_named_unless_they_route_otherwise(
    on_stand_in: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Arm.round

    def tampered(self: Arm, place: Place, scripts) -> None:
        run(self, place, scripts)
        if self.name in (LIGHT, OTHER["uniform"]):
            self.clocks[2].ids = (0, *self.clocks[2].ids[1:])

    monkeypatch.setattr(Arm, "round", tampered)
    arms = measure_arms(place_of(built(), (Script(2, 3),)), "uniform")
    assert arms.disagreeing == (LIGHT,)


def test_a_reply_of_other_forwards_than_scripted_is_no_measurement() -> None:
    """A model that says a stop token at once ends its block early."""
    model = built().model
    head = model.lm_head
    assert isinstance(head, Linear)
    stop = model.spec.stop_ids[0]
    head.weight.data[stop] = 0
    head.weight.data[:stop] = 0  # all equal but the mask, which is banned: the first id wins
    place = place_of(built())
    runtime = make_runtime_of(replace(place, built=replace(place.built, model=model)), "eager")
    runtime.pieces.program.rule.stop_ids = torch.tensor([0])  # pyright: ignore
    with pytest.raises(RuntimeFailure) as caught:
        run_script(runtime, place.spec, Script(8, 3), 24, "off", Clocks())
    assert caught.value.code == "bench.unscripted"


@pytest.mark.parametrize("kernels", [False, True], ids=["torch", "kernels"])
def test_experts_are_counted_for_steps_and_for_commits(kernels: bool) -> None:
    count = count_experts(place_of(built(kernels=kernels)), "uniform")
    # Two layers; 3 blocks of 4 forwards of which 2 also commit, and one prefill of 24 tokens.
    assert len(count.met[8]) >= 2 * 10
    assert len(count.met[16]) == 2 * 2
    assert count.mean(8) <= count.mean(16) <= 8


def test_the_best_tokens_are_kept_of_every_step(monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in(monkeypatch, one_launch=True)
    place = place_of(built())
    runtime = make_runtime_of(place, "one graph per reply")
    row = Script(4, 2).row(place.spec, 24, "top-k")
    runtime.prefill([row])
    marks = list(runtime.run([row]))
    assert len(marks) == 8
    for mark in marks:
        step = mark.step_taken
        assert step is not None
        assert step.top_ids is not None
        assert step.top_p is not None
        assert step.top_ids.shape == (8, TOP)
        assert (step.top_p[:, :-1] >= step.top_p[:, 1:]).all()
        assert (step.top_p.sum(-1) <= 1.0 + 1e-5).all()
        drafts = step.state == 1
        assert (step.top_ids[:, 0] == step.ids)[drafts].all()


def test_the_reference_step_accepts_one_token_and_is_timed() -> None:
    model = built().model
    ids = torch.arange(24).unsqueeze(0)
    ids[:, -8:] = 95
    for left in range(7, -1, -1):
        reference_step(model, ids, 8, 95)
        assert int((ids == 95).sum()) == left
    found = measure_reference(shape_of("tiny").spec, CPU, torch.float32, 20)
    assert found.tokens == 24
    assert found.step_ms.count == 5


# ---- autoregressive ----

PROMPT = torch.tensor([5, 17, 2, 60, 33, 8, 41])


def decoded(decoder: Decoder, count: int = 3) -> list[int]:
    said = []
    for _ in range(count):
        decoder.step()
        said.append(int(decoder.token))
    assert int(decoder.position) == len(PROMPT) - 1 + count
    return said


def dense(kernels: bool) -> Dense:
    model = built("tiny-dense", kernels).model
    assert isinstance(model, Dense)
    return model


def uncached(model: Dense, count: int = 3) -> list[int]:
    ids = PROMPT.tolist()
    for _ in range(count):
        tensor = torch.tensor([ids])
        seen = torch.ones(len(ids), len(ids), dtype=torch.bool).tril()
        positions = torch.arange(len(ids)).unsqueeze(0)
        hidden = model(model.embed(tensor), positions, MaskAttend(seen))
        ids.append(int(model.logits(hidden[:, -1:]).argmax()))
    return ids[len(PROMPT) :]


@pytest.mark.parametrize("version", ["torch", "one head", "all heads", "vector products"])
def test_the_autoregressive_arm_decodes_what_an_uncached_forward_says(version: str) -> None:
    wanted = uncached(dense(kernels=False))
    model = dense(kernels=version != "torch")
    kinds = {"one head": TritonAttention, "all heads": GroupAttention}
    kinds |= {"vector products": GroupAttention}
    attention = kinds[version](16, 1e6) if version in kinds else None
    decoder = Decoder(model, 64, attention)
    decoder.read(PROMPT)
    if version == "vector products":
        kept: list[int] = []

        def choose(weights: list[Tensor]):
            kept.append(len(weights))
            return partial(times_vector, tiling=TILINGS[0])

        with one_vector_products(model, choose):
            found = decoded(decoder)
        assert kept == [2, 2, 2, 2, 1]
        decoder.read(PROMPT)
        assert decoded(decoder) == wanted  # the model is as it was
    else:
        found = decoded(decoder)
    assert found == wanted


@pytest.mark.parametrize("tiling", TILINGS, ids=str)
def test_a_matrix_times_a_vector(tiling) -> None:
    x, weight = torch.randn(1, 80), torch.randn(37, 80)
    torch.testing.assert_close(times_vector(x, weight, tiling), x @ weight.T)


def test_all_words_are_read() -> None:
    data = torch.randint(0, 1000, (2 * STEPS * WIDTH,), dtype=torch.int32)
    sums = torch.empty(2, dtype=torch.int32)
    read_all(data, sums)
    assert sums.tolist() == data.view(2, -1).sum(-1).tolist()


def test_matrices_that_do_not_lie_together_are_refused() -> None:
    model = dense(kernels=True)
    first = model.layers[0].self_attn
    assert lying_together(first.projections).shape == (4 * 16 + 2 * 2 * 16, 32)
    with pytest.raises(ValueError, match="lie together"):
        lying_together((first.q_proj, first.o_proj))


def test_a_whole_run_reports_every_arm(on_stand_in: None) -> None:
    said: list[str] = []
    options = BenchOptions(context=24, tpf=(3.0,), rounds=1, reference_tokens=32)
    report = run_bench(shape_of("tiny"), CPU, options, "bench", said.append)
    names = [row.name for row in report.arms]
    assert names == [EAGER, PER_STEP, REPLY, LIGHT, WITH_TOP, OTHER["uniform"]]
    assert list(report.missing) == ["autoregressive"]
    assert report.arms[2].step is not None
    assert set(report.arms[2].block_ms) == {8, 3, 2}
    assert f"{LIGHT} over {REPLY}, time" in report.compared
    assert f"Reference over {REPLY}, a step" in report.compared
    lines = table(report).splitlines()
    named = [line[2:42].strip().removesuffix(" *") for line in lines if line.startswith("  ")]
    assert [name for name in named if name in {row.name for row in report.arms}] == [
        row.name for row in report.arms
    ]
    assert said[0] == "Measuring the machine"
