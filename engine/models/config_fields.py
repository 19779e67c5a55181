"""Reads typed values out of a JSON config and words the refusal when one is missing or wrong.

Knows only the two file names it is given and what a number, a flag or a token id looks like. Knows
no family.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from engine.errors import CheckpointError

_PUBLISHED = "Use a checkpoint of the published architecture."
_ACTION = "Correct the file, or download the folder again."


class ConfigFields:
    """One JSON object with typed access. `file` is the name used in messages."""

    def __init__(self, values: Mapping[str, object], file: str) -> None:
        self.values = values
        self.file = file

    def get(self, name: str) -> object:
        """The raw value; None when absent or null."""
        return self.values.get(name)

    def refusal(self, code: str, name: str, problem: str, action: str = _ACTION) -> CheckpointError:
        """The error for field `name`: "config.json: name problem."."""
        return CheckpointError(
            code, f"{self.file}: {name} {problem}.", action, file=self.file, item=name
        )

    def integer(self, name: str, *, default: int | None = None, minimum: int) -> int:
        """A whole number >= minimum (a float with no fraction is accepted, a flag is not)."""
        value = self.get(name)
        if value is None:
            value = self._missing(name) if default is None else default
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int):
            raise self._wrong(name, "a whole number", value)
        if value < minimum:
            raise self._wrong(name, f"at least {minimum}", value)
        if value >= 2**53:  # beyond what any size here can be, and beyond exact JSON numbers
            raise self._wrong(name, "a size that fits this machine", value)
        return value

    def number(
        self,
        name: str,
        *,
        default: float | None = None,
        minimum: float | None = None,
        maximum: float | None = None,
        above: float | None = None,
    ) -> float:
        """A finite number within the bounds given (`above` is strict)."""
        value = self.get(name)
        if value is None:
            value = self._missing(name) if default is None else default
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self._wrong(name, "a number", value)
        try:
            value = float(value)
        except OverflowError:
            value = math.inf
        if not math.isfinite(value):
            raise self._wrong(name, "a finite number", value)
        if minimum is not None and value < minimum:
            raise self._wrong(name, f"at least {minimum:g}", value)
        if maximum is not None and value > maximum:
            raise self._wrong(name, f"at most {maximum:g}", value)
        if above is not None and value <= above:
            raise self._wrong(name, f"above {above:g}", value)
        return value

    def boolean(self, name: str, *, default: bool) -> bool:
        value = self.get(name)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self._wrong(name, "true or false", value)
        return value

    def optional_id(self, name: str, vocab_size: int) -> int | None:
        """A token id inside the vocabulary, or None when absent."""
        value = self.get(name)
        return None if value is None else self._token_id(name, value, vocab_size)

    def ids(self, name: str, vocab_size: int) -> tuple[int, ...]:
        """One id or a list of ids; () when absent."""
        value = self.get(name)
        if value is None:
            return ()
        items = value if isinstance(value, list) else [value]
        return tuple(self._token_id(name, item, vocab_size) for item in items)

    def _token_id(self, name: str, value: object, vocab_size: int) -> int:
        if isinstance(value, bool) or not isinstance(value, int):
            raise self._wrong(name, "a token id", value)
        if not 0 <= value < vocab_size:
            raise self.refusal(
                "checkpoint.id_outside_vocabulary",
                name,
                f"is {value}, outside the vocabulary of {vocab_size} (ids 0 to {vocab_size - 1})",
            )
        return value

    def _missing(self, name: str) -> int:
        raise self.refusal("checkpoint.config_missing", name, "is absent")

    def _wrong(self, name: str, wanted: str, value: object) -> CheckpointError:
        shown = repr(value)
        shown = shown if len(shown) <= 60 else shown[:57] + "..."
        return self.refusal("checkpoint.config_value", name, f"is {shown}; it must be {wanted}")


def refuse_unbuilt(c: ConfigFields, fixed: Mapping[str, tuple[object, ...]]) -> None:
    """Refuses every field of `fixed` whose value is none of those the engine's maths assumes. None
    stands for "absent or null"."""
    for name, allowed in fixed.items():
        value = c.get(name)
        # Compared with the type, since 1 == True in Python but not in a config file.
        if not any(value == item and type(value) is type(item) for item in allowed):
            raise c.refusal(
                "checkpoint.unsupported_value",
                name,
                f"is {value!r:.60}, which this engine does not compute",
                _PUBLISHED,
            )


def rope_fields(c: ConfigFields) -> ConfigFields:
    """Where the RoPE numbers are: flat in config.json, or in `rope_parameters` as newer exporters
    write them. Refuses any but the plain rotary embedding."""
    nested = c.get("rope_parameters")
    if nested is None:
        return c
    if not isinstance(nested, dict) or nested.get("rope_type", "default") != "default":
        raise c.refusal(
            "checkpoint.unsupported_value",
            "rope_parameters",
            f"is {nested!r:.60}; only the plain rotary embedding is computed",
            _PUBLISHED,
        )
    return ConfigFields({**c.values, **nested}, c.file)
