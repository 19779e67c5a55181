"""The published decoding loops of the dense families, written out plainly and without a cache, from
the formulas of models.md 3 and 4. One sequence, temperature 0."""

from __future__ import annotations

import torch
from dense_models import MASK, full_logits
from torch import Tensor

from engine.models.dense import Dense


def block_causal(length: int, block: int) -> Tensor:
    index = torch.arange(length) // block
    return index[None, :] <= index[:, None]


def _clean(logits: Tensor) -> Tensor:
    """The mask token is never chosen."""
    logits = logits.clone()
    logits[:, MASK] = float("-inf")
    return logits


def _shifted(logits: Tensor) -> Tensor:
    return torch.cat((logits[:1], logits[:-1]))


def _even(masks: int, steps: int) -> list[int]:
    return [masks // steps + (step < masks % steps) for step in range(steps)]


def fast_dllm(
    model: Dense, prompt: list[int], max_new: int, threshold: float
) -> tuple[list[int], list[list[int]]]:
    """Ids and the canvas of the block after every step."""
    block, window = model.spec.blocks.length, model.spec.blocks.window
    x, canvases = list(prompt), []
    if len(prompt) % block == 0:
        logits = _clean(full_logits(model, x, block_causal(len(x), block)))
        x.append(int(logits[-1].argmax()))
    while len(x) < len(prompt) + max_new:
        x += [MASK] * (-len(x) % block)
        first = len(x) - block
        for start in range(first, len(x), window):
            while MASK in x[start : start + window]:
                logits = full_logits(model, x, block_causal(len(x), block))
                # Within a block: the first logit stands in for the one before it.
                p = _clean(_shifted(logits[first:])).softmax(-1)
                best = p.max(-1)
                open_ = [i for i in range(start, start + window) if x[i] == MASK]
                top = max(open_, key=lambda i, c=best.values: float(c[i - first]))
                for i in open_:
                    if i == top or best.values[i - first] > threshold:
                        x[i] = int(best.indices[i - first])
                canvases.append(x[first:])
        logits = _clean(full_logits(model, x, block_causal(len(x), block)))
        x.append(int(logits[-1].argmax()))
    return x[len(prompt) : len(prompt) + max_new], canvases


def windows(
    model: Dense, prompt: list[int], max_new: int, window: int, steps: int
) -> tuple[list[int], list[list[int]]]:
    """LLaDA-8B and MDLM: the whole sequence sees itself, windows are filled from the left."""
    x, canvases = prompt + [MASK] * max_new, []
    seen = torch.ones(len(x), len(x), dtype=torch.bool)
    for start in range(len(prompt), len(x), window):
        end = min(start + window, len(x))
        for count in _even(end - start, steps):
            if count == 0:
                continue
            p = _clean(full_logits(model, x, seen)).softmax(-1)
            best = p.max(-1)
            open_ = [i for i in range(start, end) if x[i] == MASK]
            open_.sort(key=lambda i, c=best.values: -float(c[i]))
            for i in open_[:count]:
                x[i] = int(best.indices[i])
            canvases.append(list(x))
    return x[len(prompt) :], canvases


def blocks(model: Dense, prompt: list[int], max_new: int, steps: int) -> list[int]:
    """BD3LM, for prompts of whole blocks (where the reference pads nothing)."""
    block, x = model.spec.blocks.length, list(prompt)
    for _ in range(max_new // block):
        start = len(x)
        x += [MASK] * block
        for count in _even(block, steps):
            p = _clean(full_logits(model, x, block_causal(len(x), block))).softmax(-1)
            best = p.max(-1)
            open_ = [i for i in range(start, len(x)) if x[i] == MASK]
            open_.sort(key=lambda i, c=best.values: -float(c[i]))
            for i in open_[:count]:
                x[i] = int(best.indices[i])
    return x[len(prompt) :]


def dream(
    model: Dense, prompt: list[int], max_new: int, steps: int, measure: str
) -> tuple[list[int], list[list[int]]]:
    """The three measures that need no draws; steps <= max_new."""
    x, canvases = prompt + [MASK] * max_new, []
    seen = torch.ones(len(x), len(x), dtype=torch.bool)
    times = torch.linspace(1, 1e-3, steps + 1, dtype=torch.float64)
    for step in range(steps):
        open_ = [i for i, token in enumerate(x) if token == MASK]
        logits = _clean(_shifted(full_logits(model, x, seen)))
        p = logits.softmax(-1)
        if measure == "maskgit_plus":
            worth = p.max(-1).values
        elif measure == "topk_margin":
            two = p.topk(2, dim=-1).values
            worth = two[:, 0] - two[:, 1]
        else:
            worth = (p * torch.log(p + 1e-10)).sum(-1)
        share = 1 - times[step + 1] / times[step]
        count = int(len(open_) * share) if step < steps - 1 else len(open_)
        open_.sort(key=lambda i, w=worth: -float(w[i]))
        for i in open_[:count]:
            x[i] = int(p[i].argmax())
        canvases.append(list(x))
    return x[len(prompt) :], canvases
