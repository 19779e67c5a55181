"""DiffusionGemma against transformers' own classes with random weights: what its `save_pretrained`
writes is read, and both passes and the whole `generate` are compared."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from gemma_models import Passes, eager, reply, request
from tiny import load
from torch import Tensor
from transformers import (
    DiffusionGemmaConfig,
    DiffusionGemmaForBlockDiffusion,
    DiffusionGemmaTextConfig,
    DynamicCache,
    Gemma4VisionConfig,
)

from engine.decoding import judge
from engine.models.diffusion_gemma import DiffusionGemma
from engine.runtime import renoising

VOCAB, CANVAS = 96, 8
BASE: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 4,
    "layer_types": [
        "sliding_attention",
        "sliding_attention",
        "sliding_attention",
        "full_attention",
    ],
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_global_key_value_heads": 1,
    "head_dim": 8,
    "global_head_dim": 16,
    "sliding_window": 6,
    "num_experts": 6,
    "top_k_experts": 2,
    "moe_intermediate_size": 16,
    "max_position_embeddings": 256,
    "use_bidirectional_attention": "vision",
    "pad_token_id": 0,
}
VISION = {
    "hidden_size": 8,
    "intermediate_size": 8,
    "num_hidden_layers": 1,
    "num_attention_heads": 1,
    "num_key_value_heads": 1,
    "head_dim": 8,
    "patch_size": 4,
    "position_embedding_size": 4,
}
SHAPES: dict[str, dict[str, Any]] = {
    "as released": {},
    "other heads, theta and window": {
        "num_key_value_heads": 4,
        "num_global_key_value_heads": 2,
        "global_head_dim": 8,
        "sliding_window": 11,
        "top_k_experts": 3,
        "layer_types": [
            "full_attention",
            "sliding_attention",
            "sliding_attention",
            "full_attention",
        ],
        "rope_parameters": {
            "sliding_attention": {"rope_type": "default", "rope_theta": 500.0},
            "full_attention": {
                "rope_type": "proportional",
                "rope_theta": 9000.0,
                "partial_rotary_factor": 0.5,
            },
        },
        "final_logit_softcapping": 7.0,
        "rms_norm_eps": 1e-3,
    },
}


@pytest.fixture(scope="module", params=list(SHAPES))
def both(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[DiffusionGemmaForBlockDiffusion, DiffusionGemma]:
    text = DiffusionGemmaTextConfig(**(BASE | SHAPES[request.param]))
    config = DiffusionGemmaConfig(
        text_config=text,
        vision_config=Gemma4VisionConfig(**VISION),
        canvas_length=CANVAS,
        image_token_id=VOCAB - 1,
        boi_token_id=VOCAB - 2,
        eoi_token_id=VOCAB - 3,
    )
    theirs = DiffusionGemmaForBlockDiffusion(config).eval()
    randomise(theirs)
    folder = tmp_path_factory.mktemp("gemma")
    theirs.save_pretrained(folder)
    return theirs, load(folder)


def randomise(model: torch.nn.Module) -> None:
    """Self-conditioning is weak: with more of it, rounding grows tenfold at every step."""
    generator = torch.Generator().manual_seed(1)
    named = [*model.named_parameters(), *model.named_buffers()]
    for name, weight in named:
        drawn = torch.randn(weight.shape, generator=generator)
        if name.endswith("layer_scalar"):  # the one weight that the passes do not share
            weight.data.copy_(0.8 + 0.2 * drawn)
        elif "vision" in name or "inv_freq" in name or "embed_scale" in name:
            continue
        elif "self_conditioning.down_proj" in name:
            weight.data.copy_(drawn * 0.02)
        elif "norm" in name or name.endswith("scale"):
            weight.data.copy_(1 + 0.2 * drawn)
        else:
            weight.data.copy_(drawn * (0.4 if "embed_tokens" in name else 0.2))


def tokens(count: int, seed: int) -> Tensor:
    return torch.randint(3, VOCAB - 4, (count,), generator=torch.Generator().manual_seed(seed))


def close(found: Tensor, wanted: Tensor) -> None:
    torch.testing.assert_close(found, wanted, atol=2e-4, rtol=1e-4)


@pytest.mark.parametrize("chunks", [[4], [29], [8, 8, 13], [1, 27, 1], [13, 5, 5, 5, 1]])
@torch.inference_mode()
def test_both_passes_agree_behind_a_prefix_of_any_length_read_in_any_pieces(
    both: tuple[DiffusionGemmaForBlockDiffusion, DiffusionGemma], chunks: list[int]
) -> None:
    theirs, ours = both
    prefix, canvas, soft = tokens(sum(chunks), 2), tokens(CANVAS, 3), torch.randn(CANVAS, VOCAB) * 3
    cache = DynamicCache(config=theirs.config.get_text_config())
    wanted = theirs.model.encoder(input_ids=prefix[None], cache=cache).last_hidden_state[0]
    passes, start = Passes(ours, chunk=30), 0
    for size in chunks:
        close(passes.encode(prefix[start : start + size], start), wanted[start : start + size])
        start += size
    for before in (None, soft):
        said = theirs(
            decoder_input_ids=canvas[None],
            cache=cache,
            self_conditioning_logits=None if before is None else before[None],
        ).logits[0]
        close(passes.decode(canvas, start, before), said)


@torch.inference_mode()
def test_what_lies_behind_a_prompt_in_its_last_piece_is_never_seen(
    both: tuple[DiffusionGemmaForBlockDiffusion, DiffusionGemma],
) -> None:
    _, ours = both
    prefix, canvas = tokens(17, 5), tokens(CANVAS, 6)
    clean, padded = Passes(ours, chunk=30), Passes(ours, chunk=30)
    clean.encode(prefix)
    padded.encode(torch.cat((prefix, tokens(13, 7))), ends=17)
    padded.encode(tokens(30, 8), 30, ends=17)
    close(padded.decode(canvas, 17), clean.decode(canvas, 17))


def test_generate_gives_the_same_tokens_from_the_same_draws(
    both: tuple[DiffusionGemmaForBlockDiffusion, DiffusionGemma], monkeypatch: pytest.MonkeyPatch
) -> None:
    theirs, ours = both
    prompt, fresh, drawn = tokens(19, 4), list[Tensor](), list[Tensor]()
    steps, real_randint, real_multinomial = 7, torch.randint, torch.multinomial

    def randint(*args: Any, **kwargs: Any) -> Tensor:
        fresh.append(real_randint(*args, **kwargs))
        return fresh[-1]

    def multinomial(*args: Any, **kwargs: Any) -> Tensor:
        drawn.append(real_multinomial(*args, **kwargs))
        return drawn[-1]

    with monkeypatch.context() as patch:
        patch.setattr(torch, "randint", randint)
        patch.setattr(torch, "multinomial", multinomial)
        torch.manual_seed(0)
        given = theirs.generate(
            prompt[None],
            max_new_tokens=3 * CANVAS,
            max_denoising_steps=steps,
            confidence_threshold=1e-9,  # every canvas takes all its steps
            eos_token_id=None,
        )
    starts = [fresh[canvas * (steps + 1) : (canvas + 1) * (steps + 1)][:-1] for canvas in range(3)]
    noise = iter([draw for canvas in starts for draw in canvas])
    sampled = iter(drawn)
    monkeypatch.setattr(renoising, "noise", lambda *_: next(noise))
    monkeypatch.setattr(judge, "_inverse_cdf", lambda *_: next(sampled).view(1, -1))
    settings = replace(ours.spec.defaults, steps=steps)
    settings = replace(settings, noise=replace(settings.noise, confidence=1e-9))
    row = request(ours, prompt.tolist(), 3 * CANVAS, settings, stops=[-1])
    reply(eager(ours), row)
    assert row.ids == given.sequences[0, len(prompt) :].tolist()
    assert row.forwards == 3 * steps + row.commits


def test_the_released_spelling_of_the_config_means_the_same(shared_fixtures: Path) -> None:
    import json

    from engine.models.diffusion_gemma_reader import read_diffusion_gemma

    folder = shared_fixtures / "diffusion-gemma-tiny"
    generation = json.loads((folder / "generation_config.json").read_text())
    specs = [
        read_diffusion_gemma(json.loads((folder / name).read_text()), generation)
        for name in ("config.json", "config.release_style.json")
    ]
    assert specs[0] == specs[1]
    assert (specs[0].full.head_dim, specs[0].full.kv_heads, specs[0].full_layers) == (32, 1, (2, 4))
    assert (specs[0].stop_ids, specs[0].defaults.steps) == ((1, 244), 48)
