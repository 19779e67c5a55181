"""Written-out arithmetic: every line follows from the prompt or from a line above it.

Knows how products, quotients, running sums and column sums are laid out in answers. Numbers are
non-negative integers unless said otherwise. Refuses to know which skill asks.
"""

from __future__ import annotations

from collections.abc import Sequence

PLACES = ("Ones", "Tens", "Hundreds", "Thousands", "Ten thousands")


def parts(number: int) -> list[int]:
    """The place parts of a number, largest first: 247 -> [200, 40, 7]; zeros are left out."""
    digits = str(number)
    size = len(digits)
    return [int(d) * 10 ** (size - 1 - i) for i, d in enumerate(digits) if d != "0"]


def running_sum(terms: Sequence[int]) -> list[str]:
    """`a + b = s`, `s + c = t`, ... for two or more terms."""
    lines = []
    total = terms[0]
    for term in terms[1:]:
        lines.append(f"{total} + {term} = {total + term}")
        total += term
    return lines


def row(a: int, b: int) -> str:
    """a times a number b with one non-zero digit, on one line: `17 * 20: 10 * 20 = 200, ...`."""
    pieces = parts(a)
    if len(pieces) == 1:
        return f"{a} * {b} = {a * b}"
    products = [piece * b for piece in pieces]
    steps = [f"{piece} * {b} = {product}" for piece, product in zip(pieces, products, strict=True)]
    return f"{a} * {b}: " + ", ".join(steps + running_sum(products))


def product(a: int, b: int) -> list[str]:
    """Lines that work out a * b by partial products; a, b >= 1. The last number is the product."""
    rows = parts(b)
    if len(rows) == 1:
        return [row(a, b)]
    split = " + ".join(f"{a} * {piece}" for piece in rows)
    lines = [f"{a} * {b} = {split}"]
    lines += [row(a, piece) for piece in rows]
    return lines + running_sum([a * piece for piece in rows])


def quotient(a: int, b: int) -> list[str]:
    """Lines that divide a by b (2..12), place by place from the largest; the rest ends the last.

    91 / 7 -> `7 * 10 = 70, 91 - 70 = 21`, `7 * 3 = 21, 21 - 21 = 0`, `10 + 3 = 13`.
    """
    lines = []
    rest = a
    found = parts(a // b)
    for piece in found:
        lines.append(f"{b} * {piece} = {b * piece}, {rest} - {b * piece} = {rest - b * piece}")
        rest -= b * piece
    return lines + running_sum(found)


def column_sum(a: int, b: int) -> list[str]:
    """Column addition, ones first, with every carry written down."""
    lines = []
    carry = 0
    for i in range(max(len(str(a)), len(str(b)))):
        x, y = a // 10**i % 10, b // 10**i % 10
        total = x + y + carry
        lines.append(
            f"{PLACES[i]}: {x} + {y} + {carry} = {total}, write {total % 10}, carry {total // 10}"
        )
        carry = total // 10
    return lines


def column_difference(a: int, b: int) -> list[str]:
    """Column subtraction of b from a >= b, ones first, with every borrow written down."""
    lines = []
    borrow = 0
    for i in range(len(str(a))):
        x, y = a // 10**i % 10, b // 10**i % 10
        if x - borrow < y:
            rest = 10 + x - y - borrow
            lines.append(f"{PLACES[i]}: 10 + {x} - {y} - {borrow} = {rest}, borrow 1")
            borrow = 1
        else:
            rest = x - y - borrow
            lines.append(f"{PLACES[i]}: {x} - {y} - {borrow} = {rest}, borrow 0")
            borrow = 0
    return lines
