"""Which field of a row is what, told from a few rows, and how sure that is.

Knows names of fields. Refuses to change rows (`trainer.data.readers.tasks`) or to open files.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Literal

from engine.errors import RequestError
from trainer.verify.unit_tests import row_tests
from trainer.verify.verifier_spec import VerifierSpec

Shape = Literal["columns", "gsm8k", "math", "humaneval", "mbpp"]
SURE = 0.8  # a guess below this is to be confirmed by a person

TALKS = ("messages", "conversations", "conversation", "dialog", "dialogue", "chat")
PROMPTS = (
    *("prompt", "question", "instruction", "query", "problem", "input", "user", "request", "human"),
    *("user_message", "source", "ask", "q", "task", "text", "input_text"),
)
ANSWERS = (
    *("answer", "response", "output", "completion", "solution", "reply", "assistant", "target"),
    *("expected", "gold", "ground_truth", "reference", "chosen", "label", "a", "final_answer"),
    *("assistant_message", "output_text", "target_text"),
)
SYSTEMS = ("system", "system_prompt", "system_message")
CONTEXTS = ("context", "passage", "document", "background", "input")
SKILLS = ("skill", "category", "subject", "topic")


@dataclass(frozen=True)
class ColumnMapping:
    """Names of a file's columns, empty where there is none. messages: a whole conversation, which
    stands for itself; else prompt, with context (text that is put below it) and system. answer: the
    reference. skill: the group figures are reported by."""

    messages: str = ""
    prompt: str = ""
    context: str = ""
    system: str = ""
    answer: str = ""
    skill: str = ""

    def as_columns(self) -> dict[str, str]:
        """As it stands in a run's file (`trainer.spec.DataSpec.columns`)."""
        named = {f.name: getattr(self, f.name) for f in fields(self)}
        return {name: column for name, column in named.items() if column}

    @classmethod
    def from_columns(cls, columns: Mapping[str, str]) -> ColumnMapping:
        """Raises RequestError `data.columns` for a role there is not, or without a prompt."""
        roles = [f.name for f in fields(cls)]
        unknown = [name for name in columns if name not in roles]
        if unknown or not (columns.get("prompt") or columns.get("messages")):
            problem = f"There is no role {unknown[0]!r}" if unknown else "No column is the prompt"
            raise RequestError(
                "data.columns",
                f"{problem}; roles are {', '.join(roles)}.",
                "Name the prompt's column, or the one of the conversations.",
            )
        return cls(**columns)


@dataclass(frozen=True)
class Layout:
    """shape: `columns`, or a benchmark whose rows are rewritten as it is usually asked."""

    shape: Shape
    mapping: ColumnMapping


@dataclass(frozen=True)
class Guess:
    """title: what the rows look like, for people. confidence: 0 to 1; below `SURE` a person must
    confirm it. reason: why not more, or what was seen. columns: of the rows, in order. verifier:
    what fits such rows, where that is plain."""

    layout: Layout
    title: str
    confidence: float
    reason: str
    columns: tuple[str, ...]
    verifier: VerifierSpec | None = None

    @property
    def sure(self) -> bool:
        return self.confidence >= SURE


@dataclass
class _Seen:
    """What a few rows have in common. by_name: plain name -> the column as it is written."""

    rows: Sequence[Mapping[str, Any]]
    columns: tuple[str, ...] = ()
    by_name: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.columns = tuple(dict.fromkeys(name for row in self.rows for name in row))
        for column in self.columns:
            self.by_name.setdefault(column.strip().casefold().replace(" ", "_"), column)

    def named(self, usual: tuple[str, ...]) -> list[str]:
        """Columns with a usual name that hold something, the most usual first."""
        found = [self.by_name[name] for name in usual if name in self.by_name]
        return [column for column in found if any(row.get(column) for row in self.rows)]

    def has(self, *names: str) -> bool:
        return all(name in self.by_name for name in names)

    def share(self, test: Any) -> float:
        """Share of the rows that a test holds for."""
        return sum(bool(test(row)) for row in self.rows) / max(1, len(self.rows))


def guess_layout(rows: Sequence[Mapping[str, Any]]) -> Guess:
    """From the first rows of a file."""
    seen = _Seen(rows)
    return _talk(seen) or _benchmark(seen) or _alpaca(seen) or _columns(seen)


def _talk(seen: _Seen) -> Guess | None:
    for column in seen.named(TALKS):
        if seen.share(lambda row, c=column: isinstance(row.get(c), list)) < 0.5:
            continue
        turns = [turn for row in seen.rows for turn in _list(row.get(column))]
        gpt = any(isinstance(turn, dict) and "from" in turn for turn in turns)
        extras = {"system": _one(seen, SYSTEMS), "skill": _one(seen, SKILLS)}
        mapping = ColumnMapping(messages=column, **extras)
        title = "conversations (ShareGPT)" if gpt else "conversations (chat messages)"
        return _guess(seen, mapping, title, 1.0, f"column {column!r} holds turns of a talk")
    return None


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _benchmark(seen: _Seen) -> Guess | None:
    name = seen.by_name.get
    if seen.has("prompt", "entry_point", "test"):
        mapping = ColumnMapping(prompt=name("prompt", ""), answer=name("canonical_solution", ""))
        tests = VerifierSpec("unit_tests")
        reason = "the prompt is asked as a function to complete; the tests judge"
        return _guess(seen, mapping, "HumanEval", 1.0, reason, "humaneval", tests)
    if seen.has("test_list") and (seen.has("text") or seen.has("prompt")):
        prompt = name("text") or name("prompt", "")
        mapping = ColumnMapping(prompt=prompt, answer=name("code", ""))
        reason = "the tests are shown below the prompt, as is usual; they judge"
        tests = VerifierSpec("unit_tests")
        return _guess(seen, mapping, "MBPP", 1.0, reason, "mbpp", tests)
    if seen.has("question", "answer"):
        answer = name("answer", "")
        if seen.share(lambda row: "\n#### " in str(row.get(answer))) > 0.9:
            mapping = ColumnMapping(prompt=name("question", ""), answer=answer)
            reason = "calculator marks <<...>> are left out of the answers"
            return _guess(seen, mapping, "GSM8K", 1.0, reason, "gsm8k", VerifierSpec("number"))
    if seen.has("problem") and (seen.has("solution") or seen.has("answer")):
        column = name("solution") or name("answer", "")
        if seen.has("answer") or seen.share(lambda row: "\\boxed" in str(row.get(column))) > 0.9:
            skill = name("subject") or name("type", "")
            mapping = ColumnMapping(prompt=name("problem", ""), answer=column, skill=skill)
            reason = "the boxed result is the answer"
            return _guess(seen, mapping, "MATH", 1.0, reason, "math", VerifierSpec("math"))
    return None


def _alpaca(seen: _Seen) -> Guess | None:
    if not seen.has("instruction", "output"):
        return None
    name = seen.by_name.get
    mapping = ColumnMapping(
        prompt=name("instruction", ""),
        context=name("input", ""),
        answer=name("output", ""),
        system=_one(seen, SYSTEMS),
        skill=_one(seen, SKILLS),
    )
    return _guess(seen, mapping, "instructions (Alpaca)", 1.0, "instruction, input and output")


def _one(seen: _Seen, usual: tuple[str, ...]) -> str:
    return next(iter(seen.named(usual)), "")


def _columns(seen: _Seen) -> Guess:
    prompts = [c for c in seen.named(PROMPTS) if _is_text(seen, c)]
    answers = [c for c in seen.named(ANSWERS) if c not in prompts[:1]]
    extras = {"system": _one(seen, SYSTEMS), "skill": _one(seen, SKILLS)}
    if prompts and answers:
        mapping = ColumnMapping(prompt=prompts[0], answer=answers[0], **extras)
        contexts = [c for c in seen.named(CONTEXTS) if c not in prompts]
        others = [*prompts[1:], *answers[1:], *contexts]
        sure = 0.95 if not others else 0.6
        reason = f"columns {prompts[0]!r} and {answers[0]!r}"
        if others:
            reason += f"; {', '.join(map(repr, others))} may be meant too"
        return _guess(seen, mapping, "prompts and answers", sure, reason)
    if prompts:
        rest = [c for c in seen.columns if c not in (*prompts, *extras.values())]
        rest = [c for c in rest if seen.share(lambda row, c=c: c in row) >= 0.5]
        sure, reason = 0.9, f"column {prompts[0]!r}; no answers"
        if rest or len(prompts) > 1:
            sure, reason = 0.5, f"column {prompts[0]!r}; none has an answer's usual name"
        return _guess(seen, ColumnMapping(prompt=prompts[0], **extras), "prompts", sure, reason)
    texts = [c for c in seen.columns if _is_text(seen, c) and c not in extras.values()]
    if len(texts) >= 2:
        mapping = ColumnMapping(prompt=texts[0], answer=answers[0] if answers else texts[1])
        reason = "no column has a prompt's usual name; these are the first columns with text"
        return _guess(seen, mapping, "two columns of text", 0.3, reason)
    reason = "no column has a prompt's usual name"
    if texts:
        return _guess(seen, ColumnMapping(prompt=texts[0]), "one column of text", 0.3, reason)
    return _guess(seen, ColumnMapping(), "unknown", 0.0, reason)


def _is_text(seen: _Seen, column: str) -> bool:
    return seen.share(lambda row: isinstance(row.get(column), str)) >= 0.5


def _guess(
    seen: _Seen,
    mapping: ColumnMapping,
    title: str,
    confidence: float,
    reason: str,
    shape: Shape = "columns",
    verifier: VerifierSpec | None = None,
) -> Guess:
    if verifier is None and seen.share(lambda row: row_tests(row, "")) > 0.5:
        verifier = VerifierSpec("unit_tests")
    if verifier is None and seen.share(_is_builtin) > 0.9:
        verifier = VerifierSpec("demo")
    layout = Layout(shape, mapping)
    return Guess(layout, title, confidence, reason, seen.columns, verifier)


def _is_builtin(row: Mapping[str, Any]) -> bool:
    check = row.get("check")
    return isinstance(check, dict) and isinstance(check.get("kind"), str)
