"""What makes a history faster changes no value, and ends with it."""

from collections.abc import Callable
from dataclasses import FrozenInstanceError, dataclass, field, replace
from typing import Any

import pytest

from sluice.contract.table_state import State
from sluice.manifest.values import PipelineState
from tests.simulation.quick_values import quick_values


@dataclass(frozen=True, slots=True)
class _Value:
    one: int
    two: tuple[int, ...] = (1, 2)
    three: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.one < 0:
            raise ValueError("negative")


@dataclass(frozen=True, slots=True)
class _More(_Value):
    four: State = State.LIVE


_MAKERS: list[Callable[[], Any]] = [
    lambda: _Value(1),
    lambda: _Value(1, three={"a": 1}),
    lambda: _More(1, (3,), four=State.STALE),
    lambda: replace(_More(1), one=2, four=State.GAP),
]


def test_values_that_are_made_quickly_are_equal_to_others() -> None:
    plain = [make() for make in _MAKERS]
    with quick_values(), quick_values():
        assert "__setattr__" not in vars(_More)
        quick = [make() for make in _MAKERS]
    assert quick == plain
    assert list(map(repr, quick)) == list(map(repr, plain))
    assert plain[0].three is not quick[0].three


def test_a_value_that_is_made_quickly_is_checked_like_others() -> None:
    with quick_values():
        with pytest.raises(ValueError, match="negative"):
            _Value(-1)
        with pytest.raises(ValueError, match="negative"):
            replace(_Value(1), one=-1)
        with pytest.raises(TypeError):
            replace(_Value(1), five=5)  # type: ignore[call-arg] # which is the point


def test_values_are_frozen_again_afterwards() -> None:
    before = PipelineState.__init__
    with quick_values():
        assert PipelineState.__init__ is not before
        value = _Value(1)
    assert PipelineState.__init__ is before
    with pytest.raises(FrozenInstanceError):
        value.one = 2  # type: ignore[misc] # which is the point
