"""From finished replies to what is learnt from them: verdicts, the fastest of a group, the floor of
reference answers, balance between skills.

Knows tasks, verdicts and token lists; the states themselves are `trainer.orl.states`' business.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from engine.errors import RequestError
from trainer.data.task import Task
from trainer.orl.peers import ALONE, Peers, put_together, share
from trainer.orl.recipe import Recipe
from trainer.orl.rollout import Reply
from trainer.orl.states import (
    Piece,
    Recorded,
    agreement_of,
    balance,
    fastest,
    reference_states,
    states_of,
)
from trainer.orl.student import Student
from trainer.verify.registry import Verifier


@dataclass(frozen=True, eq=False)
class Collected:
    """pieces: what this process learns from. totals: taught replies and all replies with states, of
    all processes. figures: of the whole rollout, see `collect`."""

    pieces: list[Piece]
    totals: tuple[int, int]
    figures: dict[str, float] = field(default_factory=dict)


def collect(
    student: Student,
    recipe: Recipe,
    verifier: Verifier,
    tasks: Sequence[Task],
    replies: Sequence[Reply],
    recorded: Recorded,
    peers: Peers = ALONE,
) -> Collected:
    """tasks: one a reply, `recipe.group` of the same in a row, of all processes; replies and
    recorded: of this one's share of them.

    Figures: those of `rollout_figures`, and how many replies and references teach.
    """
    own = share(len(tasks), peers.rank, peers.size, recipe.group)

    def judge() -> tuple[list[Reply], list[bool]]:
        texts = [student.text(reply.ids) for reply in replies]
        verdicts = verifier.check_many([tasks[n] for n in own], texts)
        return list(replies), [bool(verdict.ok) for verdict in verdicts]

    parts = peers.together(judge)
    replies = put_together([part for part, _ in parts], recipe.group)
    passed = put_together([part for _, part in parts], recipe.group)
    local = {n: row for row, n in enumerate(own)}
    pieces: list[Piece] = []
    skills: list[str] = []
    rng = np.random.default_rng(len(replies) + int(sum(reply.forwards for reply in replies)))
    allowed = math.floor(recipe.floor * len(replies))
    references = 0
    for first in range(0, len(replies), recipe.group):
        group = range(first, min(first + recipe.group, len(replies)))
        found: list[Piece] = []
        if first in local:
            shift = local[first] - first
            found = _of_group(student, recipe, group, replies, passed, recorded, shift)
        task = tasks[first]
        if references < allowed and not any(passed[n] for n in group) and task.reference:
            piece = _reference(student, task, rng)  # drawn everywhere: all draws stay the same
            if piece is not None:
                references += 1
                found += [piece] if first in local else []
        pieces += found
        skills += [task.skill] * len(found)
    mine = [(p.taught, bool(p.states), skill) for p, skill in zip(pieces, skills, strict=True)]
    everyone = [one for part in peers.together(lambda: mine) for one in part]
    if recipe.balanced:
        balance(pieces, skills, [skill for taught, _, skill in everyone if taught])
    with_states = [taught for taught, states, _ in everyone if states]
    taught = sum(taught for taught, _, _ in everyone) - references
    counts = {"taught": float(taught), "references": float(references)}
    figures = {**rollout_figures(replies, passed), **counts}
    return Collected(pieces, (sum(with_states), len(with_states)), figures)


def _of_group(
    student: Student,
    recipe: Recipe,
    group: range,
    replies: Sequence[Reply],
    passed: Sequence[bool],
    recorded: Recorded,
    shift: int,
) -> list[Piece]:
    """shift: from a reply's number to its row in `recorded`."""
    mask_id = student.spec.mask_token_id
    assert mask_id is not None
    teaches = [passed[n] for n in group]
    if recipe.fastest:
        teaches = fastest([replies[n].forwards for n in group], teaches)
    right = [n for n in group if passed[n]]
    answers = [np.array(replies[n].ids, dtype=np.int32) for n in right]
    pieces: list[Piece] = []
    seen: set[tuple[int, ...]] = set()
    for n, taught in zip(group, teaches, strict=True):
        if not taught and (passed[n] or not recipe.failed_anchor):
            continue
        reply = replies[n]
        if (key := (reply.forwards, *reply.ids)) in seen:
            continue  # the same reply at the same speed says nothing new
        seen.add(key)
        agreement = None
        if taught and recipe.agreement and len(answers) > 1:
            agreement = agreement_of(answers, right.index(n))
        prompt, tokens = len(reply.prompt), (*reply.prompt, *reply.ids)
        states = states_of(
            recorded, n + shift, prompt, len(tokens), mask_id, recipe.states_per_block, agreement
        )
        if states:
            pieces.append(Piece(np.array(tokens, dtype=np.int32), states, taught))
    return pieces


def _reference(student: Student, task: Task, rng: np.random.Generator) -> Piece | None:
    """A task's reference answer as a piece; None when it does not fit."""
    prompt, tokens = student.with_answer(task)
    mask_id, length = student.spec.mask_token_id, student.spec.block_length
    assert mask_id is not None
    if -(-len(tokens) // length) >= student.recipe.window:
        return None
    ids = np.array(tokens, dtype=np.int32)
    return Piece(ids, reference_states(ids, prompt, length, mask_id, rng))


def references_alone(
    student: Student, tasks: Sequence[Task], seed: tuple[int, ...], peers: Peers = ALONE
) -> Collected:
    """Every task's reference answer as a piece, this process's share of them. Raises RequestError
    `train.no_reference` without any that fits."""
    rng = np.random.default_rng((*seed, 2))
    pieces = [
        piece
        for task in tasks
        if task.reference and (piece := _reference(student, task, rng)) is not None
    ]
    if not pieces:
        raise RequestError(
            "train.no_reference",
            "None of these examples has a reference answer that fits the window.",
            "Give answers in the data, or train without teaching first.",
        )
    with_states = sum(bool(piece.states) for piece in pieces)
    own = share(len(pieces), peers.rank, peers.size)
    figures = {"references": float(len(pieces))}
    return Collected([pieces[n] for n in own], (with_states, with_states), figures)


def rollout_figures(replies: Sequence[Reply], passed: Sequence[bool]) -> dict[str, float]:
    """accuracy, tpf, share_of_ceiling, forwards and tokens (a reply's mean), verified_tpf."""
    count = max(1, len(replies))
    tokens = sum(len(reply.ids) for reply in replies)
    forwards = sum(reply.forwards for reply in replies)
    least = sum(reply.ceiling_forwards for reply in replies)
    right = [reply for reply, ok in zip(replies, passed, strict=True) if ok]
    return {
        "accuracy": sum(passed) / count,
        "tpf": tokens / max(1, forwards),
        "share_of_ceiling": least / max(1, forwards),
        "forwards": forwards / count,
        "tokens": tokens / count,
        "verified_tpf": sum(len(r.ids) for r in right) / max(1, sum(r.forwards for r in right)),
    }
