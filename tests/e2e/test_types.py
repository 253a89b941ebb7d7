"""Every built-in type with its extremes on the whole path: what the server prints is what the lake
holds, typed or marked, never NULL in its place.

Values arrive in all ways there are: in the snapshot, inserted, updated in the lake, updated before they
reach the lake, as old rows, and as keys.
"""

import struct
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from itertools import zip_longest
from typing import Any

import pytest

from tests.e2e.matrix import (
    DEFINITIONS,
    DOMAINS,
    HELD,
    MARKED,
    MARKED_DOMAINS,
    NO_VALUE_BY_SQL,
    TEXTS,
    held_arrays,
    odd_arrays,
)
from tests.e2e.mirror import Mirror
from tests.support.extent import FULL, slow

INITIAL, UPDATED, STREAMED, STREAMED_UPDATED, DELETED = 0, 1000, 2000, 3000, 4000
"""First ids of the rows that hold the matrix, by how they arrive. An update moves every column to
the next row's value.
"""


@dataclass(frozen=True)
class Column:
    """Row r of the matrix holds the r-th of `held` and `marked` together, NULL where there are no
    more.
    """

    name: str
    type_name: str
    held: tuple[str, ...]
    marked: tuple[str, ...] = ()

    def expression(self, row: int) -> str:
        values = (*self.held, *self.marked)
        return f"CAST({values[row]} AS {self.type_name})" if row < len(values) else "NULL"

    def is_marked(self, row: int) -> bool:
        return len(self.held) <= row < len(self.held) + len(self.marked)

    def is_null(self, row: int) -> bool:
        return row >= len(self.held) + len(self.marked)


@dataclass(frozen=True)
class Matrix:
    name: str
    columns: tuple[Column, ...]

    @property
    def height(self) -> int:
        """One more than the longest column has values, so that the last row is all NULL."""
        return max(len(column.held) + len(column.marked) for column in self.columns) + 1

    def row_of(self, row_id: int) -> int:
        """Which row of the matrix the row with this id holds in the end."""
        shift = 1 if row_id // 1000 * 1000 in (UPDATED, STREAMED_UPDATED) else 0
        return (row_id % 1000 + shift) % self.height

    def create(self) -> str:
        return (
            f"CREATE TABLE {self.name} (id int PRIMARY KEY, "
            f"{', '.join(f'{column.name} {column.type_name}' for column in self.columns)})"
        )

    def insert(self, first_id: int) -> list[str]:
        return [
            (
                f"INSERT INTO {self.name} VALUES ({first_id + row}, "
                f"{', '.join(column.expression(row) for column in self.columns)})"
            )
            for row in range(self.height)
        ]

    def update(self, first_id: int) -> str:
        names = ", ".join(column.name for column in self.columns)
        following = f"SELECT {names} FROM {self.name} v WHERE v.id = (t.id % 1000 + 1) % {self.height}"
        return f"UPDATE {self.name} t SET ({names}) = ({following}) WHERE id BETWEEN {first_id} AND {first_id + 999}"

    def delete(self, first_id: int) -> str:
        return f"DELETE FROM {self.name} WHERE id BETWEEN {first_id} AND {first_id + 999}"


def _columns(*groups: dict[str, tuple[tuple[str, ...], tuple[str, ...]]]) -> tuple[Column, ...]:
    types = [item for group in groups for item in group.items()]
    return tuple(
        Column(f"c{number}", type_name, held, marked) for number, (type_name, (held, marked)) in enumerate(types)
    )


def _with_marked(
    held: dict[str, tuple[str, ...]], marked: dict[str, tuple[str, ...]]
) -> dict[str, tuple[tuple[str, ...], tuple[str, ...]]]:
    return {type_name: (values, marked.get(type_name, ())) for type_name, values in held.items()}


def _casted(type_name: str, values: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(f"CAST({value} AS {type_name})" for value in values)


def _typed_arrays() -> dict[str, tuple[tuple[str, ...], tuple[str, ...]]]:
    """Lists of typed elements, or of the texts of numbers; whatever is not such a list is marked."""
    arrays = {}
    wide = {type_name: values for type_name, values in TEXTS.items() if type_name.startswith("numeric")}
    for type_name, values in {**HELD, **wide}.items():
        held = _casted(type_name, values)
        strange = tuple(f"ARRAY[{held[0]}, {value}]" for value in _casted(type_name, MARKED.get(type_name, ())))
        arrays[f"{type_name}[]"] = (held_arrays(type_name, held), (*odd_arrays(type_name, held[0]), *strange))
    return arrays


def _text_arrays() -> dict[str, tuple[tuple[str, ...], tuple[str, ...]]]:
    every = {
        **{name: values for name, values in TEXTS.items() if f"{name}[]" not in _typed_arrays()},
        "public.price": DOMAINS["public.price"],
    }
    return {
        f"{type_name}[]": (
            (
                *held_arrays(type_name, _casted(type_name, values)),
                *odd_arrays(type_name, _casted(type_name, values)[0]),
            ),
            (),
        )
        for type_name, values in every.items()
    }


TYPED = Matrix("typed", _columns(_with_marked(HELD, MARKED), _with_marked(DOMAINS, MARKED_DOMAINS)))
TEXT = Matrix("texts", _columns(_with_marked(TEXTS, {})))
ARRAYS = Matrix("arrays", _columns(_typed_arrays()))
TEXT_ARRAYS = Matrix("text_arrays", _columns(_text_arrays()))
MATRICES = (TYPED, TEXT, ARRAYS, TEXT_ARRAYS)

KEY_TYPES = (
    *("boolean", "smallint", "bigint", "oid", "real", "double precision", "numeric(12,2)", "numeric(38,20)"),
    *("date", "timestamp", "timestamptz", "bytea", "text", "varchar(20)", "char(8)", '"char"', "name"),
    *("numeric", "uuid", "jsonb", "interval", "timetz", "inet", "bit varying", "numrange", "public.mood"),
    *("public.price", "public.day", "integer[]", "text[]", "date[]"),
)
"""With one more, as many columns as an index can have."""


@dataclass(frozen=True)
class Keys:
    """A table whose primary key has a column of each kind, odd values included; row r is named by
    `r`, and each row changes in one column of its own.
    """

    columns: tuple[Column, ...]

    @staticmethod
    def build() -> "Keys":
        known = {column.type_name: column for matrix in MATRICES for column in matrix.columns}
        chosen = []
        for number, type_name in enumerate(KEY_TYPES):
            values = (*known[type_name].held, *known[type_name].marked)
            fitting = tuple(value for value in values if "repeat(" not in value)
            chosen.append(Column(f"k{number}", type_name, fitting))
        return Keys(tuple(chosen))

    def _value(self, column: Column, row: int) -> str:
        return column.expression(row % len(column.held))

    def create(self) -> str:
        listed = ", ".join(f"{column.name} {column.type_name}" for column in self.columns)
        return (
            f"CREATE TABLE keys (r int, v int, {listed}, PRIMARY KEY (r, "
            f"{', '.join(column.name for column in self.columns)}))"
        )

    def insert(self) -> list[str]:
        return [
            f"INSERT INTO keys VALUES ({row}, 0, {', '.join(self._value(column, row) for column in self.columns)})"
            for row in range(len(self.columns))
        ]

    def move(self) -> list[str]:
        return [
            f"UPDATE keys SET {column.name} = {self._value(column, row + 1)} WHERE r = {row}"
            for row, column in enumerate(self.columns)
        ]


KEYS = Keys.build()
BAG = tuple(
    Column(f"b{number}", column.type_name, ()) for number, column in enumerate((*TYPED.columns, *ARRAYS.columns))
)


def _bag() -> list[str]:
    """Every typed row twice, without a key: nothing but its values identifies it."""
    names = [f"t.{column.name} AS b{number}" for number, column in enumerate(TYPED.columns)]
    names += [f"a.{column.name} AS b{number}" for number, column in enumerate(ARRAYS.columns, len(TYPED.columns))]
    rows = (
        f"SELECT t.id AS r, {', '.join(names)} FROM typed t LEFT JOIN arrays a USING (id), "
        "generate_series(1, 2) WHERE t.id < 1000"
    )
    return [f"CREATE TABLE bag AS {rows}", "ALTER TABLE bag REPLICA IDENTITY FULL"]


def _bag_changes() -> list[str]:
    names = ", ".join(column.name for column in BAG)
    one = "ctid IN (SELECT min(ctid) FROM bag GROUP BY r HAVING r % 2 = {})"
    following = f"SELECT {names} FROM bag v WHERE v.r = t.r + 1 LIMIT 1"
    return [
        f"DELETE FROM bag WHERE {one.format(0)}",
        f"UPDATE bag t SET ({names}) = ({following}) WHERE {one.format(1)}",
    ]


@pytest.fixture(scope="module")
def story(mirror: Mirror) -> Mirror:
    mirror.execute(*DEFINITIONS, *(matrix.create() for matrix in MATRICES), KEYS.create())
    for matrix in MATRICES:
        mirror.transaction(*matrix.insert(INITIAL), *matrix.insert(UPDATED), *matrix.insert(DELETED))
    if FULL:
        mirror.execute(*_bag())
    mirror.transaction(*KEYS.insert())
    mirror.follow()
    for matrix in MATRICES:
        mirror.transaction(
            matrix.update(UPDATED), *matrix.insert(STREAMED), *matrix.insert(STREAMED_UPDATED), matrix.delete(DELETED)
        )
        mirror.transaction(matrix.update(STREAMED_UPDATED))
    if FULL:
        mirror.transaction(*_bag_changes())
    mirror.transaction(*KEYS.move())
    mirror.follow()
    mirror.transaction("UPDATE keys SET v = r", "DELETE FROM keys WHERE r % 2 = 0")
    mirror.follow()
    return mirror


def test_every_built_in_type_is_here(story: Mirror) -> None:
    (built_in,) = story.database.one("""
        SELECT array_agg(typname::text || suffix) FROM pg_type, unnest(ARRAY['', '[]']) AS suffix
        WHERE typnamespace = 'pg_catalog'::regnamespace AND typtype IN ('b', 'r', 'm')
          AND (typcategory <> 'A' OR typname IN ('int2vector', 'oidvector')) AND (suffix = '' OR typarray <> 0)""")
    (used,) = story.database.one("""
        SELECT array_agg(DISTINCT coalesce(e.typname || '[]', t.typname))
        FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid
        JOIN pg_type t ON t.oid = a.atttypid LEFT JOIN pg_type e ON e.typarray = t.oid
        WHERE c.relnamespace = 'public'::regnamespace AND a.attnum > 0""")
    assert {name for name in set(built_in) - set(used) if name.removesuffix("[]") not in NO_VALUE_BY_SQL} == set()


@pytest.mark.parametrize("matrix", MATRICES, ids=lambda matrix: matrix.name)
def test_every_value_read_inserted_or_updated_equals_the_servers_own_text(story: Mirror, matrix: Matrix) -> None:
    story.assert_equal(matrix.name)
    assert {row["id"] // 1000 * 1000 for row in story.rows(matrix.name)} == {
        INITIAL,
        UPDATED,
        STREAMED,
        STREAMED_UPDATED,
    }


@pytest.mark.parametrize("matrix", MATRICES, ids=lambda matrix: matrix.name)
def test_a_value_is_typed_unless_its_type_cannot_hold_it_and_marked_only_then(story: Mirror, matrix: Matrix) -> None:
    wrong = set()
    for row in story.rows(matrix.name):
        at, marks = matrix.row_of(row["id"]), row.get("_sluice_special") or {}
        for column in matrix.columns:
            if (column.name in marks) != column.is_marked(at) or (row[column.name] is None) != (
                column.is_marked(at) or column.is_null(at)
            ):
                wrong.add(f"{column.type_name} in row {at}")
    assert wrong == set()


@pytest.mark.parametrize("matrix", MATRICES, ids=lambda matrix: matrix.name)
def test_what_the_lake_keeps_as_text_is_that_text_to_the_byte(story: Mirror, matrix: Matrix) -> None:
    """Without the comparison's rendering in between: `format` at the server against the string,
    typed or marked.
    """
    names = [column.name for column in matrix.columns]
    expected = story.server_texts(matrix.name, names, key="id")
    wrong = set()
    compared = 0
    for row in story.rows(matrix.name):
        marks = row.get("_sluice_special") or {}
        for column, text in zip_longest(matrix.columns, expected[str(row["id"])]):
            found = marks.get(column.name, row[column.name])
            if isinstance(found, str):
                compared += 1
                if found != text:
                    wrong.add(column.type_name)
    assert wrong == set()
    assert compared > 100


def _typed(story: Mirror, type_name: str, row_id: int) -> Any:
    name = next(column.name for matrix in (TYPED, ARRAYS) for column in matrix.columns if column.type_name == type_name)
    table = ARRAYS.name if type_name.endswith("[]") else TYPED.name
    return next(row[name] for row in story.rows(table) if row["id"] == row_id)


def test_typed_values_are_these(story: Mirror) -> None:
    """Written by hand: an oracle that is neither the server's text nor ours."""
    expected: dict[tuple[str, int], Any] = {
        ("boolean", 0): True,
        ("smallint", 0): -32768,
        ("bigint", 2): 9007199254740993,
        ("oid", 0): 4294967295,
        ("numeric(12,2)", 1): Decimal("0.00"),
        ("numeric(12,2)", 2): Decimal("9999999999.99"),
        ("numeric(38,38)", 0): Decimal("0." + "9" * 38),
        ("numeric(3,-2)", 0): Decimal(12300),
        ("numeric(2,5)", 1): Decimal("-0.00099"),
        ("date", 0): date(1, 1, 1),
        ("date", 2): date(1582, 10, 4),
        ("timestamp", 1): datetime(9999, 12, 31, 23, 59, 59, 999999),  # noqa: DTZ001 - the type has no zone
        ("timestamptz", 3): datetime(1883, 11, 18, 17, 0, 0, tzinfo=UTC),
        ("bytea", 2): b"\x00\xff\x27\x5c\x0a",
        ("char(8)", 0): "pad     ",
        ("text", 7): "e\u0301",
        ("integer[]", 1): [-2147483648, 2147483647, 0, None, -2147483648],
        ("integer[]", 0): [],
    }
    here = [*HELD, "integer[]"]
    assert {type_name for type_name, _ in expected} - set(here) <= {"numeric(3,-2)", "numeric(2,5)"}, (
        "only 14 lacks them"
    )
    for (type_name, row_id), value in ((key, value) for key, value in expected.items() if key[0] in here):
        for group in (INITIAL, STREAMED):
            assert _typed(story, type_name, group + row_id) == value, type_name
    assert struct.pack("<d", _typed(story, "double precision", 4)) == struct.pack("<d", -0.0)
    assert struct.pack("<d", _typed(story, "double precision", 7)) == bytes([1, *[0] * 7])
    assert struct.pack("<f", _typed(story, "real", 7)) == bytes([1, *[0] * 3])


@slow
def test_old_rows_find_every_kind_of_value_even_when_nothing_else_tells_rows_apart(story: Mirror) -> None:
    story.assert_equal("bag")
    assert story.applied()["public.bag"].mode == "mirror of whole rows"


def test_keys_find_every_kind_of_value(story: Mirror) -> None:
    story.assert_equal("keys")
    assert story.values("keys", "r", "v") == [(row, row) for row in range(len(KEYS.columns)) if row % 2]
