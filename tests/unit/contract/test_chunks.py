"""Ranges of blocks: none twice, none left out, whatever was read before and however the table grew."""

import hypothesis.strategies as st
import pytest
from hypothesis import given

from sluice.contract.chunks import ENDLESS, BlockRange, is_complete, not_joinable, remaining, united
from tests.support.manifests import schema


@given(
    blocks=st.integers(0, 50),
    size=st.integers(1, 20),
    later=st.integers(0, 80),
    other_size=st.integers(1, 20),
    kept=st.sets(st.integers(0, 60)),
)
def test_what_is_left_and_what_was_read_are_every_block_once(
    blocks: int, size: int, later: int, other_size: int, kept: set[int]
) -> None:
    first = remaining(("1",), (), {"1": blocks}, size=size)
    done = united(one for place, one in enumerate(first) if place in kept)
    rest = remaining(("1",), done, {"1": later}, size=other_size)
    assert united((*done, *rest)) == (BlockRange("1", 0, ENDLESS),)
    assert all(one.end == ENDLESS or one.end - one.first <= max(size, other_size) for one in (*first, *rest))
    assert is_complete(("1",), done) == (not rest)


def test_a_table_is_complete_with_all_of_its_relations() -> None:
    whole = united([BlockRange("1", 0, ENDLESS)])
    assert is_complete(("1",), whole)
    assert not is_complete(("1", "2"), whole)
    assert remaining(("1", "2"), whole, {}, size=5) == (BlockRange("2", 0, ENDLESS),)


@pytest.mark.parametrize(
    "ranges",
    [
        (BlockRange("1", 0, 5), BlockRange("1", 4, 8)),
        (BlockRange("1", 0, ENDLESS), BlockRange("1", 7, 9)),
        (BlockRange("1", 5, 5),),
        (BlockRange("1", -1, 5),),
    ],
)
def test_a_block_in_two_ranges_and_a_range_of_none_are_refused(ranges: tuple[BlockRange, ...]) -> None:
    with pytest.raises(ValueError, match="block"):
        united(ranges)


def test_a_table_is_joined_only_where_every_change_of_every_row_is_sent_by_its_key() -> None:
    assert not not_joinable(schema(), publishes="iudt", origin="any")
    assert not_joinable(schema(), publishes="iu", origin="any")
    assert not_joinable(schema(), publishes="iudt", origin="none")
