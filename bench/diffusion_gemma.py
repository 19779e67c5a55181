"""Times DiffusionGemma's step on random weights at the released shape: NVFP4 experts, a canvas of
256, a prompt of 1k tokens; eager, one graph per step and one graph per reply, and transformers'
own `generate` in the same run where it can be imported.

    python bench/diffusion_gemma.py [--layers N] [--context N] [--steps N] [--arms eager,...]
                                    [--kv-fp8] [--torch] [--no-reference] [--profile] [--dry]
                                    [--json FILE]

Every canvas takes all its steps (`--steps`), so that all arms do the same work; random weights say
nothing of quality. The reference holds its experts in bfloat16, since it reads no NVFP4: about 51
GB. `--dry` runs a small shape on the CPU with the tests' stand-in (its times mean nothing).
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import sys
import time
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any, cast

sys.path.insert(0, str(Path(__file__).resolve().parent))
if "--dry" in sys.argv:
    os.environ.setdefault("TRITON_INTERPRET", "1")

import torch
from loop_arms import ARMS, Place, give_back, make_backend, run_rows, used_bytes
from torch import Tensor, nn

from engine.compose import make_program
from engine.decoding.rules import RuleOptions
from engine.errors import RuntimeFailure
from engine.kernels.nvfp4 import PackedExperts
from engine.models.accelerate import KernelPlacer
from engine.models.diffusion_gemma import DiffusionGemma
from engine.models.diffusion_gemma_layers import Norm
from engine.models.diffusion_gemma_reader import read_diffusion_gemma
from engine.models.experts import Experts
from engine.models.layers import Linear
from engine.runtime.canvas_cache import FP8
from engine.runtime.choice import record_kernel
from engine.runtime.eager import EagerRuntime
from engine.runtime.graph import GraphRuntime, PerStepGraphRuntime
from engine.runtime.pieces import make_pieces
from engine.runtime.ring import SLOTS
from engine.runtime.rows import Row, StepMark
from engine.types import DecodeSettings

Result = dict[str, Any]
REPEATS = 3
TEXT: dict[str, Any] = {
    "hidden_size": 2816,
    "num_hidden_layers": 30,
    "num_attention_heads": 16,
    "head_dim": 256,
    "global_head_dim": 512,
    "num_key_value_heads": 8,
    "num_global_key_value_heads": 2,
    "intermediate_size": 2112,
    "num_experts": 128,
    "top_k_experts": 8,
    "moe_intermediate_size": 704,
    "vocab_size": 262144,
    "sliding_window": 1024,
    "max_position_embeddings": 262144,
    "final_logit_softcapping": 30.0,
}
SMALL: dict[str, Any] = TEXT | {
    "hidden_size": 64,
    "num_hidden_layers": 6,
    "num_attention_heads": 4,
    "head_dim": 16,
    "global_head_dim": 32,
    "num_key_value_heads": 2,
    "num_global_key_value_heads": 1,
    "intermediate_size": 64,
    "num_experts": 4,
    "top_k_experts": 2,
    "moe_intermediate_size": 32,
    "vocab_size": 512,
    "sliding_window": 12,
    "max_position_embeddings": 512,
}
VISION: dict[str, Any] = {  # the reference cannot be made without one; it takes no part
    "hidden_size": 16,
    "intermediate_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 1,
    "num_key_value_heads": 1,
    "head_dim": 16,
    "patch_size": 4,
    "position_embedding_size": 4,
}


def random_model(text: dict[str, Any], canvas: int, place: Place, kernels: bool) -> DiffusionGemma:
    """Layer by layer, as a load would place them: no bfloat16 copy of the experts is ever there."""
    config = {"canvas_length": canvas, "eos_token_id": 1, "text_config": text}
    with torch.device("meta"):
        model = DiffusionGemma(read_diffusion_gemma(config, {}))
    placer = KernelPlacer(model, place.device, place.dtype) if kernels else None
    torch.manual_seed(0)
    for name, module in model.named_modules():
        if isinstance(module, Experts):
            shapes = (module.gate.shape, module.up.shape, module.down.shape)
            module.pack(*(random_experts(tuple(shape), place) for shape in shapes))
            if placer is not None:
                placer.place(model.get_submodule(name.rpartition(".")[0]))
        else:
            fill(module, place)
    model.eval().requires_grad_(False)
    if placer is not None:
        print(*placer.finish().sentences, sep="\n")
    return model


def random_experts(shape: tuple[int, ...], place: Place) -> PackedExperts:
    """Any codes, scales around 1, and values of a spread that keeps activations' size."""
    experts, rows, columns = shape

    def draw(low: int, high: int, *size: int) -> Tensor:
        return torch.randint(low, high, size, dtype=torch.uint8, device=place.device)

    spread = 1 / (2.7 * columns**0.5)
    return PackedExperts(
        draw(0, 256, experts, rows, columns // 2),
        draw(0x30, 0x40, experts, rows, columns // 16).view(torch.float8_e4m3fn),
        torch.full((experts,), spread, device=place.device),
    )


def fill(module: nn.Module, place: Place) -> None:
    for name, weight in list(module.named_parameters(recurse=False)):
        value = torch.ones(weight.shape, dtype=place.dtype, device=place.device)
        if isinstance(module, Linear | nn.Embedding):
            value.normal_(std=weight.shape[-1] ** -0.5)
        elif not isinstance(module, Norm) and name == "layer_scalar":
            value.fill_(0.5)
        setattr(module, name, nn.Parameter(value, requires_grad=False))


def arm(name: str, model: DiffusionGemma, capacity: int, place: Place, kv: torch.dtype) -> Any:
    """A runtime with its own cache."""
    kernels = not place.dry and model.layers[0].compute is not None
    program = make_program(model, 1, capacity, RuleOptions(), kv, kernels=kernels)
    kernel = None if place.dry else record_kernel()
    pieces = make_pieces(program, True, slots=SLOTS, kernel=kernel)
    if name == "eager":
        return EagerRuntime(pieces, exact=False)
    backend = make_backend(pieces, place)
    kind = GraphRuntime if name == "graph" else PerStepGraphRuntime
    return kind(pieces, backend)


def request(model: DiffusionGemma, context: int, canvases: int, settings: DecodeSettings) -> Row:
    spec = model.spec
    prompt = [(7 * n + 3) % spec.vocab_size for n in range(context)]
    limit = canvases * spec.block_length
    return Row(prompt, limit, settings, spec.block_length, frozenset([-1]), spec.on_grid)


def timing(name: str, model: DiffusionGemma, args: argparse.Namespace, place: Place) -> Result:
    """Milliseconds of a step, of reading a finished canvas and of the prompt; memory."""
    length = model.spec.block_length
    capacity = -(-(args.context + 2 * length) // length) * length
    settings = replace(model.spec.defaults, steps=args.steps)
    settings = replace(settings, noise=replace(settings.noise, confidence=0.0))
    before = used_bytes(place)
    if not place.dry:
        torch.cuda.reset_peak_memory_stats()
    runtime = arm(name, model, capacity, place, FP8 if args.kv_fp8 else place.dtype)
    runtime.prepare()
    prompt, one, commit = list[float](), list[float](), list[float]()
    try:
        run_rows(runtime, request(model, args.context, 2, settings))  # captures what is sampled
        for _ in range(REPEATS):
            row = request(model, args.context, 1, settings)
            begun = time.perf_counter()
            runtime.prefill([row])
            wait(place)
            prompt.append(time.perf_counter() - begun)
            one.append(list(runtime.run([row], record=False))[-1].seconds)
            assert row.forwards == args.steps
            commit.append(commit_of(run_rows(runtime, request(model, args.context, 2, settings))))
        return {
            "arm": name,
            "step_ms": 1e3 * statistics.median(one) / args.steps,
            "commit_ms": 1e3 * statistics.median(commit),
            "prompt_ms": 1e3 * statistics.median(prompt),
            "runtime_gb": (used_bytes(place) - before) / 1e9,
            "peak_gb": 0.0 if place.dry else torch.cuda.max_memory_allocated() / 1e9,
            "used_gb": used_bytes(place) / 1e9,
        }
    finally:
        runtime.close()
        del runtime
        give_back(place)


def commit_of(marks: list[StepMark]) -> float:
    """Seconds of reading the first canvas of two: what the second one's first step takes beyond
    its others. (Two canvases less twice the first would also count what a longer context costs.)"""
    end = next(index for index, mark in enumerate(marks) if mark.block_done)
    stamps = [mark.seconds for mark in marks[end:]]
    first, *others = [b - a for a, b in pairwise(stamps)]
    return first - statistics.median(others)


def wait(place: Place) -> None:
    if not place.dry:
        torch.cuda.synchronize()


def profile(model: DiffusionGemma, args: argparse.Namespace, place: Place) -> None:
    """Prints what an eager reply of a few steps spends its time on."""
    from torch.profiler import ProfilerActivity
    from torch.profiler import profile as recording

    few = argparse.Namespace(**(vars(args) | {"steps": 4}))
    settings = replace(model.spec.defaults, steps=few.steps)
    settings = replace(settings, noise=replace(settings.noise, confidence=0.0))
    length = model.spec.block_length
    capacity = -(-(args.context + 2 * length) // length) * length
    runtime = arm("eager", model, capacity, place, FP8 if args.kv_fp8 else place.dtype)
    run_rows(runtime, request(model, args.context, 1, settings))
    row = request(model, args.context, 1, settings)
    runtime.prefill([row])
    kinds = [ProfilerActivity.CPU] + ([] if place.dry else [ProfilerActivity.CUDA])
    with recording(activities=kinds) as found:
        list(runtime.run([row], record=False))
        wait(place)
    order = "self_cpu_time_total" if place.dry else "self_cuda_time_total"
    print(found.key_averages().table(sort_by=order, row_limit=40))


def reference(text: dict[str, Any], args: argparse.Namespace, place: Place, canvas: int) -> Result:
    """transformers' own classes and `generate`, with the same shape and number of steps."""
    try:
        import transformers as t
        from transformers import initialization  # its switch for not drawing weights twice
    except ImportError as error:
        return {"arm": "transformers", "skipped": f"it cannot be imported ({error})"}
    config = t.DiffusionGemmaConfig(
        text_config=t.DiffusionGemmaTextConfig(**text, use_bidirectional_attention="vision"),
        vision_config=t.Gemma4VisionConfig(**VISION),
        canvas_length=canvas,
        image_token_id=text["vocab_size"] - 1,
        boi_token_id=text["vocab_size"] - 2,
        eoi_token_id=text["vocab_size"] - 3,
        dtype=place.dtype,
    )
    default = torch.get_default_dtype()
    try:
        torch.set_default_dtype(place.dtype)
        with torch.device(place.device), initialization.no_init_weights():
            model = t.DiffusionGemmaForBlockDiffusion(config).eval()
        model.tie_weights()
    finally:
        torch.set_default_dtype(default)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "norm" in name or name.endswith("scale"):
                weight.fill_(1.0)
            else:
                weight.normal_(std=weight.shape[-1] ** -0.5)
        for name, value in model.named_buffers():
            if name.endswith("layer_scalar"):
                value.fill_(0.5)
    prompt = [(7 * n + 3) % (text["vocab_size"] - 4) for n in range(args.context)]
    ids = torch.tensor([prompt], device=place.device)
    times = {}
    for steps in (1, args.steps):
        found = []
        for _ in range(REPEATS):
            wait(place)
            begun = time.perf_counter()
            cast(Any, model).generate(
                ids,
                max_new_tokens=canvas,
                max_denoising_steps=steps,
                confidence_threshold=1e-9,
                eos_token_id=None,
            )
            wait(place)
            found.append(time.perf_counter() - begun)
        times[steps] = min(found)  # the first one warms up
    step = (times[args.steps] - times[1]) / max(args.steps - 1, 1)
    return {
        "arm": f"transformers {t.__version__}",
        "step_ms": 1e3 * step,
        "prompt_and_first_step_ms": 1e3 * times[1],
        "used_gb": used_bytes(place) / 1e9,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--layers", type=int, help="fewer layers than the release's 30")
    parser.add_argument("--context", type=int, default=1024, help="tokens of the prompt")
    parser.add_argument("--steps", type=int, default=48, help="of every canvas")
    parser.add_argument("--arms", default=",".join(ARMS))
    parser.add_argument("--kv-fp8", action="store_true", help="keep keys and values in FP8")
    parser.add_argument("--torch", action="store_true", help="plain PyTorch operations only")
    parser.add_argument("--no-reference", action="store_true")
    parser.add_argument("--profile", action="store_true", help="what eager spends its time on")
    parser.add_argument("--dry", action="store_true")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    place = Place.here(args.dry)
    text, canvas = (SMALL, 16) if args.dry else (TEXT, 256)
    if args.dry:
        args.context, args.steps = min(args.context, 40), min(args.steps, 4)
    if args.layers:
        text = text | {"num_hidden_layers": args.layers}
    report: Result = {
        "device": "cpu" if args.dry else torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "text_config": text,
        "arguments": {k: str(v) for k, v in vars(args).items() if k != "json"},
        "arms": [],
    }
    model: DiffusionGemma | None = random_model(text, canvas, place, not (args.dry or args.torch))
    report["model_gb"] = used_bytes(place) / 1e9
    print(f"model in place: {report['model_gb']:.2f} GB")
    failed = 0
    for name in args.arms.split(","):
        try:
            report["arms"].append(timing(name, model, args, place))
        except (RuntimeFailure, RuntimeError) as error:
            failed += 1
            report["arms"].append({"arm": name, "failed": str(error)})
        print(json.dumps(report["arms"][-1]))
    if args.profile:
        profile(model, args, place)
    model = None
    give_back(place)
    if not args.no_reference:
        report["arms"].append(reference(text, args, place, canvas))
        print(json.dumps(report["arms"][-1]))
    if args.json:
        args.json.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
