"""Dataclasses as JSON: the one way in which anything of ours is written to an object and read back.

Invariants: equal values give equal bytes. A value is read back whole or not at all: a field that
is missing, one too many and one of the wrong type are all refused, and the message names the field
and never what it held.

A dataclass is an object of its fields, an enum its value, a tuple or a sequence an array, a mapping
an object whose keys are text (or numbers written as text). A class may write itself instead: it has
`to_json` and a static `from_json`, which raises `Malformed` (or any ValueError) for what it cannot
read.
"""

import json
import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from enum import Enum
from functools import cache
from typing import Any, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from sluice.errors import FormatTooNew, ManifestCorrupt

T = TypeVar("T")
_Read = Callable[[Any], Any]
_PLAIN = (str, int, bool, float)
_ENCODER = json.JSONEncoder(separators=(",", ":"), sort_keys=True, ensure_ascii=True)


class Malformed(ValueError):
    """JSON that does not spell the value asked for."""


def to_json(value: Any) -> Any:
    """`value` in the types that JSON has."""
    if value is None or type(value) in _PLAIN:  # most of what there is
        return value
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, _PLAIN):
        return value
    if hasattr(value, "to_json"):
        return value.to_json()
    if is_dataclass(value):
        return fields_to_json(value)
    if isinstance(value, Mapping):
        return {str(key): to_json(item) for key, item in value.items()}
    if set(map(type, value)) <= {int}:
        return list(value)
    return [to_json(item) for item in value]


def fields_to_json(value: Any) -> dict[str, Any]:
    """The fields of a dataclass: what most of `to_json` is when a class writes one of them itself."""
    kind: Any = type(value)
    return {name: to_json(getattr(value, name)) for name in _names(kind)}


@cache
def _names(kind: Any) -> tuple[str, ...]:
    return tuple(item.name for item in fields(kind))


def from_json(kind: type[T], value: Any) -> T:
    """The `kind` that `value` spells. Raises Malformed."""
    try:
        read: T = _reader(cast("Any", kind))(value)
    except Malformed:
        raise
    except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
        raise Malformed(f"{kind.__name__} is not of the expected form") from error
    return read


def fields_from_json(kind: type[T], value: Any) -> T:
    """The dataclass `kind` by its fields, even if it has a `from_json` of its own. Raises Malformed."""
    read: T = _fields_reader(cast("Any", kind))(value)
    return read


def encode(value: Any) -> bytes:
    """The canonical bytes of `value`, a dataclass or what JSON has."""
    return _ENCODER.encode(to_json(value)).encode()


def parse(data: bytes, what: str) -> dict[str, Any]:
    """The JSON object that `data` spells. Raises ManifestCorrupt, which names `what` was read."""
    try:
        value = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise ManifestCorrupt(f"{what} is not readable JSON") from error
    if not isinstance(value, dict):
        raise ManifestCorrupt(f"{what} is not a JSON object")
    return value


def encode_versioned(value: Any, version: int) -> bytes:
    """An object of its own: the fields of `value` and its format version."""
    return encode({"format_version": version, **fields_to_json(value)})


def decode_versioned(kind: type[T], data: bytes, *, version: int, what: str) -> T:
    """What `encode_versioned` wrote, in a version up to `version`. Raises ManifestCorrupt and
    FormatTooNew, which name `what` was read.
    """
    value = parse(data, what)
    check_version(value, version=version, what=what)
    del value["format_version"]
    try:
        return from_json(kind, value)
    except Malformed as error:
        raise ManifestCorrupt(f"{what} is damaged: {error}") from error


def check_version(value: dict[str, Any], *, version: int, what: str) -> None:
    """Raises ManifestCorrupt if the object states no format version or none that is a number,
    FormatTooNew if it is not one of up to `version`.
    """
    if "format_version" not in value:
        raise ManifestCorrupt(f"{what} lacks its format version")
    found = value["format_version"]
    if type(found) is not int:
        raise ManifestCorrupt(f"{what} states a format version that is no number")
    if not 1 <= found <= version:
        raise FormatTooNew(
            f"{what} has format version {str(found)[:40]}; this Sluice reads up to version {version}",
            hint="run the Sluice version that wrote it, or a newer one",
        )


@cache
def _reader(hint: Any) -> _Read:
    """How a value of the type `hint` is read, made once for each type."""
    origin, arguments = get_origin(hint), get_args(hint)
    if hint is Any or hint is object:
        return _as_it_is
    if origin in (Union, types.UnionType):
        return _optional(_reader(next(one for one in arguments if one is not type(None))))
    if origin is tuple and arguments[-1] is not Ellipsis:
        return _pair(tuple(map(_reader, arguments)))
    if origin is tuple:
        return _array(tuple, arguments[0])
    if origin in (list, Sequence):
        return _array(list, arguments[0])
    if origin in (dict, Mapping):
        return _mapping(*arguments)
    if hasattr(hint, "from_json"):
        written: _Read = hint.from_json
        return written
    if is_dataclass(hint):
        return _fields_reader(cast("Any", hint))
    if issubclass(hint, Enum):
        return _enum(hint)
    return _exactly(hint)


@cache
def _fields_reader(kind: Any) -> _Read:
    hints = get_type_hints(kind)
    readers = {item.name: _reader(hints[item.name]) for item in fields(kind)}

    def read(value: Any) -> Any:
        if not isinstance(value, dict):
            raise Malformed(f"{kind.__name__} is not an object")
        if value.keys() != readers.keys():
            lacking = sorted(readers.keys() - value.keys())
            raise Malformed(
                f"{kind.__name__} lacks {', '.join(lacking)}" if lacking else f"{kind.__name__} has a field too many"
            )
        found = {}
        for name, reader in readers.items():
            try:
                found[name] = reader(value[name])
            except Malformed as error:
                raise Malformed(f"{kind.__name__}.{name}: {error}") from error
            except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
                raise Malformed(f"{kind.__name__}.{name} is not of the expected form") from error
        return kind(**found)

    return read


def _as_it_is(value: Any) -> Any:
    return value


def _exactly(kind: type) -> _Read:
    def read(value: Any) -> Any:
        if type(value) is not kind:
            raise Malformed(f"not of type {kind.__name__}")
        return value

    return read


def _enum(kind: type[Enum]) -> _Read:
    def read(value: Any) -> Any:
        try:
            return kind(value)
        except ValueError as error:
            raise Malformed(f"not a {kind.__name__} that this Sluice has") from error

    return read


def _optional(inner: _Read) -> _Read:
    return lambda value: None if value is None else inner(value)


def _array(container: type, item: Any) -> _Read:
    inner = _reader(item)

    def read(value: Any) -> Any:
        if type(value) is not list:
            raise Malformed("not an array")
        if item in _PLAIN:  # commits come by the ten thousand: their numbers are checked in one go
            if not set(map(type, value)) <= {item}:
                raise Malformed(f"not an array of {item.__name__}")
            return container(value)
        return container(map(inner, value))

    return read


def _pair(inner: tuple[_Read, ...]) -> _Read:
    def read(value: Any) -> Any:
        if type(value) is not list or len(value) != len(inner):
            raise Malformed(f"not an array of {len(inner)}")
        return tuple(reader(item) for reader, item in zip(inner, value, strict=True))

    return read


def _mapping(key: Any, item: Any) -> _Read:
    inner = _reader(item)

    def read(value: Any) -> Any:
        if type(value) is not dict:
            raise Malformed("not an object")
        if key is str:
            return {name: inner(found) for name, found in value.items()}
        return {int(name): inner(found) for name, found in value.items()}

    return read
