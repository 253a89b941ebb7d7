"""What is written comes back equal; anything else is refused by the name of its field, never by its value."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from sluice.contract import codec
from sluice.contract.table_state import State
from sluice.errors import FormatTooNew, ManifestCorrupt

SECRET = "a value of a row"


@dataclass(frozen=True)
class Inner:
    number: int
    state: State = State.LIVE


@dataclass(frozen=True)
class Outer:
    name: str
    inner: Inner | None
    numbers: Sequence[int] = ()
    pairs: dict[int, tuple[str, int]] = field(default_factory=dict)
    parts: tuple[Inner, ...] = ()
    anything: dict[str, Any] = field(default_factory=dict)
    flag: bool = False


WHOLE = Outer("n", Inner(1), [1, 2], {7: ("a", 1)}, (Inner(2, State.STALE),), {"x": [1, "y", None]}, flag=True)


def test_a_value_comes_back_equal_whatever_the_order_of_its_mappings() -> None:
    encoded = codec.encode_versioned(WHOLE, 1)
    assert codec.decode_versioned(Outer, encoded, version=1, what="it") == WHOLE
    turned = Outer(**{**vars(WHOLE), "anything": dict(reversed(WHOLE.anything.items()))})
    assert codec.encode_versioned(turned, 1) == encoded
    assert encoded.isascii()


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"name": 5}, "Outer.name"),
        ({"name": None}, "Outer.name"),
        ({"inner": {"number": SECRET, "state": "live"}}, "Outer.inner: Inner.number"),
        ({"inner": {"number": True, "state": "live"}}, "Outer.inner: Inner.number"),
        ({"inner": {"number": 1}}, "Inner lacks state"),
        ({"inner": {"number": 1, "state": SECRET}}, "Inner.state"),
        ({"inner": {"number": 1, "state": "live", SECRET: 1}}, "a field too many"),
        ({"numbers": [1, SECRET]}, "Outer.numbers"),
        ({"numbers": {}}, "Outer.numbers"),
        ({"pairs": {SECRET: ["a", 1]}}, "Outer.pairs"),
        ({"pairs": {"7": ["a"]}}, "Outer.pairs"),
        ({"parts": [1]}, "Outer.parts"),
        ({"flag": 1}, "Outer.flag"),
    ],
)
def test_what_does_not_fit_is_refused_by_the_name_of_its_field(change: dict[str, Any], named: str) -> None:
    value = {**codec.to_json(WHOLE), "format_version": 1, **change}
    with pytest.raises(ManifestCorrupt, match=named) as raised:
        codec.decode_versioned(Outer, codec.encode(value), version=1, what="it")
    assert SECRET not in str(raised.value)


@pytest.mark.parametrize("version", [2, 0, -1, "1", None, True, 1.0, []])
def test_a_version_that_is_not_ours_stops_the_reader_and_one_that_is_no_number_is_damage(version: object) -> None:
    value = {**codec.to_json(WHOLE), "format_version": version}
    with pytest.raises(FormatTooNew if type(version) is int else ManifestCorrupt):
        codec.decode_versioned(Outer, codec.encode(value), version=1, what="it")


@pytest.mark.parametrize("data", [b"", b"[]", b"null", b"{}", b"[" * 1_000_000, b"\xff"])
def test_what_is_no_object_is_corrupt(data: bytes) -> None:
    with pytest.raises(ManifestCorrupt):
        codec.decode_versioned(Outer, data, version=1, what="it")
