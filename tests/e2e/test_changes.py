"""Changes of rows on the whole path: values that were not sent, keys that move, TRUNCATE, and every
replica identity.

One story in three windows. Each claim is looked at twice: in the lake that followed window by
window, and in the one rebuilt from the spool, where the whole story of a table is a single window.
"""

import pytest

from tests.e2e.mirror import FOLLOWED, LAKES, Mirror, transactions, without
from tests.support.extent import FULL, cases

LARGE = ("body", "raw", "ints", "grid", "days", "doc", "wide")
"""Stored out of line, so that an update of another column does not send them. `grid` and `days`
hold what an array column cannot: they are marked.
"""

FUNCTIONS = (
    (
        "CREATE FUNCTION big(seed text) RETURNS text IMMUTABLE RETURN (SELECT string_agg(md5(seed || i), "
        "'') FROM generate_series(1, 150) i)"
    ),
    (
        "CREATE FUNCTION number(seed text, i int) RETURNS int IMMUTABLE RETURN ('x' || substr(md5(seed "
        "|| i), 1, 7))::bit(28)::int"
    ),
    (
        "CREATE FUNCTION numbers(seed text) RETURNS int[] IMMUTABLE RETURN ARRAY(SELECT number(seed, i) "
        "FROM generate_series(1, 1500) i)"
    ),
    """CREATE FUNCTION days(seed text) RETURNS date[] IMMUTABLE
    RETURN ARRAY(SELECT '2000-01-01'::date + number(seed, i) % 9999 FROM generate_series(1, 1500) i)
    || 'infinity'::date""",
    """CREATE FUNCTION digits(seed text) RETURNS numeric IMMUTABLE
    RETURN (SELECT string_agg(lpad((number(seed, i) % 10000)::text, 4, '7'), '')::numeric
    FROM generate_series(1, 1500) i)""",
)

_TOAST = (
    (
        "CREATE TABLE {0} (id int PRIMARY KEY, n int, body text, raw bytea, ints int[], grid int[], days "
        "date[], doc jsonb, wide numeric)"
    ),
    *(f"ALTER TABLE {{0}} ALTER COLUMN {column} SET STORAGE EXTERNAL" for column in LARGE),
)


def _large(seed: str) -> str:
    at = f"'{seed}'"
    return (
        f"big({at}), big({at})::bytea, numbers({at}), ARRAY[numbers({at}), numbers({at} || 'b')], "
        f"days({at}), to_jsonb(big({at})), digits({at})"
    )


def _toast_row(table: str, key: int, *, seed: str = "") -> str:
    return f"INSERT INTO {table} VALUES ({key}, 0, {_large(seed or str(key))})"


TOAST_TABLES = ("toast", "toast_full", "toast_cut")

TABLES = (
    *FUNCTIONS,
    *(statement.format(table) for table in TOAST_TABLES for statement in _TOAST),
    "ALTER TABLE toast_full REPLICA IDENTITY FULL",
    "CREATE TABLE keys (k int PRIMARY KEY, v text)",
    "CREATE TABLE pairs (v text, a int, b text, PRIMARY KEY (b, a))",
    "CREATE TABLE deferred (k int PRIMARY KEY DEFERRABLE INITIALLY DEFERRED, v text)",
    "ALTER TABLE deferred REPLICA IDENTITY FULL",
    "CREATE TABLE cut (id int PRIMARY KEY, v text)",
    "CREATE TABLE cut_other (id int PRIMARY KEY, v text)",
    "CREATE TABLE cut_bag (v text)",
    "ALTER TABLE cut_bag REPLICA IDENTITY FULL",
    "CREATE TABLE cut_log (v text)",
    "CREATE TABLE emptied (id int PRIMARY KEY)",
    (
        "CREATE TABLE by_index (id int PRIMARY KEY, code text NOT NULL, region int NOT NULL, v text, "
        "CONSTRAINT by_code UNIQUE (region, code))"
    ),
    "ALTER TABLE by_index REPLICA IDENTITY USING INDEX by_code",
    "CREATE TABLE by_whole_row (id int PRIMARY KEY, v text, body text)",
    "ALTER TABLE by_whole_row REPLICA IDENTITY FULL",
    "CREATE TABLE bag (a int, b text, f float8, d date, body text)",
    "ALTER TABLE bag REPLICA IDENTITY FULL",
    "ALTER TABLE bag ALTER COLUMN body SET STORAGE EXTERNAL",
    "CREATE TABLE without_identity (v text)",
    "CREATE TABLE identity_nothing (v text)",
    "ALTER TABLE identity_nothing REPLICA IDENTITY NOTHING",
    "CREATE TABLE key_but_nothing (id int PRIMARY KEY, v text)",
    "ALTER TABLE key_but_nothing REPLICA IDENTITY NOTHING",
)

INITIAL = (
    *(_toast_row(table, key) for table in ("toast", "toast_full") for key in range(1, 13)),
    *(_toast_row("toast_cut", key) for key in (1, 2)),
    "INSERT INTO keys SELECT i, 'row ' || i FROM generate_series(1, 30) i",
    "INSERT INTO pairs SELECT a || b, a, b FROM generate_series(1, 3) a, unnest(ARRAY['x', 'X', 'x ', '']) b",
    "INSERT INTO deferred SELECT i, 'row ' || i FROM generate_series(1, 6) i",
    "INSERT INTO cut VALUES (1, 'old'), (2, 'old'), (3, 'old')",
    "INSERT INTO cut_other VALUES (1, 'old')",
    "INSERT INTO cut_bag VALUES ('old'), ('old')",
    "INSERT INTO cut_log VALUES ('old')",
    "INSERT INTO emptied VALUES (1), (2)",
    "INSERT INTO by_index SELECT i, 'c' || i % 3, i / 3, 'v' FROM generate_series(0, 8) i",
    "INSERT INTO by_whole_row SELECT i, 'v', big(i::text) FROM generate_series(1, 4) i",
    "INSERT INTO bag SELECT 1, 'x', 'NaN', 'infinity', NULL FROM generate_series(1, 4)",
    "INSERT INTO bag VALUES (1, 'x', '-0', NULL, NULL), (1, 'x', '0', NULL, NULL), (2, '', 1, '2024-01-01', big('b'))",
    "INSERT INTO bag VALUES (NULL, NULL, NULL, NULL, NULL), (NULL, NULL, NULL, NULL, NULL)",
    "INSERT INTO without_identity VALUES ('same'), ('same'), (NULL)",
    "INSERT INTO identity_nothing VALUES ('first')",
    "INSERT INTO key_but_nothing VALUES (1, 'one')",
)


def _toast_first(table: str) -> list[list[str]]:
    """Transactions of the first window, by the shape each key goes through."""
    touch = f"UPDATE {table} SET n = n + 1 WHERE id = "
    return [
        [touch + "1"],
        [touch + "2", touch + "2"],
        [touch + "2"],
        [touch + "3"],
        [f"UPDATE {table} SET ({', '.join(LARGE)}) = ROW({_large('new 3')}) WHERE id = 3", touch + "3"],
        [
            touch + "4",
            f"UPDATE {table} SET ({', '.join(LARGE)}) = ROW({', '.join(['NULL'] * len(LARGE))}) WHERE id = 4",
        ],
        [f"UPDATE {table} SET body = NULL, grid = NULL, wide = NULL WHERE id = 5"],
        [touch + "5"],
        [f"UPDATE {table} SET id = 106 WHERE id = 6"],
        [f"UPDATE {table} SET id = 107 WHERE id = 7", touch + "107"],
        [f"UPDATE {table} SET id = 207 WHERE id = 107"],
        [touch + "8", f"DELETE FROM {table} WHERE id = 8"],
        [
            touch + "9",
            f"UPDATE {table} SET id = 109 WHERE id = 9",
            f"UPDATE {table} SET body = big('new 9'), days = days('new 9') WHERE id = 109",
        ],
        _swap(table, "id", 10, 11),
        [touch + "12", f"DELETE FROM {table} WHERE id = 12", _toast_row(table, 12, seed="again"), touch + "12"],
        [_toast_row(table, 13), touch + "13"],
        [_toast_row(table, 14)],
        [touch + "14"],
        [_toast_row(table, 15), f"UPDATE {table} SET id = 115 WHERE id = 15"],
        ["SAVEPOINT s", touch + "1", f"UPDATE {table} SET body = 'undone' WHERE id = 2", "ROLLBACK TO s", touch + "2"],
    ]


def _toast_second(table: str) -> list[list[str]]:
    """The next window: everything large is in the lake only."""
    return [
        [f"UPDATE {table} SET n = n + 1"],
        [f"UPDATE {table} SET id = 6 WHERE id = 106"],
        [
            f"UPDATE {table} SET body = big('back') WHERE id = 4",
            f"UPDATE {table} SET body = NULL WHERE id = 4",
            f"UPDATE {table} SET n = 7 WHERE id = 4",
        ],
        [f"UPDATE {table} SET grid = numbers('flat'), ints = ARRAY[ints, ints], days = days[1:10] WHERE id = 1"],
        [f"UPDATE {table} SET id = 13 - id + 100 WHERE id = 13", f"UPDATE {table} SET n = 99 WHERE id = 100"],
    ]


def _swap(table: str, key: str, one: int, other: int) -> list[str]:
    moves = ((one, -1), (other, one), (-1, other))
    return [f"UPDATE {table} SET {key} = {new} WHERE {key} = {old}" for old, new in moves]


KEYS = transactions("""
    UPDATE keys SET k = -1 WHERE k = 1;
    UPDATE keys SET k = 1 WHERE k = 2;
    UPDATE keys SET k = 2 WHERE k = -1
    UPDATE keys SET k = 103 WHERE k = 3;
    UPDATE keys SET k = 104 WHERE k = 4;
    UPDATE keys SET k = 105 WHERE k = 5
    UPDATE keys SET k = 200 WHERE k = 6;
    UPDATE keys SET k = 6 WHERE k = 7;
    UPDATE keys SET k = 7 WHERE k = 8;
    UPDATE keys SET k = 8 WHERE k = 200
    DELETE FROM keys WHERE k = 9;
    INSERT INTO keys VALUES (9, 'again')
    DELETE FROM keys WHERE k = 10
    INSERT INTO keys VALUES (10, 'later')
    DELETE FROM keys WHERE k = 11;
    UPDATE keys SET k = 11 WHERE k = 12
    UPDATE keys SET k = 300 WHERE k = 13;
    INSERT INTO keys VALUES (13, 'new');
    UPDATE keys SET v = 'moved' WHERE k = 300
    INSERT INTO keys VALUES (400, 'never');
    DELETE FROM keys WHERE k = 400
    INSERT INTO keys VALUES (401, 'moves');
    UPDATE keys SET k = 402 WHERE k = 401;
    DELETE FROM keys WHERE k = 402
    UPDATE keys SET k = 500 WHERE k = 14;
    DELETE FROM keys WHERE k = 500;
    INSERT INTO keys VALUES (14, 'third');
    UPDATE keys SET k = 500 WHERE k = 14
    UPDATE keys SET k = k + 1000 WHERE k BETWEEN 20 AND 30
    UPDATE keys SET k = k - 1000, v = v || ' back' WHERE k BETWEEN 1020 AND 1025
""")
PAIRS = transactions("""
    UPDATE pairs SET b = 'moved' WHERE a = 1 AND b = 'x';
    UPDATE pairs SET b = 'x' WHERE a = 1 AND b = 'X'
    UPDATE pairs SET a = -a WHERE b = 'x '
    UPDATE pairs SET a = 9, b = 'both', v = 'changed' WHERE a = 2 AND b = ''
    DELETE FROM pairs WHERE a = 3 AND b = 'x';
    INSERT INTO pairs VALUES ('again', 3, 'x')
    DELETE FROM pairs WHERE a = 3 AND b = '';
    UPDATE pairs SET v = 'kept' WHERE a = 3 AND b = 'X'
""")
DEFERRED = transactions("""
    UPDATE deferred SET k = 3 - k WHERE k IN (1, 2)
    INSERT INTO deferred VALUES (3, 'second');
    DELETE FROM deferred WHERE v = 'row 3'
    UPDATE deferred SET k = k + 1 WHERE k IN (4, 5, 6)
""")
CUTS = transactions("""
    INSERT INTO cut VALUES (4, 'lost');
    UPDATE cut SET v = 'lost' WHERE id = 1;
    TRUNCATE cut;
    INSERT INTO cut VALUES (1, 'new'), (5, 'new')
    UPDATE cut SET v = 'newer' WHERE id = 5;
    INSERT INTO cut VALUES (6, 'after')
    TRUNCATE cut_other, cut_bag, cut_log;
    INSERT INTO cut_other VALUES (2, 'new');
    INSERT INTO cut_bag VALUES ('new'), ('new');
    INSERT INTO cut_log VALUES ('new')
    INSERT INTO cut_log VALUES ('lost');
    TRUNCATE cut_log;
    TRUNCATE cut_log;
    INSERT INTO cut_log VALUES ('new'), ('newer')
    TRUNCATE emptied
    SAVEPOINT s;
    TRUNCATE by_index;
    ROLLBACK TO s;
    UPDATE by_index SET v = 'still here' WHERE id = 0
""")
CUTS += [
    [
        "TRUNCATE toast_cut",
        _toast_row("toast_cut", 2, seed="new"),
        _toast_row("toast_cut", 3),
        "UPDATE toast_cut SET n = 1",
        "UPDATE toast_cut SET id = 4 WHERE id = 3",
    ]
]
IDENTITIES = transactions("""
    UPDATE by_index SET v = 'u' WHERE id = 1;
    UPDATE by_index SET id = 100 WHERE id = 2;
    UPDATE by_index SET region = 50 WHERE id = 3
    DELETE FROM by_index WHERE id = 4;
    INSERT INTO by_index VALUES (4, 'new', 7, 'v')
    UPDATE by_whole_row SET v = 'u' WHERE id = 1;
    UPDATE by_whole_row SET id = 20 WHERE id = 2;
    DELETE FROM by_whole_row WHERE id = 3
    DELETE FROM bag WHERE ctid = (SELECT min(ctid) FROM bag WHERE f = 'NaN')
    DELETE FROM bag WHERE ctid = (SELECT min(ctid) FROM bag WHERE a IS NULL);
    DELETE FROM bag WHERE f::text = '0'
    UPDATE bag SET a = 3 WHERE ctid = (SELECT min(ctid) FROM bag WHERE f = 'NaN');
    UPDATE bag SET a = 4 WHERE b = ''
    INSERT INTO bag SELECT 5, 'five', 5, NULL, NULL FROM generate_series(1, 3);
    DELETE FROM bag WHERE ctid = (SELECT min(ctid) FROM bag WHERE a = 5)
    INSERT INTO without_identity VALUES ('same'), ('new');
    INSERT INTO identity_nothing VALUES ('second'), ('second')
    INSERT INTO key_but_nothing VALUES (2, 'two')
""")
LAST = [
    [*_swap("keys", "k", 9, 10), "DELETE FROM keys WHERE k = 14"],
    ["UPDATE toast SET n = n + 1", "DELETE FROM toast WHERE id = 109"],
    ["UPDATE toast_full SET n = n + 1", "DELETE FROM toast_full WHERE id = 109"],
    ["UPDATE toast_cut SET n = n + 1"],
    ["INSERT INTO emptied VALUES (3)"],
    ["DELETE FROM bag WHERE a = 5"],
    ["INSERT INTO without_identity VALUES ('last')"],
]

LEFT_OUT = () if FULL else ("toast_full", "pairs", "by_whole_row", "identity_nothing", "key_but_nothing")
"""Their kinds are those of others."""
EVERY = (
    *TOAST_TABLES,
    *("keys", "pairs", "deferred", "cut", "cut_other", "cut_bag", "cut_log", "emptied", "by_index", "by_whole_row"),
    *("bag", "without_identity", "identity_nothing", "key_but_nothing"),
)
MIRRORED = tuple(table for table in EVERY if table not in LEFT_OUT)


@pytest.fixture(scope="module")
def story(mirror: Mirror) -> Mirror:
    def play(*played: list[str]) -> None:
        for transaction in played:
            mirror.transaction(*without(LEFT_OUT, *transaction))

    mirror.execute(*without(LEFT_OUT, *TABLES))
    play(list(INITIAL))
    mirror.follow()
    first = (*_toast_first("toast"), *_toast_first("toast_full"))
    play(*first, *KEYS, *PAIRS, *DEFERRED, *CUTS, *IDENTITIES)
    mirror.follow()
    mirror.assert_equal(*MIRRORED)
    play(*_toast_second("toast"), *_toast_second("toast_full"))
    if FULL:
        mirror.follow()
        mirror.assert_equal("toast", "toast_full")
    play(*LAST)
    mirror.follow()
    if FULL:
        mirror.rebuild()
    return mirror


pytestmark = pytest.mark.parametrize("lake", cases(LAKES, quick=[FOLLOWED]))


def test_every_table_equals_the_source(story: Mirror, lake: str) -> None:
    """Rows that share a key inside a transaction, as a deferred constraint allows it, equal rows without a key, and
    what stands before and behind a TRUNCATE, one that is rolled back too, among them.
    """
    story.assert_equal(*MIRRORED, lake=lake)
    assert {table.state for table in story.applied(lake).values()} == {"live"}
    assert story.complete(lake).left_out == {}


@pytest.mark.parametrize("table", cases(TOAST_TABLES, quick=MIRRORED))
def test_G01_G03_values_that_were_not_sent_stay_through_updates_key_changes_and_truncates(
    story: Mirror, table: str, lake: str
) -> None:
    story.assert_equal(table, lake=lake)
    rows = {row["id"]: row for row in story.rows(table, lake=lake)}
    absent = {
        key: {column for column in LARGE if row[column] is None and column not in (row["_sluice_special"] or {})}
        for key, row in rows.items()
    }
    expected = {} if table == "toast_cut" else {4: set(LARGE), 5: {"body", "grid", "wide"}}
    assert {key: columns for key, columns in absent.items() if columns} == expected


@pytest.mark.parametrize("table", ["toast", "toast_cut"])
def test_the_server_did_leave_out_every_large_column(story: Mirror, table: str, lake: str) -> None:
    """Else the test before proves nothing."""
    attnums = {
        str(column.attnum)
        for column in story.pipeline.table(f"public.{table}").schemas[1].columns
        if column.name in LARGE
    }
    left_out = [segment.unchanged for segment in story.pipeline.segments(f"public.{table}")]
    assert {attnum for counts in left_out for attnum, count in counts.items() if count} == attnums


def test_G04_swaps_chains_and_used_again_keys_leave_each_row_under_its_last_key(story: Mirror, lake: str) -> None:
    rows = dict(story.values("keys", "k", "v", lake=lake))
    assert (rows[1], rows[2]) == ("row 2", "row 1")
    assert (rows[103], rows[104], rows[105]) == ("row 3", "row 4", "row 5")
    assert (rows[6], rows[7], rows[8]) == ("row 7", "row 8", "row 6")
    assert (rows[9], rows[10], rows[11]) == ("later", "again", "row 12")
    assert (rows[13], rows[300]) == ("new", "moved")
    assert rows[500] == "third"
    assert rows[25] == "row 25 back"
    assert rows[1030] == "row 30"
    assert not rows.keys() & {3, 4, 5, 12, 14, 200, 400, 401, 402, 30}


def test_one_truncate_of_several_tables_empties_each_at_its_place(story: Mirror, lake: str) -> None:
    assert story.values("cut_other", "id", "v", lake=lake) == [(2, "new")]
    assert story.values("cut_bag", "v", lake=lake) == [("new",), ("new",)]
    assert story.values("cut_log", "v", lake=lake) == [("new",), ("newer",)]


def test_an_identity_index_names_rows_before_the_primary_key_does(story: Mirror, lake: str) -> None:
    (schema,) = story.pipeline.table("public.by_index").schemas.values()
    assert [column.name for column in schema.key_columns] == ["code", "region"]
    rows = {
        (code, region): row_id for code, region, row_id in story.values("by_index", "code", "region", "id", lake=lake)
    }
    assert (rows["c2", 0], rows["c0", 50], rows["new", 7]) == (100, 3, 4)
    assert ("c0", 1) not in rows
    assert ("c1", 1) not in rows


@pytest.mark.parametrize("table", cases(["without_identity", "identity_nothing"], quick=MIRRORED))
def test_G11_a_table_whose_rows_have_no_identity_is_mirrored(story: Mirror, table: str, lake: str) -> None:
    assert story.applied(lake)[f"public.{table}"].mode == "mirror of whole rows"
    story.assert_equal(table, lake=lake)


def test_replaying_everything_commits_nothing(story: Mirror, lake: str) -> None:
    """By an applier that starts again, and by one that has lost all notes and has the lake's own
    markers only.
    """
    before = {table: story.delta(table, lake=lake).version() for table in MIRRORED}
    story.apply(lake)
    story.forget_notes(lake)
    story.apply(lake)
    assert {table: story.delta(table, lake=lake).version() for table in MIRRORED} == before
    story.assert_equal(*MIRRORED, lake=lake)
