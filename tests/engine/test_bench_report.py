"""What `bench` makes of clocks: which forward is which, tokens a second between two whole numbers
of forwards, the table, the JSON; and the command itself on a CPU."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from engine.bench.bytes_moved import Parts
from engine.bench.kernel_share import part_of, sort_kernels
from engine.bench.machine import Machine, Spread
from engine.bench.measure import REPLY, compare, scripts_of
from engine.bench.replies import Clocks, Neighbours
from engine.bench.report import ArmRow, Forward, Report, TokenRow, arm_row, table
from engine.bench.shapes import shape_of
from engine.cli import main
from engine.errors import RequestError
from engine.runtime.rows import StepMark

MACHINE = Machine("a card", "some software", 4.4e12, 7e14)
STEP = Forward(32, 163.3, 163.3, Parts(experts=6e9, head=0.6e9), 1.5, "memory")


def marks(*milliseconds: float, ends: tuple[int, ...]) -> list[StepMark]:
    return [StepMark(1e-3 * ms, None, n in ends) for n, ms in enumerate(milliseconds)]


def test_a_blocks_first_forward_is_told_from_the_others() -> None:
    clocks = Clocks()
    clocks.take(marks(3, 5, 7, 11, 13, 15, ends=(2, 5)), 3)
    assert clocks.steps == pytest.approx([2, 2, 2, 2])
    assert clocks.firsts == pytest.approx([4])
    assert clocks.blocks == pytest.approx([8])  # the reply's first block commits nothing
    assert clocks.replies == pytest.approx([15])


def test_marks_of_blocks_alone_give_no_step() -> None:
    clocks = Clocks()
    clocks.take(marks(7, 15, 23, ends=(0, 1, 2)), 3)
    assert (clocks.steps, clocks.firsts) == ([], [])
    assert clocks.blocks == pytest.approx([8, 8])


def test_blocks_of_one_forward_are_firsts() -> None:
    clocks = Clocks()
    clocks.take(marks(3, 7, 11, ends=(0, 1, 2)), 1)
    assert clocks.firsts == pytest.approx([4, 4])
    assert clocks.steps == []


def test_a_tpf_lies_between_two_whole_numbers_of_forwards() -> None:
    between = Neighbours.of(8.5, 32)
    assert (between.low, between.high) == (3, 4)
    # 32 / 8.5 = 3.765 forwards: 0.235 of 10 ms and 0.765 of 12.
    assert between.block_ms({3: 10.0, 4: 12.0}) == pytest.approx(11.529, abs=1e-3)
    exact = Neighbours.of(8, 32)
    assert (exact.low, exact.high, exact.share) == (4, 4, 0.0)
    canvas = Neighbours.of(8.5, 256)
    assert (canvas.low, canvas.high) == (30, 31)
    assert Neighbours.of(1, 32).low == 32
    assert Neighbours.of(32, 32).high == 1


@pytest.mark.parametrize("tpf", [0.5, 33.0, float("nan")])
def test_a_tpf_no_block_can_have_is_refused(tpf: float) -> None:
    with pytest.raises(RequestError) as caught:
        Neighbours.of(tpf, 32)
    assert caught.value.code == "bench.tpf"


def test_scripts_are_the_longest_and_every_neighbour() -> None:
    spec = shape_of("llada2.1-mini").spec
    scripts = scripts_of(spec, [Neighbours.of(8.5, 32), Neighbours.of(10.7, 32)])
    assert [s.forwards for s in scripts] == [32, 4, 3, 2]
    assert {s.blocks for s in scripts} == {8}
    canvas = scripts_of(shape_of("qwen3-4b").spec, [Neighbours.of(8.5, 256)])
    assert [(s.forwards, s.blocks) for s in canvas] == [(32, 3), (31, 3), (30, 3)]


def clocks_of(blocks: list[float], **changes: list[float]) -> Clocks:
    fields = {"replies": [sum(blocks)], "first_block": [30.0], "prefill": [20.0]}
    return Clocks(blocks=blocks, processor=[0.02], **(fields | changes))


def test_steps_without_stamps_follow_from_blocks_of_two_lengths() -> None:
    by_script = {32: clocks_of([66.0, 66.0, 97.0]), 4: clocks_of([10.0, 10.0, 10.0])}
    row = arm_row("whole reply", by_script, [Neighbours.of(8, 32)], 32)
    assert not row.direct
    assert row.step is not None
    assert row.first is not None
    assert row.step.median == pytest.approx(2.0)  # (66 - 10) / 28
    assert row.first.median == pytest.approx(4.0)  # 10 - 3 * 2
    assert row.step.p90 == pytest.approx((97 - 4) / 31)
    assert row.tokens_s[8] == pytest.approx(3200)
    assert row.first_block_ms == 30.0


def test_steps_with_stamps_are_taken_from_them() -> None:
    by_script = {4: clocks_of([10.0], steps=[2.0, 2.2, 9.0], firsts=[4.0])}
    row = arm_row("eager", by_script, [Neighbours.of(8, 32)], 32)
    assert row.direct
    assert row.step == Spread(2.2, 2.0, 9.0, 3)


def test_one_length_without_stamps_says_nothing_of_a_step() -> None:
    row = arm_row("whole reply", {4: clocks_of([10.0])}, [Neighbours.of(8, 32)], 32)
    assert (row.step, row.first) == (None, None)


def test_the_floor_is_whichever_takes_longer() -> None:
    assert MACHINE.floor_ms(8.8e9, 7e11) == pytest.approx(2.0)
    assert MACHINE.bound_by(8.8e9, 7e11) == "memory"
    assert MACHINE.floor_ms(8.8e9, 2.1e12) == pytest.approx(3.0)
    assert MACHINE.bound_by(8.8e9, 2.1e12) == "arithmetic"


def arm(name: str, ms: float, **changes: object) -> ArmRow:
    spread = Spread(ms, ms - 0.1, ms + 0.1, 9)
    row = ArmRow(name, spread, spread, True, {4: 4 * ms}, {8.5: 3700.0}, 31.0, 20.0, 0.02, 100 * ms)
    return replace(row, **changes)  # pyright: ignore[reportArgumentType]


def report() -> Report:
    tokens = [TokenRow("cuBLAS", Spread(4, 4, 4, 9)), TokenRow("one", Spread(2.5, 2, 3, 9))]
    arms = [arm("eager", 20.0), arm("one graph per step", 2.4), arm(REPLY, 2.0, direct=False)]
    return Report(
        command="bench",
        shape="llada2.1-mini",
        words="a model",
        weights="NVFP4 experts",
        parameters=16_000_000_000,
        routing="uniform",
        context=1024,
        block=32,
        machine=MACHINE,
        build_seconds=3.0,
        step=STEP,
        first=replace(STEP, tokens=64),
        own_distinct=120.5,
        arms=arms,
        missing={"whole reply, recorded": "It failed: no such kernel"},
        kernels_busy_ms=1.8,
        kernels_by_part={"experts": 1.4, "attention": 0.4},
        launches=210.0,
        tokens=[
            TokenRow("cuBLAS", Spread(4.0, 4.0, 4.0, 9)),
            TokenRow("one", Spread(2.5, 2, 3, 9)),
        ],
        token_floor_ms=1.83,
        reference=Spread(290.0, 288.0, 295.0, 5),
        reference_tokens=544,
        peak_bytes=12_000_000_000,
        used_bytes=13_000_000_000,
        disagreeing=("one graph per step",),
        compared=compare(arms, STEP, 1.8, tokens),
        notes=["A note."],
    )


def test_ratios_are_those_of_one_run() -> None:
    found = report().compared
    assert found["whole reply: step over its floor"] == pytest.approx(2.0 / 1.5)
    assert found["whole reply: kernels' share of a step"] == pytest.approx(0.9)
    assert found["one graph per step over whole reply, time"] == pytest.approx(1.2)
    assert found["whole reply: processor time, of one core"] == 0.02
    assert found["whole reply at TPF 8.5 over autoregressive"] == pytest.approx(3700 / 400)


def test_the_table_says_everything_once() -> None:
    lines = table(report()).splitlines()
    text = "\n".join(lines)
    assert "llada2.1-mini: a model" in lines[0]
    assert "reads 4.4 TB/s, multiplies 700 TFLOP/s" in text
    assert "163.3 distinct experts a layer (by chance 163.3; the random model's own 120.5)" in text
    assert "Floor of a step (32 tokens): 1.500 ms by memory, 6.6 GB" in text
    whole = next(line for line in lines if line.startswith("  whole reply *"))
    assert whole.split()[-6:] == ["2.000", "1.900", "2.100", "2.000", "3700", "31.0"]
    assert "  whole reply, recorded: not here. It failed: no such kernel" in lines
    assert "Kernels, ms a step (210 launches): experts 1.400, attention 0.400" in text
    assert "544 tokens forwarded again a step: 290.0 ms" in text
    assert "WRONG: one graph per step did not give the first arm's replies." in lines
    assert lines[-1] == "A note."
    assert max(len(line) for line in lines) < 140


def test_the_json_holds_what_the_table_shows() -> None:
    found = json.loads(json.dumps(report().as_json()))
    assert found["arms"][2]["step"]["median"] == 2.0
    assert found["step"]["reads"]["experts"] == 6e9
    assert found["machine"]["bandwidth"] == 4.4e12
    assert found["compared"]["whole reply: step over its floor"] == pytest.approx(4 / 3)


@dataclass
class Event:
    """As torch's profiler has them."""

    name: str
    start: float
    end: float

    @property
    def time_range(self) -> Event:
        return self


def test_kernels_are_sorted_and_overlaps_counted_once() -> None:
    events = [
        Event("gate_up_direct", 0, 1000),
        Event("nvjet_tst_64x8", 500, 1500),  # beside the experts
        Event("_attend_kernel", 3000, 3500),
    ]
    share = sort_kernels(events, steps=2)
    assert share.busy_ms == pytest.approx(1.0)
    expected = {"experts": 0.5, "matrix products": 0.5, "attention": 0.25}
    assert share.parts == pytest.approx(expected)
    assert share.launches == 1.5
    assert part_of("route_fused") == "routing"
    assert part_of("void at::native::elementwise") == "other"


# ---- the command ----


def test_a_small_shape_is_measured_on_a_cpu(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "report.json"
    arguments = ["--shape", "tiny", "--device", "cpu", "--tpf", "3", "8", "--rounds", "1"]
    assert main(["bench", *arguments, "--reference-tokens", "32", "--json", str(path)]) == 0
    out, err = capsys.readouterr()
    assert "whole reply: not here. There is no GPU to capture the steps on." in out
    assert err.splitlines()[0] == "Measuring the machine"
    found = json.loads(path.read_text())
    assert [row["name"] for row in found["arms"]] == ["eager"]
    assert list(found["arms"][0]["tokens_s"]) == ["3.0", "8.0"]
    assert found["weights"] == "float32"
    assert found["reference_tokens"] == 32
    assert found["compared"]["Reference over eager, a step"] > 0
    assert found["step"]["distinct"] > found["own_distinct"] > 1


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["--shape", "llada2.1-mini", "--device", "cpu"], "bench.needs_gpu"),
        (["--shape", "tiny", "--context", "13"], "bench.context"),
        (["--shape", "tiny", "--context", "0"], "bench.context"),
        (["--shape", "tiny", "--tpf", "9"], "bench.tpf"),
        (["--shape", "tiny", "--all-nvfp4"], "bench.nvfp4_on_cpu"),
        (["--shape", "tiny", "--device", "tpu"], "request.device"),
        (["--shape", "tiny", "--json", "no/such/folder/x.json"], "bench.no_folder"),
    ],
)
def test_what_cannot_be_measured_is_refused_in_words(
    arguments: list[str], code: str, capsys: pytest.CaptureFixture[str]
) -> None:
    device = [] if "--device" in arguments else ["--device", "cpu"]
    assert main(["bench", *arguments, *device]) == 1
    assert f"[{code}]" in capsys.readouterr().err


def test_an_unknown_shape_is_wrong_usage(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["bench", "--shape", "gpt"])
    assert caught.value.code == 2
    assert "invalid choice" in capsys.readouterr().err
