"""Skill `about`: a conversation about Unblur itself, with its terms and its figures.

Definitions come from `about_facts`; a greeting or a farewell is answered, and "in one sentence" is
obeyed. Figures (TPF, blocks, tokens per second, NVFP4 size, thresholds) are worked out.
"""

from __future__ import annotations

import random
from typing import Any

from trainer.data.skills.about_facts import (
    CLOSINGS,
    FACTS,
    GREETED,
    GREETINGS,
    QUESTIONS,
    REFUSAL,
    TALK,
)
from trainer.data.skills.base import Draft, Skill, Task, number, pick
from trainer.data.skills.words import CITIES, NAMES, NOUNS
from trainer.data.skills.working import product, quotient

Solution = tuple[str, dict[str, Any]]

UNKNOWN = "a request outside the skills"
_TERMS = tuple(FACTS)
_TALK = tuple(TALK)
_HELLOS = tuple(GREETINGS)
_BYES = tuple(CLOSINGS)


def _frame(rng: random.Random) -> tuple[str, str, str, str]:
    """(prompt opening, reply opening, prompt closing, reply closing)."""
    name = pick(rng, NAMES)
    hello = pick(rng, _HELLOS)
    bye = pick(rng, _BYES)
    return hello.format(name=name), GREETINGS[hello].format(name=name), bye, CLOSINGS[bye]


def _conversation(
    rng: random.Random, topics: list[str], source: dict[str, tuple[str, str]], fields: dict
) -> Draft:
    """A reply made of the sentences about each topic, framed as the prompt is."""
    opening, hello, closing, bye = _frame(rng)
    brief = rng.random() < 0.3
    short = " Answer in one sentence each." if brief else ""
    sentences = [" ".join(source[topic][: 1 if brief else 2]) for topic in topics]

    def solve() -> Solution:
        text = hello + "\n".join(sentences) + bye
        facts = [sentence for topic in topics for sentence in source[topic][: 1 if brief else 2]]
        frame = {"hello": hello.strip(), "bye": bye.strip()}
        return text, {"kind": "facts", "facts": facts, **frame}

    return Draft({**fields, "hello": opening, "bye": short + closing}, solve)


def _draw_terms(rng: random.Random) -> Draft:
    terms = rng.sample(_TERMS, number(rng, 2, 3))
    asked = ", ".join(terms[:-1]) + f" and {terms[-1]}"
    return _conversation(rng, terms, FACTS, {"terms": asked})


TERMS = (
    "{hello}What do these words mean: {terms}?{bye}",
    "{hello}Please explain {terms}.{bye}",
    "{hello}Tell me about {terms}.{bye}",
    "{hello}I read about {terms} in the app. What is that?{bye}",
    "{hello}In Unblur, what is meant by {terms}?{bye}",
)
TERMS_HELDOUT = ("{hello}Could you describe {terms} for a beginner?{bye}",)


def _draw_term(rng: random.Random) -> Draft:
    term = pick(rng, _TERMS)
    return _conversation(rng, [term], FACTS, {"term": term})


TERM = (
    "{hello}What is {term}?{bye}",
    "{hello}What does {term} mean?{bye}",
    "{hello}Explain {term}.{bye}",
    "{hello}Can you tell me what {term} is?{bye}",
)
TERM_HELDOUT = ("{hello}I do not understand {term}.{bye}",)


def _draw_talk(rng: random.Random) -> Draft:
    topics = rng.sample(_TALK, number(rng, 1, 2))
    return _conversation(rng, topics, TALK, {"talk": " ".join(topics)})


TALK_PHRASES = ("{hello}{talk}{bye}", "{hello}I am new here. {talk}{bye}")
TALK_HELDOUT = ("{hello}One more thing. {talk}{bye}",)


def _draw_unknown(rng: random.Random) -> Draft:
    """A request outside the skills: the reply says so."""
    question = pick(rng, QUESTIONS).format(city=pick(rng, CITIES), noun=pick(rng, NOUNS))
    return _conversation(rng, [UNKNOWN], {UNKNOWN: REFUSAL}, {"question": question})


def _draw_greeting(rng: random.Random) -> Draft:
    """A message that is only a greeting, thanks or a farewell, with or without a name."""
    word = pick(rng, tuple(GREETED))
    name = pick(rng, NAMES)
    ways = (("", ""), (f", I am {name}", f" {name}"), (f" from {name}", f" {name}"))
    said, called = pick(rng, ways)
    end = pick(rng, ("", "!", "."))

    def solve() -> Solution:
        hello = f"{GREETED[word]}{called}!"
        check = {"kind": "facts", "facts": [REFUSAL[1]], "hello": hello, "bye": ""}
        return f"{hello} {REFUSAL[1]}", check

    return Draft({"message": f"{word}{said}{end}"}, solve)


GREETING = ("{message}",)
GREETING_HELDOUT = ("Well, {message}",)
UNKNOWN_PHRASES = ("{hello}{question}{bye}", "{hello}I have a question. {question}{bye}")
UNKNOWN_HELDOUT = ("{hello}By the way: {question}{bye}",)


def _figure(rng: random.Random, fields: dict, lines: list[str], value: str) -> Draft:
    """A computed reply with its working; greeted like the others."""
    opening, hello, _, _ = _frame(rng)

    def solve() -> Solution:
        text = "\n".join([hello + lines[0], *lines[1:], f"Answer: {value}"])
        return text, {"kind": "text", "value": value}

    return Draft({**fields, "hello": opening}, solve)


def _draw_tpf(rng: random.Random) -> Draft:
    forwards, tpf = number(rng, 4, 32), number(rng, 2, 9)
    half = forwards % 2 == 0 and rng.random() < 0.4
    whole = forwards * tpf
    tokens = whole + (forwards // 2 if half else 0)
    lines = ["TPF is tokens divided by forwards.", f"{tokens} tokens / {forwards} forwards"]
    lines.append(f"{forwards} * {tpf} = {whole}, {tokens} - {whole} = {tokens - whole}")
    if half:
        lines.append(f"{tokens - whole} is half of {forwards}, so add 0.5")
    value = f"{tpf}.5" if half else str(tpf)
    return _figure(rng, {"t": tokens, "f": forwards}, lines, value)


TPF = (
    "{hello}A reply has {t} tokens in {f} forwards, what is its TPF?",
    "{hello}What is the TPF of {t} tokens in {f} forwards?",
    "{hello}My answer took {f} forward passes for {t} tokens. Which TPF is that?",
)
TPF_HELDOUT = ("{hello}Compute tokens per forward: {f} forwards, {t} tokens.",)


def _draw_blocks(rng: random.Random) -> Draft:
    tokens = number(rng, 20, 320)
    whole, rest = divmod(tokens, 32)
    lines = ["A block has 32 positions."]
    lines.append(f"32 * {whole} = {32 * whole}, {tokens} - {32 * whole} = {rest}")
    blocks = whole + int(rest > 0)
    if rest:
        lines.append(f"{rest} tokens are left for one more block: {whole} + 1 = {blocks}")
    else:
        lines.append(f"No token is left: {blocks} blocks")
    return _figure(rng, {"t": tokens}, lines, str(blocks))


BLOCKS = (
    "{hello}How many blocks does a reply of {t} tokens need?",
    "{hello}My text has {t} tokens. Into how many blocks does it fit?",
)
BLOCKS_HELDOUT = ("{hello}Count the blocks for {t} tokens.",)


def _draw_rate(rng: random.Random) -> Draft:
    seconds, rate = number(rng, 2, 9), number(rng, 11, 199)
    tokens = seconds * rate
    lines = ["Tok/s means tokens per second.", f"{tokens} tokens / {seconds} seconds"]
    return _figure(
        rng, {"t": tokens, "s": seconds}, lines + quotient(tokens, seconds), f"{rate} tok/s"
    )


RATE = (
    "{hello}A reply of {t} tokens took {s} seconds. How many tok/s is that?",
    "{hello}What speed in tok/s is {t} tokens in {s} seconds?",
)
RATE_HELDOUT = ("{hello}It wrote {t} tokens within {s} seconds. Give the tok/s.",)


def _draw_size(rng: random.Random) -> Draft:
    sixteenth = number(rng, 1, 60)
    millions = sixteenth * 16
    codes = millions // 2
    lines = ["Two weights share a byte and 16 weights share a scale byte."]
    lines += [f"{millions} / 2 = {codes}", f"{millions} / 16 = {sixteenth}"]
    lines.append(f"{codes} + {sixteenth} = {codes + sixteenth}")
    return _figure(rng, {"m": millions}, lines, f"{codes + sixteenth} MB")


SIZE = (
    "{hello}How many MB do {m} million weights take in NVFP4?",
    "{hello}What is the size in MB of {m} million NVFP4 weights?",
)
SIZE_HELDOUT = ("{hello}I store {m} million weights as NVFP4. How many MB is it?",)


def _draw_accept(rng: random.Random) -> Draft:
    confidence, threshold = number(rng, 40, 99), number(rng, 50, 98)
    accepted = confidence > threshold
    lines = ["A position is accepted when its confidence is greater than the threshold."]
    lines.append(f"0.{confidence} {'>' if accepted else '<='} 0.{threshold}")
    lines.append("It is accepted." if accepted else "It stays masked.")
    value = "yes" if accepted else "no"
    return _figure(rng, {"c": f"0.{confidence}", "t": f"0.{threshold}"}, lines, value)


ACCEPT = (
    "{hello}A masked position has confidence {c} and the threshold is {t}. Is it accepted?",
    "{hello}With threshold {t}, is a token of confidence {c} accepted?",
)
ACCEPT_HELDOUT = ("{hello}Confidence {c}, threshold {t}: does the position get its token?",)


def _draw_forwards(rng: random.Random) -> Draft:
    blocks, steps = number(rng, 2, 20), number(rng, 2, 29)
    total = steps + 1
    lines = [f"Each block takes {steps} steps and one commit: {steps} + 1 = {total}"]
    lines += product(total, blocks)
    return _figure(rng, {"b": blocks, "s": steps}, lines, f"{blocks * total} forwards")


FORWARDS = (
    "{hello}A reply has {b} blocks with {s} steps and one commit each. How many forwards is that?",
    "{hello}Count the forwards of {b} blocks when each takes {s} steps and one commit.",
)
FORWARDS_HELDOUT = ("{hello}If {b} blocks need {s} steps plus a commit each, give the forwards.",)

_FRAMES = 5 * len(NAMES)
_PAIRS = len(FACTS) * (len(FACTS) - 1) * (len(FACTS) - 1)

ABOUT = Skill(
    "about",
    (
        Task("terms", _draw_terms, TERMS, TERMS_HELDOUT, _PAIRS * _FRAMES, 3.0),
        Task("term", _draw_term, TERM, TERM_HELDOUT, len(FACTS) * _FRAMES * 4, 2.0),
        Task("talk", _draw_talk, TALK_PHRASES, TALK_HELDOUT, 64 * _FRAMES * 4, 1.0),
        Task("greeting", _draw_greeting, GREETING, GREETING_HELDOUT, 33 * 2 * len(NAMES), 0.5),
        Task("unknown", _draw_unknown, UNKNOWN_PHRASES, UNKNOWN_HELDOUT, len(CITIES) * 6 * _FRAMES),
        Task("tpf", _draw_tpf, TPF, TPF_HELDOUT, 29 * 8 * _FRAMES, 1.5),
        Task("blocks", _draw_blocks, BLOCKS, BLOCKS_HELDOUT, 301 * _FRAMES),
        Task("rate", _draw_rate, RATE, RATE_HELDOUT, 8 * 189 * _FRAMES),
        Task("size", _draw_size, SIZE, SIZE_HELDOUT, 60 * _FRAMES, 0.7),
        Task("accept", _draw_accept, ACCEPT, ACCEPT_HELDOUT, 60 * 49 * _FRAMES, 0.7),
        Task("forwards", _draw_forwards, FORWARDS, FORWARDS_HELDOUT, 19 * 28 * _FRAMES, 0.7),
    ),
    weight=0.8,
    varied=False,
)
