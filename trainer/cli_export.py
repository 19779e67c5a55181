"""The terminal's side of keeping: what a run learnt, as an adapter or a model folder with a card.

Knows words and exit codes, and what a model card says. Writing is `trainer.export`'s.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any, Literal

from engine.errors import RequestError
from trainer.run_dir import RunDir

WHAT = ("adapter", "merged", "nvfp4")


def add_arguments(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """`export`."""
    p = commands.add_parser("export", help="write what a run learnt as an adapter or a model")
    p.add_argument("folder", type=Path, help="the run's folder")
    p.add_argument("--what", choices=WHAT, default="merged")
    p.add_argument("--to", type=Path, required=True, metavar="DIR", help="a folder not there yet")
    p.add_argument("--checkpoint", choices=("best", "last"), default="best")
    p.set_defaults(do=_export)


def _export(args: argparse.Namespace) -> int:
    export(RunDir.open(args.folder), args.what, args.to, args.checkpoint)
    print(f"{args.to}: {args.what}")
    return 0


def export(run: RunDir, what: str, target: Path, which: Literal["best", "last"] = "best") -> None:
    """Writes a run's checkpoint to `target`. Raises RequestError `export.nothing` for a run that
    saved nothing, and as `trainer.export`'s writers."""
    from safetensors.torch import load_file

    from trainer.export import write_adapter, write_merged, write_nvfp4
    from trainer.start import make_learner

    checkpoint = run.checkpoint(which) or run.checkpoint("last")
    if checkpoint is None:
        raise RequestError(
            "export.nothing", "This run has not saved anything yet.", "Let it go on for a while."
        )
    learner = make_learner(run.spec)
    learner.load_state_dict(load_file(checkpoint.tensors))
    write = {"adapter": write_adapter, "merged": write_merged, "nvfp4": write_nvfp4}[what]
    write(learner.student, target)
    card = model_card(run, what, checkpoint.meta)
    (target / "README.md").write_text(card, encoding="utf-8")


def model_card(run: RunDir, what: str, meta: Any) -> str:
    """Markdown: what it was made from, how, and what was measured, better and worse."""
    spec = run.spec
    try:
        manifest = json.loads((run.path / "manifest.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        manifest = {}
    base = manifest.get("base", {})
    lines = [
        f"# {Path(spec.model).name}, tuned with ORL",
        "",
        f"Form: {what}. Made by Unblur from the base model `{Path(spec.model).name}` "
        f"(config sha256 `{base.get('hashes', {}).get('config', 'not known')}`), whose licence it "
        "keeps.",
        "",
        f"- Checkpoint: update {meta.get('update')} of {spec.updates}, seed {spec.seed}.",
        f"- Verifier: {spec.verifier.kind}.",
        *(f"- Data: `{Path(n).name}`, sha256 `{h}`." for n, h in manifest.get("data", {}).items()),
        f"- Rows: {manifest.get('rows', 'not known')}, of which "
        f"{manifest.get('validation', 'not known')} were held out for the figures below.",
        "",
        *_figures(meta.get("start"), meta.get("best")),
        "",
        "The spec of the run:",
        "",
        "```json",
        spec.to_json().strip(),
        "```",
        "",
    ]
    return "\n".join(lines)


def _figures(start: Any, best: Any) -> list[str]:
    """Start against the best, what got worse first; or that nothing was measured."""
    if not start or not best:
        return ["Nothing was measured on held-out rows."]
    worse = [
        text
        for name, text in (("accuracy", "Fewer answers are right."), ("tpf", "It is slower."))
        if best[name] < start[name]
    ]
    return [
        *worse,
        "",
        "| | verified % | TPF | forwards an answer |",
        "|---|---|---|---|",
        *(
            f"| {name} | {100 * f['accuracy']:.1f} | {f['tpf']:.2f} | {f['forwards']:.2f} |"
            for name, f in (("start", start), ("tuned", best))
        ),
    ]
