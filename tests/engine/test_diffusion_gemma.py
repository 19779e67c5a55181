"""Replies of DiffusionGemma through the runtimes: eager, one graph per step, one graph per reply;
batches, rings that wrap, settings that change, and keys and values kept in FP8."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from gemma_models import (
    CANVAS,
    STOP,
    VOCAB,
    WINDOW,
    Passes,
    eager,
    gemma_model,
    graph,
    per_step,
    pieces_for,
    reply,
    request,
    with_noise,
)
from test_capture_safety import Watch
from tiny import load
from torch import Tensor

from engine.decoding.steering import Steering
from engine.models import diffusion_gemma_spec
from engine.models.diffusion_gemma import DiffusionGemma
from engine.models.diffusion_gemma_layers import LayerKind, Norm, rotary_of, unit_norm
from engine.runtime.canvas_cache import FP8, CanvasAttend, Kept
from engine.runtime.capture import CapturedPieces
from engine.runtime.pieces import Variant
from engine.runtime.rows import Row
from engine.types import DecodeSettings, TokenState


@pytest.fixture(scope="module")
def model() -> DiffusionGemma:
    return gemma_model()


def prompt_of(length: int, seed: int = 0) -> list[int]:
    rng = random.Random(seed)
    return [rng.randrange(0, 60) for _ in range(length)]


def settings_for(model: DiffusionGemma, seed: int, **changes: float) -> DecodeSettings:
    settings = replace(model.spec.defaults, seed=seed, steps=int(changes.pop("steps", 5)))
    temperature = changes.pop("temperature", 1.0)
    return with_noise(replace(settings, temperature=temperature), **changes)


def outcome(row: Row) -> tuple[object, ...]:
    return row.ids, row.reason, row.blocks, row.forwards, row.commits


def test_every_runtime_takes_the_same_steps_and_captures_once(model: DiffusionGemma) -> None:
    runtimes = [eager(model, exact=False), per_step(model), graph(model)]
    rng, captures = random.Random(1), list[int]()
    runtimes[2].prepare()
    captures.append(runtimes[2].captures)  # a reply with the model's own settings is ready
    for number in range(8):
        settings = settings_for(
            model,
            seed=rng.randrange(2**40),
            steps=rng.choice([1, 3, 6]),
            temperature=rng.choice([1.0, 0.7]),
            entropy_bound=rng.choice([0.0, 0.5, 4.0]),
            stability=rng.choice([0, 1, 2]),
            confidence=rng.choice([0.005, 2.0, 9.0]),
        )
        prompt, limit = prompt_of(rng.randrange(1, 33), number), rng.randrange(1, 25)
        found = []
        for runtime in runtimes:
            row = request(model, prompt, limit, settings)
            steps = [mark.step_taken for mark in reply(runtime, row)]
            canvases = [(s.block_start, s.ids.tolist(), s.state.tolist()) for s in steps if s]
            found.append((outcome(row), canvases))
        assert found[0] == found[1] == found[2]
        assert found[0][1][0][0] == len(prompt)
        captures.append(runtimes[2].captures)
    assert len(set(captures)) == 1  # thresholds and schedules are read from device memory


def test_rows_of_a_batch_get_the_ids_they_get_alone(model: DiffusionGemma) -> None:
    lengths = (3, 29, 16)
    rows = [
        request(model, prompt_of(n, n), 20, settings_for(model, seed=n, entropy_bound=0.5))
        for n in lengths
    ]
    reply(eager(model, batch=3), *rows)
    for row, length in zip(rows, lengths, strict=True):
        alone = request(model, prompt_of(length, length), 20, row.settings)
        reply(eager(model), alone)
        assert outcome(row) == outcome(alone)


def test_a_ring_that_wraps_gives_the_ids_of_one_that_does_not(
    model: DiffusionGemma, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And nothing that a longer neighbour's prompt brings along harms a short one."""
    found, slots = [], []
    for chunk in (1024, CANVAS):
        monkeypatch.setattr(diffusion_gemma_spec, "CHUNK", chunk)
        for make in (eager, graph):
            runtime = make(model, batch=2, capacity=96)
            cache = runtime.pieces.program.cache
            slots.append(cache.ring_slots)
            rows = [
                request(model, prompt_of(n, n), 30, settings_for(model, seed=n, entropy_bound=2.0))
                for n in (41, 2)
            ]
            reply(runtime, *rows)
            found.append([outcome(row) for row in rows])
    assert found[0] == found[1] == found[2] == found[3]
    assert slots == [96, 96, WINDOW - 1 + CANVAS, WINDOW - 1 + CANVAS]


def test_the_cache_after_a_reply_is_that_of_a_fresh_encoder_pass(model: DiffusionGemma) -> None:
    runtime = eager(model)
    row = request(model, prompt_of(13), 3 * CANVAS, settings_for(model, seed=3), stops=[-1])
    reply(runtime, row)
    committed = 13 + 2 * CANVAS  # the last canvas is never read again, so nothing commits it
    passes = Passes(model, capacity=64)
    passes.encode(torch.tensor([*prompt_of(13), *row.ids][:committed]))
    cache = runtime.pieces.program.cache
    for layer in range(model.spec.num_layers):
        window = model.spec.kind_of(layer).window
        first = 0 if window is None else committed - window + 1
        for kept, fresh in zip(cache.of(layer), passes.cache.of(layer), strict=True):
            span = slice(first, committed)
            torch.testing.assert_close(kept[:, :, span], fresh[:, :, span], atol=1e-5, rtol=0)


def test_the_first_step_is_told_nothing_of_the_canvas_before(model: DiffusionGemma) -> None:
    """A canvas behind a long answer is that of the same text as a prompt."""
    settings = settings_for(model, seed=9, entropy_bound=1.0)
    row = request(model, prompt_of(11), 2 * CANVAS, settings, stops=[-1])
    marks = reply(eager(model), row)
    second = [m.step_taken for m in marks if m.step_taken and m.step_taken.block == 1]
    again = request(model, [*prompt_of(11), *row.ids[:CANVAS]], CANVAS, settings, stops=[-1])
    first = [mark.step_taken for mark in reply(eager(model), again)]
    assert [s.ids.tolist() for s in second] == [s.ids.tolist() for s in first if s]
    assert row.ids[CANVAS:] == again.ids


def test_a_reply_ends_at_a_stop_token_inside_a_canvas(model: DiffusionGemma) -> None:
    settings = settings_for(model, seed=4)
    whole = request(model, prompt_of(9), 24, settings, stops=[-1])
    reply(eager(model), whole)
    stop = whole.ids[CANVAS + 3]
    place = whole.ids.index(stop)
    row = request(model, prompt_of(9), 24, settings, stops=[stop])
    reply(graph(model), row)
    assert (row.reason, row.ids) == ("stop_token", whole.ids[: place + 1])
    assert STOP < VOCAB


def test_forced_and_banned_tokens_are_kept_to(model: DiffusionGemma) -> None:
    settings = settings_for(model, seed=6, entropy_bound=9.0)
    free = request(model, prompt_of(5), CANVAS, settings, stops=[-1])
    reply(eager(model), free)
    banned = free.ids[0]
    steering = Steering(forced={7: 33}, banned=[(5, banned)])
    for make in (eager, graph):
        row = request(model, prompt_of(5), CANVAS, settings, stops=[-1], steering=steering)
        marks = reply(make(model), row)
        assert row.ids[2] == 33
        assert row.ids[0] != banned
        assert all(m.step_taken.ids[2] == 33 for m in marks if m.step_taken)


def test_the_draw_of_a_position_depends_on_seed_position_and_step_alone(
    model: DiffusionGemma,
) -> None:
    found = []
    for seed in (1, 1, 2):
        row = request(model, prompt_of(8), CANVAS, settings_for(model, seed=seed), stops=[-1])
        marks = reply(eager(model), row)
        kinds = [m.step_taken.state.tolist() for m in marks if m.step_taken]
        found.append((row.ids, kinds))
        assert set(kinds[-1]) == {TokenState.COMMITTED}
    assert found[0] == found[1] != found[2]


def test_warming_up_a_capture_changes_nothing(model: DiffusionGemma) -> None:
    runtime = graph(model)
    row = request(model, prompt_of(21), 16, settings_for(model, seed=2))
    reply(runtime, row)
    program = runtime.pieces.program
    kept = [t.clone() for t in (*program.cache.first(64), *program.written)]
    runtime.captured = CapturedPieces(runtime.pieces, runtime.backend)
    runtime.captured.of_reply(runtime.pieces.variant)
    runtime.captured.prefill(1)
    now = (*program.cache.first(64), *program.written)
    assert all(torch.equal(a, b) for a, b in zip(kept, now, strict=True))


# --- parts ------------------------------------------------------------------------------------


def test_only_the_first_pairs_of_a_partly_turned_head_move() -> None:
    kind = LayerKind(head_dim=16, kv_heads=1, window=None, angles=2, theta=100.0)
    cos, sin = rotary_of(kind, torch.tensor([[0, 5]]), torch.float32)
    angles = torch.tensor([5.0, 5.0 * 100.0 ** (-2 / 16)])
    assert torch.equal(cos[0, 0], torch.ones(1, 16))
    torch.testing.assert_close(sin[0, 1, 0, :2], angles.sin())
    torch.testing.assert_close(cos[0, 1, 0, 8:10], angles.cos())
    assert not sin[0, 1, 0, 2:8].any()
    assert not sin[0, 1, 0, 10:].any()


def test_a_norm_multiplies_before_it_rounds() -> None:
    x, norm = torch.randn(3, 64).bfloat16(), Norm(64, 1e-6).bfloat16()
    norm.weight.data = (1 + torch.randn(64)).bfloat16()
    wide = x.float() * torch.rsqrt(x.float().square().mean(-1, keepdim=True) + 1e-6)
    assert torch.equal(norm(x), (wide * norm.weight.float()).bfloat16())
    assert torch.equal(unit_norm(x, 1e-6), wide.bfloat16())


def test_a_forward_longer_than_the_rings_allow_is_an_error(model: DiffusionGemma) -> None:
    passes = Passes(model, chunk=4)
    with pytest.raises(ValueError, match="more than 4"):
        CanvasAttend(passes.cache, torch.arange(8)[None], 8, None)


def test_a_cache_of_three_kinds_is_an_error() -> None:
    kinds = [Kept(1, 8, None), Kept(1, 16, None), Kept(1, 8, 4)]
    from engine.runtime.canvas_cache import CanvasCache

    with pytest.raises(ValueError, match="one kind of full layers"):
        CanvasCache(kinds, 1, 32, 8, torch.float32, torch.device("cpu"))


def difference(model: DiffusionGemma, prefix: int) -> tuple[float, float]:
    """Of a canvas's logits when keys and values are kept in FP8: root mean square, as a share of
    their spread, and the mean KL divergence in nats."""
    draw = torch.Generator().manual_seed(1)
    vocab, length = model.spec.vocab_size, model.spec.block_length
    ids = torch.randint(0, vocab, (prefix + length,), generator=draw)
    said = list[Tensor]()
    for dtype in (torch.float32, FP8):
        passes = Passes(model, dtype=dtype)
        for start in range(0, prefix, 16):
            passes.encode(ids[start : min(start + 16, prefix)], start)
        said.append(passes.decode(ids[prefix:], prefix))
    exact, rounded = said
    share = float((rounded - exact).square().mean().sqrt() / exact.std())
    logs = [logits.log_softmax(-1) for logits in said]
    kl = float((logs[0].exp() * (logs[0] - logs[1])).sum(-1).mean())
    return share, kl


def test_keys_and_values_in_fp8_take_half_the_room_and_cost_a_known_error(
    shared_fixtures: Path,
) -> None:
    """Random weights: an upper bound rather than what trained ones would lose (docs/families.md
    names these numbers)."""
    model = load(shared_fixtures / "diffusion-gemma-tiny")
    errors = [difference(model, prefix) for prefix in (21, 48)]
    for share, kl in errors:
        assert 0.001 < share < 0.2
        assert 0 < kl < 0.06
    sizes = [Passes(model, dtype=dtype).cache.bytes for dtype in (torch.bfloat16, FP8)]
    assert sizes[0] == 2 * sizes[1]


def test_a_reply_with_fp8_keys_is_the_same_in_every_runtime(model: DiffusionGemma) -> None:
    found = []
    for make in (lambda m, **o: eager(m, exact=False, **o), graph):
        row = request(model, prompt_of(20), 20, settings_for(model, seed=8))
        reply(make(model, dtype=FP8), row)
        found.append(outcome(row))
    assert found[0] == found[1]


@pytest.mark.parametrize("sampled", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, FP8])
def test_no_piece_waits_for_the_device_or_reads_the_host(sampled: bool, dtype: torch.dtype) -> None:
    there = torch.device("meta")
    with there:
        model = DiffusionGemma(gemma_model().spec).eval().requires_grad_(False)
    pieces = pieces_for(model, batch=2, dtype=dtype)
    pieces.select(Variant(sampled=sampled))
    runs = {
        "begin": pieces.begin,
        "first": pieces.first,
        "step": pieces.step,
        "end": pieces.end,
        "prefill": lambda: pieces.prefill(8),
    }
    with torch.inference_mode():
        for name, run in runs.items():
            with Watch() as watch:
                run()
            assert watch.refused == [], name
            assert watch.calls > 10
