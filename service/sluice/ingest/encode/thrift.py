"""Thrift's compact protocol, as much of it as a Parquet footer needs: structs to trees and back.

Invariant: what `read` made of a struct, `write` turns into the same bytes again, fields that nobody
here knows included. The bytes come from our own Parquet writer; they are not checked against
malice. (Thrift: Compact protocol encoding.)
"""

import struct
from collections.abc import Iterator
from dataclasses import dataclass

TRUE, FALSE, BYTE, I16, I32, I64, DOUBLE, BINARY, LIST, SET, _MAP, STRUCT = range(1, 13)
"""Types of fields. In a list every boolean takes a byte."""
_LONG_LIST = 15
_SHORT_STEP = 15


@dataclass(slots=True)
class Items:
    """A list or set of elements of one type."""

    kind: int
    values: "list[Value]"


Struct = dict[int, "tuple[int, Value]"]
"""Field id to type and value."""
Value = bool | int | float | bytes | Items | Struct


def read(data: bytes) -> Struct:
    """The struct that `data` begins with."""
    return _Reader(data).struct()


def write(fields: Struct) -> bytes:
    """The struct as bytes. Fields are written in the order of their ids."""
    return b"".join(_struct(fields))


def structs(fields: Struct, number: int) -> list[Struct]:
    """The elements of field `number`, a list of structs."""
    return [one for one in _items(fields, number) if isinstance(one, dict)]


def elements(fields: Struct, number: int) -> list[bytes]:
    """The elements of field `number`, a list of texts."""
    return [one for one in _items(fields, number) if isinstance(one, bytes)]


def inner(fields: Struct, number: int) -> Struct:
    """Field `number`, a struct."""
    _, value = fields[number]
    assert isinstance(value, dict)
    return value


def number(fields: Struct, number: int) -> int:
    """Field `number`, an integer."""
    _, value = fields[number]
    assert isinstance(value, int)
    return value


def put_number(fields: Struct, number: int, value: int) -> None:
    """Replaces field `number`, an integer of 64 bits."""
    fields[number] = (I64, value)


def varint(number: int) -> bytes:
    """An unsigned number, seven bits a byte."""
    out = bytearray()
    while number >= 0x80:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def _items(fields: Struct, number: int) -> "list[Value]":
    _, value = fields[number]
    assert isinstance(value, Items)
    return value.values


class _Reader:
    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def struct(self) -> Struct:
        fields: Struct = {}
        number = 0
        while (head := self._byte()) != 0:
            step, kind = head >> 4, head & 15
            number = number + step if step else self._zigzag()
            fields[number] = (kind, kind == TRUE if kind in (TRUE, FALSE) else self._value(kind))
        return fields

    def _value(self, kind: int) -> Value:
        match kind:
            case 1 | 2:
                return self._byte() == TRUE
            case 3:
                return self._byte()
            case 4 | 5 | 6:
                return self._zigzag()
            case 7:
                (number,) = struct.unpack("<d", self._take(8))
                return float(number)
            case 8:
                return self._take(self._varint())
            case 9 | 10:
                head = self._byte()
                count = head >> 4
                if count == _LONG_LIST:
                    count = self._varint()
                return Items(head & 15, [self._value(head & 15) for _ in range(count)])
            case 12:
                return self.struct()
        raise AssertionError(f"a Parquet footer has no field of type {kind}")

    def _take(self, count: int) -> bytes:
        taken = self._data[self._at : self._at + count]
        self._at += count
        return taken

    def _byte(self) -> int:
        self._at += 1
        return self._data[self._at - 1]

    def _varint(self) -> int:
        number = shift = 0
        while True:
            byte = self._byte()
            number |= (byte & 0x7F) << shift
            if byte < 0x80:
                return number
            shift += 7

    def _zigzag(self) -> int:
        number = self._varint()
        return (number >> 1) ^ -(number & 1)


def _struct(fields: Struct) -> Iterator[bytes]:
    before = 0
    for number, (kind, value) in sorted(fields.items()):
        wire = kind if kind not in (TRUE, FALSE) else TRUE if value else FALSE
        step = number - before
        yield bytes([step << 4 | wire]) if step <= _SHORT_STEP else bytes([wire]) + _zigzag(number)
        if kind not in (TRUE, FALSE):
            yield from _value(kind, value)
        before = number
    yield b"\0"


def _value(kind: int, value: Value) -> Iterator[bytes]:
    match value:
        case bool():
            yield bytes([TRUE if value else FALSE])
        case int():
            yield bytes([value]) if kind == BYTE else _zigzag(value)
        case float():
            yield struct.pack("<d", value)
        case bytes():
            yield varint(len(value)) + value
        case Items():
            count = len(value.values)
            yield (
                bytes([count << 4 | value.kind])
                if count < _LONG_LIST
                else bytes([_LONG_LIST << 4 | value.kind]) + varint(count)
            )
            for one in value.values:
                yield from _value(value.kind, one)
        case dict():
            yield from _struct(value)


def _zigzag(number: int) -> bytes:
    return varint(number << 1 if number >= 0 else (-number << 1) - 1)
