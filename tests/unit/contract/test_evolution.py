"""What the step between two schema versions means: every difference is named and can be done, or is refused by name."""

from collections.abc import Iterable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.contract.catalog_facts import TableFacts
from sluice.contract.evolution import (
    Added,
    Dropped,
    Identified,
    Keyed,
    Renamed,
    Retyped,
    Step,
    drops_old_values,
    identified_since,
    steps,
    text_after,
    unsent,
)
from sluice.contract.schema import ColumnSchema, TableSchema
from sluice.contract.types import lake_type
from sluice.errors import UnsupportedChange
from tests.support.source_facts import BODY, ID, column, table

INT2, INT4, INT8, FLOAT4, FLOAT8, NUMERIC = 21, 23, 20, 700, 701, 1700
TEXT, VARCHAR, DATE, TIMESTAMP, OID = 25, 1043, 1082, 1114, 26


def numeric(precision: int, scale: int) -> tuple[int, int]:
    return NUMERIC, 4 + (precision << 16) + (scale & 0x7FF)


def made(name: str, attnum: int, kind: int = TEXT, typmod: int = -1, **changes: object) -> ColumnSchema:
    known = ColumnSchema(name, attnum, kind, typmod, f"type {kind}", lake_type(kind, typmod))
    return replace(known, **changes)  # type: ignore[arg-type]


KEY = made("id", 1, INT4, key=True, identity=True)


def schema(*columns: ColumnSchema, version: int = 1, identity: str = "d", attributes: int = 0) -> TableSchema:
    return TableSchema("7", version, "public", "t", identity, (KEY, *columns), attributes)


def kinds(found: tuple[Step, ...]) -> list[type[Step]]:
    return [type(step) for step in found]


TYPES = [(TEXT, -1), (VARCHAR, 14), (VARCHAR, 24), (INT4, -1), numeric(10, 2), numeric(20, 2), (DATE, -1)]
NAMES = ("a", "b", "c", "d", "e")


@st.composite
def tables(draw: st.DrawFn) -> TableSchema:
    attnums = draw(st.lists(st.integers(2, 7), unique=True, max_size=5))
    names = draw(st.permutations(NAMES))
    columns = [
        made(name, attnum, *draw(st.sampled_from(TYPES)), missing=draw(st.sampled_from([None, "1"])))
        for name, attnum in zip(names, sorted(attnums), strict=False)
    ]
    identity = draw(st.sampled_from("df"))
    columns = [replace(one, identity=identity == "f") for one in columns]
    return schema(*columns, identity=identity)


def follow(old: TableSchema, found: Iterable[Step], new: TableSchema) -> TableSchema:
    """`old` after the steps to `new`: the columns that rows have then, in order."""
    columns = {column.attnum: column for column in old.columns}
    sent = {column.attnum: column.identity for column in new.columns}
    for step in found:
        match step:
            case Dropped():
                del columns[step.column.attnum]
            case Identified():
                old = replace(old, replica_identity=new.replica_identity)
                columns = {attnum: replace(one, identity=sent[attnum]) for attnum, one in columns.items()}
            case Keyed():
                key = {column.attnum for column in step.columns}
                columns = {attnum: replace(one, key=attnum in key) for attnum, one in columns.items()}
            case Added() | Renamed() | Retyped():
                columns[step.column.attnum] = step.column
    return replace(old, columns=tuple(columns[attnum] for attnum in sorted(columns)))


@given(tables(), tables())
def test_the_steps_applied_to_the_old_version_give_the_new_one(old: TableSchema, new: TableSchema) -> None:
    try:
        found = steps(old, new)
    except UnsupportedChange:
        return
    after = follow(old, found, new)
    assert after.replica_identity == new.replica_identity
    assert list(map(_seen, after.columns)) == list(map(_seen, new.columns))
    assert steps(new, replace(new, version=2)) == (), "of a column that stays as it is nothing is said"


def _seen(column: ColumnSchema) -> tuple[object, ...]:
    return column.attnum, column.name, column.lake, column.typmod, column.identity


def test_each_kind_of_step_is_recognised_by_the_attnum() -> None:
    a, b = made("a", 2), made("b", 3)
    assert kinds(steps(schema(a), schema(a, b))) == [Added]
    assert kinds(steps(schema(a, b), schema(b))) == [Dropped]
    assert kinds(steps(schema(a), schema(replace(a, name="z")))) == [Renamed]
    assert kinds(steps(schema(a, b), schema(replace(a, name="b"), replace(b, name="a")))) == [Renamed, Renamed]
    assert kinds(steps(schema(a, b), schema(b, replace(a, attnum=4)))) == [Dropped, Added]
    whole = schema(replace(a, identity=True), identity="f")
    assert kinds(steps(schema(a), whole)) == [Identified]
    renamed_key = replace(schema(), columns=(replace(KEY, name="number"),))
    assert kinds(steps(schema(), renamed_key)) == [Renamed]


Typed = tuple[int, int]
FOLLOWED: dict[Typed, list[Typed]] = {
    (VARCHAR, 14): [(VARCHAR, 24), (VARCHAR, -1), (TEXT, -1)],
    (TEXT, -1): [(VARCHAR, -1)],
    (TIMESTAMP, 3): [(TIMESTAMP, -1)],
    numeric(10, 2): [numeric(38, 2), numeric(12, 4)],
    numeric(5, -2): [numeric(7, 0)],
    (INT2, -1): [(INT4, -1), (INT8, -1)],
    (INT4, -1): [(INT8, -1)],
    (FLOAT4, -1): [(FLOAT8, -1)],
    (DATE, -1): [(TIMESTAMP, -1), (TIMESTAMP, 0)],
}
REFUSED: dict[Typed, list[Typed]] = {
    (VARCHAR, 24): [(VARCHAR, 14)],
    (TEXT, -1): [(VARCHAR, 14), (2950, -1)],
    (INT4, -1): [(OID, -1), (FLOAT8, -1)],
    (INT8, -1): [(INT4, -1)],
    (FLOAT8, -1): [(FLOAT4, -1)],
    (DATE, -1): [(1184, -1)],
    (TIMESTAMP, -1): [(DATE, -1), (TIMESTAMP, 3)],
    (1007, -1): [(1016, -1)],
    (869, -1): [(650, -1)],
    numeric(10, 2): [numeric(10, 3), numeric(8, 2), (NUMERIC, -1)],
    numeric(5, 0): [numeric(3, -2), numeric(9, -2)],
}


@pytest.mark.parametrize(("old", "new"), [(old, new) for old in FOLLOWED for new in FOLLOWED[old]])
def test_a_type_that_holds_all_values_of_the_one_before_is_followed(old: Typed, new: Typed) -> None:
    assert kinds(steps(schema(made("a", 2, *old)), schema(made("a", 2, *new)))) == [Retyped]


@pytest.mark.parametrize(("old", "new"), [(old, new) for old in REFUSED for new in REFUSED[old]])
def test_a_type_whose_values_may_read_otherwise_is_refused(old: Typed, new: Typed) -> None:
    with pytest.raises(UnsupportedChange, match="changed its type"):
        steps(schema(made("a", 2, *old)), schema(made("a", 2, *new)))


@pytest.mark.parametrize(
    ("what", "after"),
    [
        ("the key changed", schema(made("a", 2), made("b", 4, key=True))),
        ("case only", schema(made("a", 2), made("A", 3))),
        ("could not be matched|cannot be matched", schema(made("a", 0))),
        ("before it was published", schema(made("a", 2), made("hidden", 3))),
    ],
)
def test_any_other_change_is_refused_by_name(what: str, after: TableSchema) -> None:
    with pytest.raises(UnsupportedChange, match=what):
        steps(schema(made("a", 2), attributes=3), after)


def keyed(*names: str, version: int = 1, identity: str = "d") -> TableSchema:
    columns = tuple(
        replace(made(name, attnum), key=name in names, identity=identity == "f" or name in names)
        for attnum, name in enumerate(("id", "a", "b"), start=1)
    )
    return replace(schema(version=version, identity=identity, attributes=3), columns=columns)


def test_other_columns_that_identify_rows_are_a_step_when_older_rows_have_them() -> None:
    for old, new in ((("id",), ("a",)), (("id",), ("id", "b")), ((), ("b",)), (("a", "b"), ())):
        found = steps(keyed(*old), keyed(*new, version=2))
        assert [column.name for step in found if isinstance(step, Keyed) for column in step.columns] == list(new)
        assert kinds(found) == [Identified, Keyed]
        assert follow(keyed(*old), found, keyed(*new)).columns == keyed(*new).columns
    passing = replace(keyed("id"), columns=(*keyed("id").columns[:2], replace(made("b", 3), transient=True)))
    with pytest.raises(UnsupportedChange, match="the key changed: older rows hold values of its column b"):
        steps(passing, keyed("b"))


def test_changes_are_folded_together_only_while_they_name_their_rows_in_one_way() -> None:
    versions = [keyed("id"), keyed("id", identity="f"), keyed("a"), keyed(), keyed(identity="n"), keyed(identity="f")]
    schemas = {number: replace(one, version=number) for number, one in enumerate(versions, start=1)}
    assert [identified_since(schemas, number) for number in schemas] == [1, 1, 3, 4, 4, 6]


def test_a_changelog_keeps_the_columns_by_which_its_old_rows_are_known() -> None:
    assert drops_old_values(keyed("id"), keyed("a"))
    assert drops_old_values(keyed("id", "a"), keyed("a"))
    assert not drops_old_values(keyed("a"), keyed("id", "a"))
    assert not drops_old_values(keyed(), keyed("a"))
    whole, less = keyed("id", identity="f"), keyed("id")
    assert drops_old_values(whole, less)
    assert drops_old_values(keyed(identity="f"), keyed())
    assert not drops_old_values(less, whole)
    assert not drops_old_values(whole, replace(less, columns=less.identity_columns))


# What the catalog shows and the stream does not.

STORED = 16400


def hidden(column_schema: ColumnSchema, facts: TableFacts | None) -> str:
    return unsent([Added(column_schema)], facts, old_relfilenode=STORED)


def test_an_added_column_has_the_value_that_the_catalog_says_or_none() -> None:
    added = made("added", 3)
    assert hidden(replace(added, missing="x"), None) == ""
    assert hidden(added, table(ID, BODY, column("added", 3))) == ""
    assert "no longer says" in hidden(added, None)
    assert "no longer says" in hidden(added, table(ID, BODY))


@pytest.mark.parametrize(
    "facts",
    [
        table(ID, BODY, column("added", 3, has_default=True), relfilenode=16999),
        table(ID, BODY, column("added", 3), relfilenode=16999),
        table(ID, BODY, column("added", 3, has_default=True), relkind="p", relfilenode=5),
    ],
)
def test_values_that_came_with_a_rewrite_were_not_sent(facts: TableFacts) -> None:
    assert "rewritten when column added" in hidden(made("added", 3), facts)


@pytest.mark.parametrize(
    ("old", "new", "before", "after"),
    [
        (FLOAT4, FLOAT8, "0.1", "0.10000000149011612"),
        (FLOAT4, FLOAT8, "3.4028235e+38", "3.4028234663852886e+38"),
        (DATE, TIMESTAMP, "2020-02-29", "2020-02-29 00:00:00"),
        (DATE, TIMESTAMP, "0044-03-15 BC", "0044-03-15 00:00:00 BC"),
        (DATE, TIMESTAMP, "10000-01-01", "10000-01-01 00:00:00"),
        (DATE, TIMESTAMP, "-infinity", "-infinity"),
        (INT2, INT8, "-5", "-5"),
    ],
)
def test_a_value_that_was_kept_as_text_is_what_the_server_writes_in_the_wider_type(
    old: int, new: int, before: str, after: str
) -> None:
    assert text_after(Retyped(made("a", 2, new), made("a", 2, old)), before) == after
