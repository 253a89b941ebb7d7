"""Which columns a relation message names: the only reading that fits, or none."""

from dataclasses import replace

import pytest

from sluice.contract.catalog_facts import ColumnFacts, TableFacts
from sluice.contract.schema import TableSchema
from sluice.errors import UnsupportedChange
from sluice.protocol.messages import RelationColumn, RelationVersion
from sluice.tables.column_matching import Matched, match, match_again
from sluice.tables.schemas import build_schema, relation_of
from tests.support.source_facts import column, table

ROWS = 500
"""The transaction of the rows. The catalog's columns were made by an older one unless a test says otherwise."""
EARLIER, LATER = 400, 600
A = column("a", 1, type_oid=23, base_type_oid=23, in_primary_key=True, in_identity=True)


def catalog(*columns: ColumnFacts, ever: int) -> TableFacts:
    return table(*columns, attributes=ever)


def before(*columns: ColumnFacts, ever: int = 0) -> TableSchema:
    facts = catalog(*columns, ever=ever or max(one.attnum for one in columns))
    return build_schema(relation_of(facts), facts, None, 1)


def wire(*columns: str | tuple[str, int]) -> RelationVersion:
    named = [one if isinstance(one, tuple) else (one, 23 if one == "a" else 25) for one in columns]
    return RelationVersion(
        16400, "public", "t", "d", tuple(RelationColumn(name, kind, -1, identity=name == "a") for name, kind in named)
    )


def found(relation: RelationVersion, previous: TableSchema, facts: TableFacts | None) -> tuple[int, ...]:
    return match(relation, previous, facts, xid=ROWS).attnums


def b(attnum: int, **changes: object) -> ColumnFacts:
    return column("b", attnum, **changes)


C, N = column("c", 3), column("n", 3, type_oid=20, base_type_oid=20, xmin=LATER)
Z = column("z", 2, xmin=LATER)
AHEAD = catalog(A, b(2), column("c", 3, xmin=LATER), column("d", 4, xmin=LATER), ever=4)
SWAPPED = catalog(A, column("c", 2), column("b", 3), ever=3)
TWO, THREE = before(A, b(2)), before(A, b(2), C)
FOUND: dict[str, tuple[RelationVersion, TableSchema, TableFacts | None, tuple[int, ...]]] = {
    "any name of the one that must be there": (wire("a", "x"), TWO, catalog(A, Z, ever=2), (1, 2)),
    "what is not sent any more was dropped": (wire("a", "c"), THREE, catalog(A, C, ever=3), (1, 3)),
    "the same name behind another is new": (wire("a", "c", "b"), THREE, catalog(A, C, b(4), ever=4), (1, 3, 4)),
    "names that change places": (wire("a", "c", "b"), THREE, SWAPPED, (1, 2, 3)),
    "another type in a catalog that is ahead": (wire("a", ("n", 20)), TWO, catalog(A, N, ever=3), (1, 3)),
    "what the stream has not come to is left out": (wire("a", "b", "c"), TWO, AHEAD, (1, 2, 3)),
    "a table that is gone had the columns of before": (wire("a", "c"), THREE, None, (1, 3)),
}


@pytest.mark.parametrize("case", FOUND)
def test_columns_are_found_by_the_only_reading_that_fits(case: str) -> None:
    relation, previous, facts, expected = FOUND[case]
    assert found(relation, previous, facts) == expected


def test_a_column_that_came_and_went_is_known_as_such() -> None:
    passing = match(wire("a", "b", "g"), TWO, catalog(A, b(2), ever=3), xid=ROWS)
    assert passing == Matched((1, 2, 3), frozenset([3]))


def test_a_replaced_column_is_found_by_the_transaction_that_made_it() -> None:
    """It may be the old column under another name if what made the new one did not come before the rows."""
    previous = before(A, b(2))
    assert found(wire("a", "c"), previous, catalog(A, column("c", 3, xmin=EARLIER), ever=3)) == (1, 3)
    for xmin in (ROWS, LATER):
        with pytest.raises(UnsupportedChange, match="several ways"):
            found(wire("a", "c"), previous, catalog(A, column("c", 3, xmin=xmin), ever=3))


VARCHAR = 1043


def short(name: str, attnum: int, **changes: object) -> ColumnFacts:
    return column(name, attnum, type_oid=VARCHAR, base_type_oid=VARCHAR, typmod=13, base_typmod=13, **changes)


def test_a_column_that_is_gone_may_have_had_another_type_before_it_went() -> None:
    """In place, or by a rewrite that a new column with a constant default hides."""
    previous = before(A, short("b", 2))
    ahead = catalog(A, column("c", 3, xmin=LATER), ever=3)
    assert found(wire("a", "b"), previous, ahead) == (1, 2)
    with pytest.raises(UnsupportedChange, match="several ways"):
        found(wire("a", "b"), previous, catalog(A, b(3, xmin=LATER), ever=3))
    number = before(A, column("b", 2, type_oid=20, base_type_oid=20))
    with pytest.raises(UnsupportedChange, match="several ways"):
        found(wire("a", "b"), number, catalog(A, b(3, xmin=LATER, missing="d"), ever=3))


def test_a_new_column_that_has_another_type_today_is_not_taken_for_one_that_is_gone() -> None:
    with pytest.raises(UnsupportedChange, match="several ways"):
        found(_varchar("n"), before(A, short("b", 2)), catalog(A, column("n", 3, xmin=LATER), ever=3))
    with pytest.raises(UnsupportedChange, match="several ways"):
        found(_varchar("n"), before(A), catalog(A, column("n", 2, xmin=LATER), ever=2))


def _varchar(name: str) -> RelationVersion:
    relation = wire("a")
    return replace(relation, columns=(*relation.columns, RelationColumn(name, VARCHAR, 13, identity=False)))


def test_a_column_that_may_have_had_the_name_before_is_not_guessed_at() -> None:
    with pytest.raises(UnsupportedChange, match="several ways"):
        found(wire("a", "b"), before(A), catalog(A, b(3, xmin=LATER), ever=3))
    assert found(wire("a", "b"), before(A), catalog(A, b(3, xmin=EARLIER), ever=3)) == (1, 3)


def test_what_fits_nothing_is_refused() -> None:
    with pytest.raises(UnsupportedChange, match="no way"):
        found(wire("a", ("b", 20)), before(A, b(2)), catalog(A, b(2), ever=2))
    with pytest.raises(UnsupportedChange, match="no way"):
        found(wire("a", "b", "c"), before(A, b(2)), None)


def test_a_relation_that_looks_the_same_is_asked_for_columns_that_came_again() -> None:
    previous = before(A, b(2))
    assert match_again(wire("a", "b"), previous, catalog(A, b(2), ever=2), xid=ROWS) is None
    assert match_again(wire("a", "b"), previous, catalog(A, ever=2), xid=ROWS) is None
    assert match_again(wire("a", "b"), previous, catalog(A, column("z", 2), ever=2), xid=ROWS) is None
    again = match_again(wire("a", "b"), previous, catalog(A, b(3, xmin=EARLIER), ever=3), xid=ROWS)
    assert again == Matched((1, 3))
    for made_by in (ROWS, LATER):
        with pytest.raises(UnsupportedChange, match="several ways"):
            match_again(wire("a", "b"), previous, catalog(A, b(3, xmin=made_by), ever=3), xid=ROWS)


def test_a_new_column_is_there_by_the_number_of_its_transaction_only_if_a_command_said_so() -> None:
    """Transactions do not commit in the order of their numbers."""
    previous, again = before(A, b(2)), catalog(A, b(3, xmin=EARLIER), ever=3)
    other = catalog(A, column("c", 3, xmin=EARLIER), ever=3)
    assert match_again(wire("a", "b"), previous, again, xid=ROWS, said={3}) == Matched((1, 3))
    assert match(wire("a", "c"), previous, other, xid=ROWS, said={3}) == Matched((1, 3))
    with pytest.raises(UnsupportedChange, match="several ways"):
        match_again(wire("a", "b"), previous, again, xid=ROWS, said=set())
    with pytest.raises(UnsupportedChange, match="several ways"):
        match(wire("a", "c"), previous, other, xid=ROWS, said=set())


def test_a_column_that_a_command_wrote_may_have_had_a_name_that_nobody_knows() -> None:
    ahead = catalog(A, column("z", 3, xmin=LATER), ever=3)
    assert match_again(wire("a", "b"), TWO, ahead, xid=ROWS, said=set()) is None
    with pytest.raises(UnsupportedChange, match="several ways"):
        match_again(wire("a", "b"), TWO, ahead, xid=ROWS, said={3})
    gone = catalog(A, ever=3)
    assert match(wire("a", "c"), THREE, gone, xid=ROWS, said=set()) == Matched((1, 3))
    with pytest.raises(UnsupportedChange, match="several ways"):
        match(wire("a", "c"), THREE, gone, xid=ROWS, said={2})


def test_what_commands_say_of_the_table_above_says_nothing_of_a_partition() -> None:
    again = replace(catalog(A, b(3, xmin=EARLIER), ever=3), is_partition=True)
    assert match_again(wire("a", "b"), TWO, again, xid=ROWS, said=set()) == Matched((1, 3))


def test_transaction_numbers_wrap_around() -> None:
    facts = catalog(A, column("c", 3, xmin=2**32 - 5), ever=3)
    assert match(wire("a", "c"), before(A, b(2)), facts, xid=7).attnums == (1, 3)


def test_a_wide_table_is_matched_at_once() -> None:
    columns = [column(f"c{number}", number) for number in range(2, 1500)]
    previous = before(A, *columns)
    kept = [one for one in columns if one.attnum % 7]
    relation = wire("a", *(one.name for one in kept))
    assert found(relation, previous, catalog(A, *kept, ever=1500)) == (1, *(one.attnum for one in kept))
