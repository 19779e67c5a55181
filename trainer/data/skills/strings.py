"""Skill `strings`: letter by letter work on words in single quotes, and on short phrases.

The tokenizer spells text inside single quotes letter by letter, so a quoted word in the prompt, the
numbered letters of the working and the quoted answer are the same tokens.
"""

from __future__ import annotations

import random
from typing import Any

from trainer.data.skills.base import Draft, Skill, Task, number, pick
from trainer.data.skills.words import NOUNS, listed

Solution = tuple[str, dict[str, Any]]

VOWELS = "aeiou"
ALPHABET = "abcdefghijklmnopqrstuvwxyz"
_NOUNS = frozenset(NOUNS)
_STARTS = listed("b c d f g h j k l m n p r s t v w z br ch dr fl gr pl sh st th tr")
_MIDDLES = listed("a e i o u ai ea oo")
_ENDS = ("", "", "n", "r", "s", "t", "l", "m", "x", "ck", "nd")


def draw_word(rng: random.Random) -> str:
    """A made-up word of two or three syllables, or a noun of the list; 3 to 10 letters."""
    if rng.random() < 0.2:
        return pick(rng, NOUNS)
    word = ""
    for _ in range(2 if rng.random() < 0.7 else 3):
        word += pick(rng, _STARTS) + pick(rng, _MIDDLES) + pick(rng, _ENDS)
    return word[:10]


def typed(rng: random.Random, word: str) -> str:
    """A word as people type it: in single quotes; a noun also bare or in double quotes."""
    roll = rng.random() if word in _NOUNS else 1.0
    return word if roll < 0.25 else f'"{word}"' if roll < 0.4 else f"'{word}'"


def _text(lines: list[str], value: str) -> Solution:
    text = "\n".join([*lines, f"Answer: '{value}'"])
    return text, {"kind": "text", "value": value, "quoted": True}


def _count(lines: list[str], value: int) -> Solution:
    return "\n".join([*lines, f"Answer: {value}"]), {"kind": "number", "value": value}


def _draw_reverse(rng: random.Random) -> Draft:
    word = draw_word(rng)

    def solve() -> Solution:
        tags = [f"{i} '{letter}'" for i, letter in enumerate(word, 1)]
        lines = ["Letters: " + ", ".join(tags), "Backwards: " + ", ".join(tags[::-1])]
        return _text(lines, word[::-1])

    return Draft({"word": typed(rng, word)}, solve)


REVERSE = (
    "Reverse the word {word}.",
    "Spell {word} backwards.",
    "Write {word} from the last letter to the first.",
)
REVERSE_HELDOUT = ("What is {word} in reverse?",)


def _draw_upper(rng: random.Random) -> Draft:
    word = draw_word(rng)

    def solve() -> Solution:
        steps = ", ".join(f"'{letter}' -> '{letter.upper()}'" for letter in word)
        return _text([steps], word.upper())

    return Draft({"word": typed(rng, word)}, solve)


UPPER = (
    "Write {word} in capital letters.",
    "Turn {word} into upper case.",
    "Change every letter of {word} to a capital.",
)
UPPER_HELDOUT = ("Convert {word} to uppercase letters.",)


def _draw_count_letter(rng: random.Random) -> Draft:
    word = draw_word(rng)
    letter = pick(rng, word) if rng.random() < 0.8 else pick(rng, ALPHABET)

    def solve() -> Solution:
        count = 0
        lines = []
        for index, other in enumerate(word, 1):
            count += other == letter
            lines.append(f"{index} '{other}' {'yes' if other == letter else 'no'} {count}")
        return _count(lines, count)

    return Draft({"word": typed(rng, word), "letter": letter}, solve)


COUNT_LETTER = (
    "How many times does '{letter}' occur in {word}?",
    "Count the letter '{letter}' in {word}.",
    "How often is there a '{letter}' in the word {word}?",
)
COUNT_LETTER_HELDOUT = ("In {word}, what is the number of letters equal to '{letter}'?",)


def _draw_vowels(rng: random.Random) -> Draft:
    word = draw_word(rng)
    vowels = rng.random() < 0.6
    kind = "vowels" if vowels else "consonants"

    def solve() -> Solution:
        count = 0
        lines = []
        for index, letter in enumerate(word, 1):
            is_vowel = letter in VOWELS
            count += is_vowel == vowels
            name = "vowel" if is_vowel else "consonant"
            lines.append(f"{index} '{letter}' {name} {count}")
        return _count(lines, count)

    return Draft({"word": typed(rng, word), "kind": kind}, solve)


COUNT_VOWELS = (
    "How many {kind} are in {word}?",
    "Count the {kind} of the word {word}.",
)
COUNT_VOWELS_HELDOUT = ("Tell me the number of {kind} that {word} has.",)


def _draw_replace(rng: random.Random) -> Draft:
    word = draw_word(rng)
    old = pick(rng, word)
    new = pick(rng, ALPHABET)
    if old == new:
        return _draw_replace(rng)

    def solve() -> Solution:
        steps = ", ".join(f"'{c}' -> '{new if c == old else c}'" for c in word)
        return _text([steps], word.replace(old, new))

    return Draft({"word": typed(rng, word), "old": old, "new": new}, solve)


REPLACE = (
    "Replace every '{old}' with '{new}' in {word}.",
    "In the word {word}, change '{old}' to '{new}'.",
    "Take {word} and put '{new}' wherever there is '{old}'.",
)
REPLACE_HELDOUT = ("Swap each '{old}' of {word} for '{new}'.",)


def _draw_remove(rng: random.Random) -> Draft:
    word = draw_word(rng)
    if rng.random() < 0.5:
        gone, what = VOWELS, "all vowels"
    else:
        gone = pick(rng, word)
        what = f"every '{gone}'"
    rest = "".join(c for c in word if c not in gone)

    def solve() -> Solution:
        lines = []
        kept = 0
        for letter in word:
            kept += letter not in gone
            lines.append(f"'{letter}' out" if letter in gone else f"'{letter}' {kept} '{letter}'")
        return _text([", ".join(lines)], rest)

    return Draft({"word": typed(rng, word), "what": what}, solve)


REMOVE = (
    "Remove {what} from {word}.",
    "Write {word} but leave out {what}.",
    "Delete {what} in the word {word}.",
)
REMOVE_HELDOUT = ("Strip {what} out of {word}.",)


def _draw_initials(rng: random.Random) -> Draft:
    words = rng.sample(NOUNS, number(rng, 3, 7))
    last = rng.random() < 0.4

    def solve() -> Solution:
        chosen = [word[-1] if last else word[0] for word in words]
        rows = zip(words, chosen, strict=True)
        lines = [f"{word}: '{word}' {letter_tag} '{c}'" for word, c in rows]
        return _text(lines, "".join(chosen))

    letter_tag = "ends in" if last else "starts with"
    which = "last" if last else "first"
    return Draft({"words": " ".join(words), "which": which}, solve)


INITIALS = (
    "Join the {which} letters of these words: {words}",
    "Take the {which} letter of each word in {words} and write them together.",
    'What do the {which} letters of "{words}" spell?',
)
INITIALS_HELDOUT = ("Make a word from the {which} letters of {words}.",)


def _draw_length(rng: random.Random) -> Draft:
    word = draw_word(rng)

    def solve() -> Solution:
        tags = ", ".join(f"{i} '{letter}'" for i, letter in enumerate(word, 1))
        return _count([f"Letters: {tags}"], len(word))

    return Draft({"word": typed(rng, word)}, solve)


LENGTH = (
    "How many letters does {word} have?",
    "How long is the word {word}?",
    "Count the letters of {word}.",
)
LENGTH_HELDOUT = ("What is the length of {word}?",)


def _draw_nth(rng: random.Random) -> Draft:
    word = draw_word(rng)
    place = number(rng, 1, len(word))
    back = rng.random() < 0.3
    where = f"{place} from the end" if back else str(place)

    def solve() -> Solution:
        tags = [f"{i} '{letter}'" for i, letter in enumerate(word, 1)]
        lines = ["Letters: " + ", ".join(tags)]
        index = len(word) + 1 - place if back else place
        if back:
            lines.append(f"Position: {len(word)} + 1 - {place} = {index}")
        lines.append(f"Letter {tags[index - 1]}")
        return _text(lines, word[index - 1])

    return Draft({"word": typed(rng, word), "where": where}, solve)


NTH = (
    "Which letter is at position {where} in {word}?",
    "Give letter number {where} of {word}.",
)
NTH_HELDOUT = ("In {word}, name the letter standing at place {where}.",)


def _draw_shift(rng: random.Random) -> Draft:
    word = draw_word(rng)[:8]
    k = number(rng, 1, 3)
    moved = "".join(ALPHABET[(ALPHABET.index(c) + k) % 26] for c in word)

    def solve() -> Solution:
        steps = ", ".join(f"'{c}' -> '{m}'" for c, m in zip(word, moved, strict=True))
        return _text([steps], moved)

    return Draft({"word": typed(rng, word), "k": k, "plural": "" if k == 1 else "s"}, solve)


SHIFT = (
    "Shift every letter of {word} by {k} in the alphabet.",
    "Move each letter of {word} forward by {k} place{plural}.",
    "Encode {word} with a shift of {k}.",
)
SHIFT_HELDOUT = ("Apply a letter shift of {k} to the word {word}.",)


def _draw_word_order(rng: random.Random) -> Draft:
    words = rng.sample(NOUNS, number(rng, 4, 8))

    def solve() -> Solution:
        tags = [f"{i} {word}" for i, word in enumerate(words, 1)]
        lines = ["Words: " + ", ".join(tags), "Backwards: " + ", ".join(tags[::-1])]
        back = " ".join(words[::-1])
        text = "\n".join([*lines, f"Answer: {back}"])
        return text, {"kind": "text", "value": back}

    return Draft({"words": " ".join(words)}, solve)


WORD_ORDER = (
    "Reverse the order of the words: {words}",
    'Write the words of "{words}" in reverse order.',
)
WORD_ORDER_HELDOUT = ('Say the phrase "{words}" with its words back to front.',)

# Made-up words of two syllables that differ: start x middle x end, twice, before cutting to 10
# letters (two syllables have at most 8).
_MADE_UP = len(_STARTS) * len(_MIDDLES) * len(_STARTS) * len(_MIDDLES)
_PHRASES = len(NOUNS) * (len(NOUNS) - 1) * (len(NOUNS) - 2)

STRINGS = Skill(
    "strings",
    (
        Task("reverse", _draw_reverse, REVERSE, REVERSE_HELDOUT, _MADE_UP, 1.5),
        Task("upper", _draw_upper, UPPER, UPPER_HELDOUT, _MADE_UP),
        Task("count_letter", _draw_count_letter, COUNT_LETTER, COUNT_LETTER_HELDOUT, _MADE_UP),
        Task("count_vowels", _draw_vowels, COUNT_VOWELS, COUNT_VOWELS_HELDOUT, _MADE_UP),
        Task("replace", _draw_replace, REPLACE, REPLACE_HELDOUT, _MADE_UP * 25, 1.5),
        Task("remove", _draw_remove, REMOVE, REMOVE_HELDOUT, _MADE_UP, 1.5),
        Task("initials", _draw_initials, INITIALS, INITIALS_HELDOUT, _PHRASES),
        Task("length", _draw_length, LENGTH, LENGTH_HELDOUT, _MADE_UP, 0.7),
        Task("nth", _draw_nth, NTH, NTH_HELDOUT, _MADE_UP, 0.8),
        Task("shift", _draw_shift, SHIFT, SHIFT_HELDOUT, _MADE_UP),
        Task("word_order", _draw_word_order, WORD_ORDER, WORD_ORDER_HELDOUT, _PHRASES),
    ),
    weight=1.0,
)
