"""Hostile names on the whole path: each is carried to the byte or refused by name, and the tables
beside a refused one go on.
"""

import pytest

from sluice.contract import keys
from tests.e2e.mirror import Mirror
from tests.support.extent import FULL, cases
from tools.local.compare import read_lake, read_source

TABLES = (
    ("a/b", "../../x y.z"),
    ("public", ".."),
    ("public", 'it\'s "quoted" `twice`'),
    ("public", "back\\slash\tand\nline"),
    ("public", "ü" * 31),
    ("public", "n" * 63),
    ("public", " 🦆; DROP TABLE x -- "),
    ("public", "Items"),
    ("public", "items"),
    ("public", "a~2eb"),
    ("public", "a.b"),
    ("a", "b.c"),
    ("a.b", "c"),
    ("public", "_delta_log"),
    ("_delta_log", "t"),
)
"""No two of them may meet anywhere: neither on disk nor in a report."""
LEFT_OUT = ("back\\slash\tand\nline", "ü" * 31, "n" * 63, " 🦆; DROP TABLE x -- ", "a~2eb", "a.b", "t")
HERE = tuple(one for one in TABLES if FULL or one[1] not in LEFT_OUT)
ODD = ("odd", "odd_bag")
ODD_HERE = ODD if FULL else ODD[:1]

COLUMNS = (
    *(".", "..", ".x", "[0]", "a.b", "a[0]", "it's", 'quo"te', "`tick`", "back\\slash", "tab\tand\nline", " "),
    *("trailing ", "ü" * 31, "c" * 63, "é", "e\u0301", "🦆", "select", "NULL", "%s", "{}", "$1", ",", ";", "="),
    *("(", "struct<a:int>", "t", "s", "name", "text", "key", "value", "element", "file_path", "row_index"),
    *("_change_data", "_delta_log", "_partition", "id ", "~7e", "%2e", "*", "?", "#", "--", "/*"),
)
"""Of one table, all text; with a key, a date that is marked and a large value under names just as
odd.
"""
ID, DAY, LARGE = ".id", "[key].day", "'.b`i\\g\""

REFUSED = {
    "by_envelope": ('id int PRIMARY KEY, "_sluice_op" text', "_sluice_op"),
    "by_prefix": ('id int PRIMARY KEY, "_SLUICE_anything" text', "_SLUICE_anything"),
    "by_feed": ('id int PRIMARY KEY, "_change_type" text', "_change_type"),
    "by_merge": ('id int PRIMARY KEY, "_Row_Dropped_" text', "_Row_Dropped_"),
    "by_files": ('id int PRIMARY KEY, "_metadata" text', "_metadata"),
    "by_case": ('id int PRIMARY KEY, x int, "X" int', "'X'"),
    "by_accents": ('id int PRIMARY KEY, "é" int, "É" int', "'É'"),
    "by_long_s": ('id int PRIMARY KEY, s int, "\u017f" int', "'\u017f'"),
    "by_dotless_i": ('id int PRIMARY KEY, i int, "\u0131" int', "'\u0131'"),
}
"""By table: its columns, and the name that the refusal must say."""


def _quoted(*names: str) -> str:
    return ".".join('"' + name.replace('"', '""') + '"' for name in names)


def _odd(name: str, *, key: bool) -> str:
    columns = [f"{_quoted(column)} text" for column in COLUMNS]
    primary = [f"PRIMARY KEY ({_quoted(ID)}, {_quoted(DAY)})"] if key else []
    return (
        f"CREATE TABLE {name} "
        f"({', '.join([*columns, _quoted(ID) + ' int', _quoted(DAY) + ' date', _quoted(LARGE) + ' text', *primary])})"
    )


def _odd_row(name: str, number: int) -> str:
    values = ", ".join("'" + f"{number} {column}".replace("'", "''") + "'" for column in COLUMNS)
    return (
        f"INSERT INTO {name} VALUES ({values}, {number}, '{'infinity' if number % 2 else '2024-01-01'}', "
        f"repeat('{number}', 9000))"
    )


def _odd_changes(name: str) -> list[str]:
    key, day = _quoted(ID), _quoted(DAY)
    return [
        f"UPDATE {name} SET {_quoted('t')} = 'changed', {_quoted('.')} = NULL WHERE {key} = 1",
        f"UPDATE {name} SET {key} = 20, {_quoted('[0]')} = 'moved' WHERE {key} = 2",
        f"UPDATE {name} SET {day} = '-infinity' WHERE {key} = 3",
        f"DELETE FROM {name} WHERE {key} IN (4, 5)",
        _odd_row(name, 7),
    ]


@pytest.fixture(scope="module")
def story(mirror: Mirror) -> Mirror:
    mirror.execute(*(f"CREATE SCHEMA {_quoted(schema)}" for schema in ("a/b", "a", "a.b", "_delta_log", "_sluice")))
    mirror.execute("CREATE TABLE _sluice.messages (id int PRIMARY KEY)")
    for schema, table in HERE:
        mirror.execute(f"CREATE TABLE {_quoted(schema, table)} (id int PRIMARY KEY, v text)")
        mirror.execute(f"INSERT INTO {_quoted(schema, table)} VALUES (1, 'copied'), (2, 'copied')")
    for name in ODD_HERE:
        mirror.execute(
            _odd(name, key=name == "odd"), f"ALTER TABLE {name} ALTER COLUMN {_quoted(LARGE)} SET STORAGE EXTERNAL"
        )
        mirror.execute(*(_odd_row(name, number) for number in range(1, 7)))
    if "odd_bag" in ODD_HERE:
        mirror.execute("ALTER TABLE odd_bag REPLICA IDENTITY FULL")
    mirror.execute(*(f"CREATE TABLE {name} ({columns})" for name, (columns, _) in REFUSED.items()))
    mirror.execute(
        *(
            f"INSERT INTO {name} VALUES (1, NULL)"
            for name in ("by_envelope", "by_prefix", "by_feed", "by_merge", "by_files")
        )
    )
    mirror.follow()
    for number, (schema, table) in enumerate(HERE):
        name = _quoted(schema, table)
        mirror.transaction(
            f"UPDATE {name} SET v = 'of table {number}' WHERE id = 1",
            f"DELETE FROM {name} WHERE id = 2",
            f"INSERT INTO {name} VALUES (3, '')",
        )
    mirror.transaction(*(change for name in ODD_HERE for change in _odd_changes(name)))
    mirror.execute(*(f"INSERT INTO {name} (id) VALUES (2)" for name in REFUSED))
    mirror.follow()
    return mirror


@pytest.mark.parametrize(("schema", "table"), cases(TABLES, quick=HERE))
def test_a_table_of_any_name_is_carried(story: Mirror, schema: str, table: str) -> None:
    story.assert_equal(table, schema=schema)
    number = HERE.index((schema, table))
    assert sorted((row["id"], row["v"]) for row in story.rows(table, schema=schema)) == [
        (1, f"of table {number}"),
        (3, ""),
    ]


def test_no_name_leaves_the_lake_or_meets_another(story: Mirror) -> None:
    root = story.lake_path()
    found = {path.parent.relative_to(root).as_posix() for path in root.rglob("_delta_log")}
    assert found >= {keys.lake_path(schema, table) for schema, table in HERE}
    assert all(len(path.split("/")) == 2 for path in found)
    assert {path.name for path in root.parent.iterdir()} == {"followed", "followed-lake"}


def test_a_report_names_every_table_once(story: Mirror) -> None:
    live = [table for table in story.applied_rows() if table.state == "live"]
    assert len(live) == len(HERE) + len(ODD_HERE)
    complete = story.complete()
    assert len(complete.versions) == len(live)


@pytest.mark.parametrize("table", cases(ODD, quick=ODD_HERE))
def test_columns_of_any_name_are_carried_as_keys_old_values_marked_values_and_large_ones(
    story: Mirror, table: str
) -> None:
    story.assert_equal(table)
    rows = {row[ID]: row for row in story.rows(table)}
    assert sorted(rows) == [1, 3, 6, 7, 20]
    assert rows[20]["[0]"] == "moved"
    assert rows[3]["_sluice_special"] == {DAY: "-infinity"}
    assert {name for name in rows[6] if not name.startswith("_sluice")} == {*COLUMNS, ID, DAY, LARGE}
    assert all(rows[6][name] == f"6 {name}" for name in COLUMNS)


@pytest.mark.parametrize("table", REFUSED)
def test_a_table_that_cannot_be_carried_is_refused_by_name_and_others_go_on(story: Mirror, table: str) -> None:
    state = story.pipeline.table(f"public.{table}")
    assert state.state == "quarantined"
    assert REFUSED[table][1] in state.reason
    assert story.complete().left_out[f"public.{table}"] == "quarantined"


def test_a_source_table_never_takes_the_place_of_our_own(story: Mirror) -> None:
    state = story.pipeline.table("_sluice.messages")
    assert state.state == "quarantined"
    assert "_sluice" in state.reason


def test_the_comparison_reads_these_names_as_they_are(story: Mirror) -> None:
    """Else equal would mean nothing: the names come from the server and from Delta's own schema."""
    with story.database.connect() as connection:
        source, _ = read_source(connection, schema="public", table="odd")
    lake = read_lake(f"{story.lake_uri()}/{keys.lake_path('public', 'odd')}", source.columns)
    assert source.columns == lake.columns == (*COLUMNS, ID, DAY, LARGE)
