"""The QwenDLM configuration: the renoising sampler against a plain loop, causal and bidirectional
commits against full forwards, and what is said of a checkpoint that nobody here has seen."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from dense_models import (
    STOP,
    VOCAB,
    dense_model,
    eager,
    eager_like_graph,
    full_logits,
    graph,
    outcome,
    reply,
    request,
)
from folder_maker import edit_json, refusal
from test_dense_checkpoints import write_folder

from engine.checkpoint import open_checkpoint
from engine.decoding.renoise import NOISE, within_bound
from engine.kernels.philox import uniform
from engine.models.dense import Dense
from engine.types import DecodeSettings, TokenState

BLOCK, NEVER = 8, -2
PROMPT = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5]


def noise_of(seed: int, positions: range, step: int) -> list[int]:
    drawn = uniform(
        torch.tensor([[seed]]), torch.tensor([list(positions)]), torch.tensor([[step]]), NOISE
    )
    return [int(float(u) * VOCAB) for u in drawn[0].double()]


def seen_by(total: int, finished: int, causal: bool) -> torch.Tensor:
    """bool [N, N]: finished tokens by their own rule, the last block both ways."""
    index = torch.arange(total)
    blocks = index[None, :] // BLOCK <= index[:, None] // BLOCK
    if causal:
        blocks[:finished] = index[None, :] <= index[:finished, None]
    return blocks


def slow(
    model: Dense, prompt: list[int], max_new: int, steps: int, seed: int, causal: bool
) -> tuple[list[int], list[list[int]]]:
    """The sampler of models.md 2.5 at temperature 0 (the best token is what is drawn), without a
    cache. Returns ids and the kept tokens of the block after every step, -1 where noise follows."""
    x, canvases, canvas = list(prompt), [], model.spec.defaults.noise
    while len(x) < len(prompt) + max_new:
        start = len(x) // BLOCK * BLOCK
        held = len(x) - start
        kept = x[start:] + [-1] * (BLOCK - held)
        before, stable = None, 0
        for step in range(steps):
            fresh = noise_of(seed, range(start, start + BLOCK), step)
            block = [f if k < 0 else k for f, k in zip(fresh, kept, strict=True)]
            ids = x[:start] + block
            seen = seen_by(len(ids), start, causal)
            left = (steps - step) / steps
            t = canvas.t_min + (canvas.t_max - canvas.t_min) * left
            logs = (full_logits(model, ids, seen)[start:] / t).log_softmax(-1)
            entropy = -(logs.exp() * logs).sum(-1)
            best = logs.argmax(-1).tolist()
            open_ = sorted(range(held, BLOCK), key=lambda i, h=entropy: float(h[i]))
            total, kept = 0.0, [*x[start:], *[-1] * (BLOCK - held)]
            for i in open_:
                if total <= canvas.entropy_bound:
                    kept[i] = best[i]
                total += float(entropy[i])
            stable = stable + 1 if best[held:] == before else 0
            before = best[held:]
            mean = float(entropy[held:].mean())
            done = stable >= canvas.stability and mean < canvas.confidence
            if done or step == steps - 1:
                kept = [*x[start:], *best[held:]]
                canvases.append(kept)
                break
            canvases.append(kept)
        x += kept[held:]
    return x[len(prompt) : len(prompt) + max_new], canvases


@pytest.mark.parametrize("commit", ["causal", "bidirectional"])
@pytest.mark.parametrize(("length", "limit", "seed"), [(11, 21, 5), (16, 24, 9), (3, 13, 1)])
def test_the_sampler_takes_the_steps_of_a_plain_loop(
    commit: str, length: int, limit: int, seed: int
) -> None:
    model, prompt = dense_model("qwen_dlm", commit_attention=commit), (PROMPT * 2)[:length]
    wanted, canvases = slow(model, prompt, limit, 6, seed, commit == "causal")
    runtime = eager(model)
    settings = replace(model.spec.defaults, steps=6, temperature=0.0, seed=seed)
    row = request(runtime, prompt, limit, settings, NEVER)
    marks = reply(runtime, row)
    found = []
    for mark in marks:
        step = mark.step_taken
        assert step is not None
        undecided = step.state <= TokenState.DRAFT
        found.append([-1 if u else int(t) for t, u in zip(step.ids, undecided, strict=True)])
    assert found == canvases
    assert row.ids == wanted
    assert any(-1 in canvas[2:] for canvas in canvases)
    assert row.commits == 0  # a commit and the next block's first step share a forward


def test_a_sure_and_stable_canvas_is_finished_early() -> None:
    """With a bound that keeps everything, one of this model's two canvases comes to rest."""
    forwards = []
    for confidence in (1e-9, 50.0):
        generation = {"entropy_bound": 50.0, "confidence_threshold": confidence}
        model = dense_model("qwen_dlm", seed=11, generation=generation)
        runtime = eager(model)
        settings = replace(model.spec.defaults, steps=20, temperature=0.0, seed=2)
        row = request(runtime, PROMPT, 13, settings, NEVER)
        reply(runtime, row)
        wanted, canvases = slow(model, PROMPT, 13, 20, 2, True)
        assert (row.ids, row.forwards) == (wanted, len(canvases))
        forwards.append(row.forwards)
    assert forwards[0] == 20 * 2
    assert forwards[1] < 40


@pytest.mark.parametrize("commit", ["causal", "bidirectional"])
def test_kept_keys_are_those_of_the_commit_the_config_names(commit: str) -> None:
    model = dense_model("qwen_dlm", commit_attention=commit)
    keys = []
    runtime = eager(model)
    row = request(runtime, PROMPT, 29, DecodeSettings(steps=5, seed=4), NEVER)
    reply(runtime, row)
    final = [*PROMPT, *row.ids][:32]
    for make in (eager, eager_like_graph):
        fresh = make(model)
        fresh.prefill([request(fresh, final, 8, row.settings, NEVER)])
        keys.append(fresh.pieces.program.cache.keys[:, :, :, :32])
    kept = runtime.pieces.program.cache.keys[:, :, :, :32]
    for other in keys:
        torch.testing.assert_close(kept, other, atol=1e-4, rtol=0)
    # The second layer's keys tell who saw whom.
    other = dense_model(
        "qwen_dlm", commit_attention="causal" if commit != "causal" else "bidirectional"
    )
    fresh = eager(other)
    fresh.prefill([request(fresh, final, 8, row.settings, NEVER)])
    assert not torch.allclose(kept, fresh.pieces.program.cache.keys[:, :, :, :32], atol=1e-3)


@pytest.mark.parametrize("residual", [None, {"kind": "orl", "top_k": 8, "adapter_size": 4}])
def test_one_graph_per_reply_takes_the_same_steps_as_eager(
    residual: dict[str, Any] | None,
) -> None:
    changes = {"residual_input": residual} if residual else {}
    model = dense_model("qwen_dlm", **changes)
    runtimes = eager_like_graph(model, capacity=64), graph(model, capacity=64)
    for length, limit, warm in ((3, 20, 1.0), (11, 30, 0.0), (16, 7, 0.7), (1, 9, 1.0)):
        settings = replace(model.spec.defaults, steps=6, temperature=warm, seed=length)
        rows = [request(r, (PROMPT * 2)[:length], limit, settings) for r in runtimes]
        seen = []
        for runtime, row in zip(runtimes, rows, strict=True):
            steps = [mark.step_taken for mark in reply(runtime, row)]
            seen.append([(s.ids.tolist(), s.state.tolist()) for s in steps if s is not None])
        assert outcome(rows[0]) == outcome(rows[1])
        assert seen[0] == seen[1]


def test_the_bound_keeps_the_surest_and_always_one() -> None:
    entropy = torch.tensor([[0.3, 0.1, 2.0, 0.05, 0.2]])
    open_ = torch.tensor([[True, True, True, False, True]])
    for bound, kept in ((0.0, [1]), (0.15, [1, 4]), (0.31, [0, 1, 4]), (9.0, [0, 1, 2, 4])):
        found = (
            within_bound(entropy, open_, torch.tensor([[bound]]))[0].nonzero().flatten().tolist()
        )
        assert found == kept


def test_a_reply_ends_at_a_stop_token_and_holds_no_noise() -> None:
    model = dense_model("qwen_dlm")
    runtime = eager(model)
    whole = request(runtime, PROMPT, 40, DecodeSettings(steps=4, seed=7), NEVER)
    reply(runtime, whole)
    assert all(0 <= token < VOCAB for token in whole.ids)
    stop = whole.ids[20]
    row = request(runtime, PROMPT, 40, DecodeSettings(steps=4, seed=7), stop)
    reply(runtime, row)
    assert row.reason == "stop_token"
    assert row.ids == whole.ids[: whole.ids.index(stop) + 1]
    assert STOP < VOCAB


def test_what_is_assumed_and_what_is_not_understood_is_said(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "model", "qwen_dlm")
    edit_json(folder, "config.json", canvas_length=..., commit_attention=..., diffusion_mode="x")
    edit_json(folder, "config.json", max_position_embeddings=512)
    edit_json(folder, "generation_config.json", remask_power=2)
    checkpoint = open_checkpoint(folder)
    checkpoint.release()
    assert checkpoint.title == "QwenDLM (unchecked)"
    notes = " ".join(checkpoint.notes)
    for words in (
        "has not been checked",
        "canvases of 256 tokens",
        "commit_attention",
        "no residual adapter",
        "config.json has fields whose meaning is not known here, and which are not used:"
        " diffusion_mode",
        "generation_config.json has fields whose meaning is not known here, and which are not"
        " used: remask_power",
    ):
        assert words in notes
    edit_json(folder, "config.json", commit_attention="sideways")
    assert refusal(folder).item == "commit_attention"
