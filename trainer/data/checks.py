"""Looks at a data set before anything is trained with it, as one report.

Knows what makes training useless or misleading: nothing that fits, nothing that is trained, a
verifier that cannot tell right from wrong, prompts on both sides of the split. Trains nothing, and
needs no weights and no torch.
"""

from __future__ import annotations

import unicodedata
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from engine.errors import RequestError
from engine.types import Message
from trainer.data.encoding import EncodedTask, ModelEncoder
from trainer.data.readers import Loaded, load_tasks, preview
from trainer.data.report import (
    Counts,
    DataReport,
    Finding,
    Lengths,
    SeenRow,
    SeenToken,
    Split,
    Spread,
    Template,
)
from trainer.data.split import held_out, prompt_key
from trainer.data.task import Task
from trainer.verify.probe import Probe, probe
from trainer.verify.registry import KINDS, make_verifier
from trainer.verify.verifier_spec import VerifierSpec

NAMED = 50  # rows that are named of each kind of trouble
FEW = 50  # tasks; below it figures are rough
LANGUAGE_ROWS = 200  # rows whose letters are counted


@dataclass(frozen=True)
class CheckOptions:
    """validation, seed: as in the run. window: blocks a row may fill (`Recipe.window`). measured:
    tasks whose tokens are counted. shown: rows that are shown as the model sees them. tried: rows
    a verifier is tried on."""

    validation: float = 0.1
    seed: int = 1
    window: int = 32
    measured: int = 5000
    shown: int = 5
    tried: int = 5


@dataclass(frozen=True)
class _Measured:
    """Encoded tasks that can be asked; rows that cannot, and rows whose answer is not taught."""

    encoded: list[tuple[Task, EncodedTask]]
    unfit: list[str]
    truncated: list[str]


def check_data(
    files: Sequence[str],
    columns: Mapping[str, str] | None = None,
    model: Path | None = None,
    verifier: VerifierSpec | None = None,
    options: CheckOptions | None = None,
    stop: Callable[[], None] = lambda: None,
) -> DataReport:
    """Raises RequestError as `load_tasks` and `make_verifier`, CheckpointError for a model that
    cannot be read; what else is wrong is a finding. stop: called often; raises to end the work."""
    loaded = load_tasks(tuple(files), columns, stop=stop)
    return report_on(tuple(files), loaded, columns, model, verifier, options, stop)


def report_on(
    files: tuple[str, ...],
    loaded: Loaded,
    columns: Mapping[str, str] | None = None,
    model: Path | None = None,
    verifier: VerifierSpec | None = None,
    options: CheckOptions | None = None,
    stop: Callable[[], None] = lambda: None,
) -> DataReport:
    """The same for tasks that were loaded before."""
    chosen = options or CheckOptions()
    tasks = loaded.tasks
    encoder = None if model is None else ModelEncoder.open(model)
    measured = _Measured([], [], [])
    if encoder is not None:
        measured = _measure(encoder, tasks[: chosen.measured], chosen.window, stop)
    tried = None
    if verifier is not None:
        tried = probe(make_verifier(verifier), tasks[: chosen.tried])
    counts, split = _counts(loaded), _split(tasks, chosen)
    findings = _row_findings(loaded, counts, split)
    if encoder is not None:
        findings += _model_findings(measured, counts)
    if verifier is not None and tried is not None:
        findings += _verifier_findings(verifier, tried)
    return DataReport(
        files=files,
        layouts=tuple(_layout_words(Path(name), columns) for name in files),
        counts=counts,
        split=split,
        bad=loaded.bad,
        lengths=None if encoder is None else _lengths(encoder, measured, chosen.window),
        template=None if encoder is None else _template(encoder, measured),
        unfit=tuple(measured.unfit[:NAMED]),
        unfit_count=len(measured.unfit),
        truncated=tuple(measured.truncated[:NAMED]),
        truncated_count=len(measured.truncated),
        seen=tuple(_seen(encoder, *pair) for pair in measured.encoded[: chosen.shown])
        if encoder is not None
        else (),
        probe=tried,
        findings=tuple(sorted(findings, key=lambda finding: finding.level != "stop")),
    )


def _layout_words(path: Path, columns: Mapping[str, str] | None) -> str:
    """How a file was read, for people."""
    if columns:
        return "columns as named: " + ", ".join(f"{r} = {c}" for r, c in columns.items())
    guess = preview(path).guess
    return f"{guess.title} ({guess.reason})"


def _counts(loaded: Loaded) -> Counts:
    tasks = loaded.tasks
    answers: dict[bytes, set[str]] = {}
    pairs: set[tuple[bytes, str]] = set()
    for task in tasks:
        key = prompt_key(task)
        pairs.add((key, task.reference or ""))
        if task.reference is not None:
            answers.setdefault(key, set()).add(task.reference)
    return Counts(
        rows=loaded.rows,
        tasks=len(tasks),
        bad=loaded.bad_count,
        left_out=loaded.left_out,
        answered=sum(task.reference is not None for task in tasks),
        repeated=len(tasks) - len(pairs),
        disputed=sum(len(found) > 1 for found in answers.values()),
        skills=dict(Counter(task.skill for task in tasks).most_common()),
    )


def _split(tasks: Sequence[Task], options: CheckOptions) -> Split:
    held = held_out(tasks, options.validation, options.seed)
    train = [task for n, task in enumerate(tasks) if n not in held]
    valid = [tasks[n] for n in sorted(held)]
    exact = {prompt_key(task) for task in train}
    near = {prompt_key(task, numbers=False) for task in train}
    overlap = sum(prompt_key(task) in exact for task in valid)
    alike = sum(prompt_key(task, numbers=False) in near for task in valid)
    return Split(len(train), len(valid), overlap, alike - overlap)


def _measure(
    encoder: ModelEncoder, tasks: Sequence[Task], window: int, stop: Callable[[], None]
) -> _Measured:
    limit, block = encoder.limit(window), encoder.spec.block_length
    measured = _Measured([], [], [])
    for task in tasks:
        stop()
        try:
            encoded = encoder.encode(task)
        except RequestError as error:
            measured.unfit.append(f"{task.id}: {error.message}")
            continue
        if encoded.prompt >= limit:
            words = f"the prompt has {encoded.prompt} tokens; the limit is {limit}"
            measured.unfit.append(f"{task.id}: {words}")
            continue
        # A block of the window is the noisy copy that learns: the trainer's own rule.
        if encoded.trained and -(-len(encoded.ids) // block) >= limit // block:
            words = (
                f"prompt and answer have {len(encoded.ids)} tokens; the limit is {limit - block}"
            )
            measured.truncated.append(f"{task.id}: {words}")
        measured.encoded.append((task, encoded))
    return measured


def _spread(sizes: Sequence[int]) -> Spread:
    ordered = sorted(sizes) or [0]
    last = len(ordered) - 1
    return Spread(ordered[last // 2], ordered[round(0.95 * last)], ordered[-1])


def _lengths(encoder: ModelEncoder, measured: _Measured, window: int) -> Lengths:
    block, limit = encoder.spec.block_length, encoder.limit(window)
    pairs = [encoded for _, encoded in measured.encoded]
    edges = [block]
    while edges[-1] * 2 < limit:
        edges.append(edges[-1] * 2)
    edges.append(limit)
    sizes = [len(encoded.ids) for encoded in pairs]
    below = [sum(size <= edge for size in sizes) for edge in edges]
    counts = [high - low for low, high in zip([0, *below], [*below, len(sizes)], strict=True)]
    spans = Counter(-(-len(e.ids) // block) - e.prompt // block for e in pairs if e.trained)
    return Lengths(
        measured=len(pairs) + len(measured.unfit),
        prompt=_spread([encoded.prompt for encoded in pairs]),
        answer=_spread([encoded.trained for encoded in pairs if encoded.trained]),
        blocks=dict(sorted(spans.items())),
        edges=tuple(edges),
        counts=tuple(counts),
        block=block,
        context=encoder.spec.max_position_embeddings,
        limit=limit,
    )


def _template(encoder: ModelEncoder, measured: _Measured) -> Template:
    try:
        encoder.tokenizer.encode_chat((Message("system", "s"), Message("user", "u")))
        system = True
    except RequestError:
        system = False
    texts = [
        text
        for task, _ in measured.encoded[:LANGUAGE_ROWS]
        for text in (*(m.content for m in task.messages), task.reference or "")
    ]
    tokens = sum(
        len(encoded.ids) - _template_tokens(encoder, task)
        for task, encoded in measured.encoded[:LANGUAGE_ROWS]
    )
    return Template(
        model=encoder.name,
        family=encoder.title,
        system=system,
        scripts=scripts_of(texts),
        characters_per_token=round(sum(map(len, texts)) / max(1, tokens), 2),
    )


def _template_tokens(encoder: ModelEncoder, task: Task) -> int:
    """How many of a task's tokens the template adds."""
    bare = tuple(Message(message.role, "") for message in task.messages)
    try:
        around = encoder.encode(Task(task.id, bare, None if task.reference is None else ""))
    except RequestError:  # a template that takes no empty message
        return 0
    return len(around.ids)


def scripts_of(texts: Sequence[str]) -> dict[str, float]:
    """Shares of the scripts among the letters of texts, the commonest first; below 1 % left out."""
    letters = Counter(letter for text in texts for letter in text[:2000] if letter.isalpha())
    found: Counter[str] = Counter()
    for letter, count in letters.items():
        found[unicodedata.name(letter, "OTHER").split()[0].capitalize()] += count
    total = max(1, found.total())
    return {name: round(n / total, 3) for name, n in found.most_common() if n >= 0.01 * total}


def _seen(encoder: ModelEncoder, task: Task, encoded: EncodedTask) -> SeenRow:
    pieces = encoder.pieces(encoded.ids)
    tokens = tuple(SeenToken(text, n >= encoded.prompt) for n, text in enumerate(pieces))
    return SeenRow(task.id, tokens, encoded.prompt, encoded.trained)


def _rows(count: int) -> str:
    return "1 row" if count == 1 else f"{count} rows"


def _row_findings(loaded: Loaded, counts: Counts, split: Split) -> list[Finding]:
    found: list[Finding] = []

    def warn(code: str, message: str, action: str) -> None:
        found.append(Finding("warn", code, message, action))

    if not split.train:
        words = f"{_rows(counts.tasks)}: nothing is left to train on beside validation."
        action = "Give more rows, or a smaller validation share."
        found.append(Finding("stop", "data.too_few", words, action))
    if counts.bad:
        words = f"Of {_rows(counts.rows)}, {counts.bad} cannot be used. The first: {loaded.bad[0]}."
        warn("data.bad_rows", words, "Correct them, or go on without them.")
    if counts.left_out:
        words = f"{counts.tasks} rows, drawn from all, are kept; {counts.left_out} more are not."
        warn("data.left_out", words, "Nothing needs to be done.")
    if counts.repeated:
        words = f"Repeats of an earlier row: {counts.repeated}. What is repeated counts more often."
        warn("data.repeated", words, "Remove them, unless this is meant.")
    if counts.disputed:
        words = f"{counts.disputed} prompts stand there with different answers."
        warn("data.disputed", words, "See whether all of these answers are right.")
    if counts.answered < counts.tasks:
        words = f"{_rows(counts.tasks - counts.answered)} without an answer."
        warn("data.unanswered", words, "They can be made faster, but not be taught.")
    if split.train and not split.valid:
        words = "No row is left for validation, so a run could not tell whether it got worse."
        warn("data.no_validation", words, "Give more rows, or a larger validation share.")
    if counts.tasks < FEW:
        words = f"Only {_rows(counts.tasks)}: held-out figures will be rough."
        warn("data.few", words, "Some hundreds of rows say more.")
    if split.valid and split.near * 2 > split.valid:
        words = (
            f"{split.near} of {split.valid} validation prompts differ from a training prompt in "
            "their numbers alone: they do not show how other questions fare."
        )
        warn("data.near", words, "Compare on prompts of another kind as well.")
    return found


def _model_findings(measured: _Measured, counts: Counts) -> list[Finding]:
    found: list[Finding] = []
    unfit, truncated = len(measured.unfit), len(measured.truncated)
    taught = sum(encoded.trained > 0 for _, encoded in measured.encoded) - truncated
    if not measured.encoded:
        words = f"Of {_rows(unfit)}, none can be asked. The first: {measured.unfit[0]}."
        action = "Give shorter prompts, a longer window, or another model."
        found.append(Finding("stop", "data.nothing_fits", words, action))
    elif counts.answered and not taught:
        words = "No answer fits beside its prompt, so no answer would be trained."
        action = "Give shorter rows or a longer window, or train for speed alone."
        found.append(Finding("stop", "data.nothing_trained", words, action))
    if measured.encoded and unfit:
        words = f"Left out, as it cannot be asked: {_rows(unfit)}. The first: {measured.unfit[0]}."
        found.append(Finding("warn", "data.unfit", words, "Shorten them, or go on without them."))
    if truncated and taught:
        first = measured.truncated[0]
        words = f"{truncated} answers do not fit and are not taught. The first: {first}."
        action = "Shorten them, or train with a longer window."
        found.append(Finding("warn", "data.truncated", words, action))
    return found


def _verifier_findings(spec: VerifierSpec, tried: Probe) -> list[Finding]:
    if KINDS[spec.kind].reference and not tried.tried:
        words = "This verifier compares with the rows' answers, and the first rows have none."
        action = "Name the column of the answers, or choose another verifier."
        return [Finding("stop", "verifier.needs_answers", words, action)]
    try:
        tried.refuse_useless()
    except RequestError as error:
        return [Finding("stop", error.code, error.message, error.action)]
    if tried.accepted < tried.tried:
        first = tried.refused[0]
        words = f"{tried.sentence} The first it refuses, {first.id}: {first.reason}."
        action = "Look at the rows it refuses before you trust its figures."
        return [Finding("warn", "verifier.refuses_some", words, action)]
    return []
