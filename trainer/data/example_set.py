"""Writes the example set that is shipped with the app, to try the wizard with: small bills.

A skill the demo model lacks, with answers that can be checked and are long enough to be made
faster. Knows its own words and prices; every row follows from the seed.

    python -m trainer.data.example_set --out assets/examples/bills.jsonl
"""

from __future__ import annotations

import argparse
import json
import random
from pathlib import Path

ROWS, SEED = 400, 7
NUMBERS = ("one", "two", "three", "four", "five")
GOODS = (
    *(("apple", "apples"), ("book", "books"), ("cake", "cakes"), ("pen", "pens")),
    *(("ball", "balls"), ("hat", "hats"), ("cup", "cups"), ("lamp", "lamps")),
    *(("egg", "eggs"), ("box", "boxes"), ("coat", "coats"), ("map", "maps")),
    *(("pear", "pears"), ("bag", "bags"), ("key", "keys"), ("rope", "ropes")),
)
PHRASINGS = (
    "Write the bill: {order}.",
    "Please write a bill for {order}.",
    "I bought {order}. Write the bill.",
    "Make out the bill for {order}.",
    "What is the bill for {order}?",
    "A customer takes {order}. Write the bill.",
)


def row(rng: random.Random) -> dict[str, str]:
    """One order of two or three goods, and its bill: a line each, then the total."""
    goods = rng.sample(GOODS, rng.choice((2, 2, 3)))
    parts, lines, sums = [], [], []
    for one, many in goods:
        count, price = rng.randint(1, len(NUMBERS)), rng.randint(2, 9)
        name = one if count == 1 else many
        each = "" if count == 1 else " each"
        parts.append(f"{NUMBERS[count - 1]} {name} at {price}{each}")
        lines.append(f"{name}: {count} * {price} = {count * price}")
        sums.append(count * price)
    order = ", ".join(parts[:-1]) + " and " + parts[-1]
    total = " + ".join(map(str, sums))
    answer = "\n".join([*lines, f"total: {total} = {sum(sums)}"])
    return {"prompt": rng.choice(PHRASINGS).format(order=order), "answer": answer}


def rows(count: int = ROWS, seed: int = SEED) -> list[dict[str, str]]:
    """Rows with different prompts, the same for the same seed."""
    rng = random.Random(seed)
    found: dict[str, dict[str, str]] = {}
    while len(found) < count:
        drawn = row(rng)
        found.setdefault(drawn["prompt"], drawn)
    return list(found.values())


def text(count: int = ROWS, seed: int = SEED) -> str:
    """The file's content."""
    return "".join(json.dumps(drawn) + "\n" for drawn in rows(count, seed))


def main() -> None:
    parser = argparse.ArgumentParser(description="Write the shipped example set.")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--rows", type=int, default=ROWS)
    parser.add_argument("--seed", type=int, default=SEED)
    args = parser.parse_args()
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.write_text(text(args.rows, args.seed), encoding="utf-8", newline="\n")


if __name__ == "__main__":
    main()
