"""Frozen dataclasses from JSON and back, strictly: a field that is unknown, missing or of another
type is refused by its name.

Knows the types that specs use: numbers, text, booleans, None, tuples, mappings, literals and
dataclasses. Knows no spec.
"""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Mapping
from typing import Any, Literal, TypeVar, Union, get_args, get_origin

from engine.errors import RequestError

T = TypeVar("T")


def write(value: Any) -> Any:
    """A dataclass as plain JSON values."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: write(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(key): write(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [write(item) for item in value]
    return value


def read(kind: type[T], value: Any, where: str) -> T:
    """A dataclass from JSON values; `where` names the place in messages. Raises RequestError
    `spec.field`."""
    if not isinstance(value, Mapping):
        raise refused(where, f"is {value!r:.60}; it must be an object")
    hints = typing.get_type_hints(kind)
    known = {f.name: f for f in dataclasses.fields(kind)}  # pyright: ignore[reportArgumentType]
    for name in value:
        if name not in known:
            raise refused(f"{where}.{name}", f"is no field; known are {', '.join(sorted(known))}")
    given: dict[str, Any] = {}
    for name, field in known.items():
        if name in value:
            given[name] = _value(hints[name], value[name], f"{where}.{name}")
        elif field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING:
            raise refused(f"{where}.{name}", "is missing")
    return kind(**given)


def refused(where: str, problem: str) -> RequestError:
    """What a wrong field raises."""
    return RequestError(
        "spec.field", f"{where} {problem}.", "Correct this field, or leave it out for the default."
    )


def _value(hint: Any, value: Any, where: str) -> Any:
    origin, args = get_origin(hint), get_args(hint)
    if hint is Any:
        return value
    if origin in (Union, types.UnionType):
        return _one_of(args, value, where)
    if origin is Literal:
        if value not in args:
            raise refused(where, f"is {value!r:.60}; known are {', '.join(map(str, args))}")
        return value
    if origin is tuple:
        return _tuple(args, value, where)
    if origin is not None and issubclass(origin, Mapping):
        if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
            raise refused(where, f"is {value!r:.60}; it must be an object")
        return {key: _value(args[1], item, f"{where}.{key}") for key, item in value.items()}
    if dataclasses.is_dataclass(hint):
        return read(hint, value, where)  # pyright: ignore[reportArgumentType]
    return _plain(hint, value, where)


def _one_of(args: tuple[Any, ...], value: Any, where: str) -> Any:
    if value is None and type(None) in args:
        return None
    for arg in args:
        if arg is not type(None):
            return _value(arg, value, where)
    raise refused(where, f"is {value!r:.60}")


def _tuple(args: tuple[Any, ...], value: Any, where: str) -> tuple[Any, ...]:
    if not isinstance(value, (list, tuple)):
        raise refused(where, f"is {value!r:.60}; it must be a list")
    if len(args) == 2 and args[1] is Ellipsis:
        return tuple(_value(args[0], item, f"{where}[{n}]") for n, item in enumerate(value))
    if len(value) != len(args):
        raise refused(where, f"has {len(value)} entries; it must have {len(args)}")
    pairs = zip(args, value, strict=True)
    return tuple(_value(arg, item, f"{where}[{n}]") for n, (arg, item) in enumerate(pairs))


def _plain(hint: Any, value: Any, where: str) -> Any:
    names = {int: "a whole number", float: "a number", str: "text", bool: "true or false"}
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if isinstance(value, bool) != (hint is bool) or not isinstance(value, hint):
        raise refused(where, f"is {value!r:.60}; it must be {names.get(hint, hint.__name__)}")
    if isinstance(value, float) and value != value:
        raise refused(where, "is not a number")
    return value
