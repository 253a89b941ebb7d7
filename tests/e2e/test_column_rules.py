"""Column rules from the source to the lake: what a rule keeps out is in no file of spool, lake and scratch, whatever
happened; the lake has what it should have, `verify` says so and finds what differs, and a repair brings it.
"""

import hmac
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from sluice.contract import resyncs
from sluice.contract.column_rules import EXCLUDED
from sluice.contract.lake_targets import LakeTarget
from sluice.contract.verified import DIFFERENT, EQUAL
from sluice.errors import SlotLost
from sluice.operate.compare.repairing import repair
from tests.e2e.mirror import Mirror
from tests.e2e.test_gap import Lossy
from tests.e2e.test_verify import Verified
from tests.support import canary
from tests.support.column_rules import HIDDEN, KEYS, LARGE, hashed, mask, truncate, under, with_keys
from tests.support.extent import slow
from tests.support.sources import Database

RULES = {"card": EXCLUDED, "phone": mask("***"), "notes": truncate(5), "email": hashed(KEYS[0])}
TABLES = ("keyed", "whole", "bag", "hashed")
OPTIONS = under(with_keys(RULES), *(f"public.{table}" for table in TABLES))
COLUMNS = "id int, card text, email text, phone text, notes text, v text, large text, n numeric(9,2)"
ROW = f"{LARGE} || i, '{HIDDEN} ' || i, {LARGE} || i, 'äöü😀x' || {LARGE} || i, 'v' || i % 3, repeat('y', 9000), i"


@pytest.fixture(scope="module")
def ruled(mirror: Mirror) -> Iterator[Verified]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(resyncs, "REST", 0.0)
        patch.setattr(resyncs, "PAUSES_SECONDS", (0.0,))
        for table in TABLES:
            mirror.execute(
                f"CREATE TABLE {table} ({COLUMNS})",
                f"ALTER TABLE {table} ALTER card SET STORAGE EXTERNAL, ALTER phone SET STORAGE EXTERNAL, "
                "ALTER notes SET STORAGE EXTERNAL, ALTER large SET STORAGE EXTERNAL",
                f"INSERT INTO {table} SELECT i, {ROW} FROM generate_series(1, 200) i",
            )
        mirror.execute(
            "ALTER TABLE keyed ADD PRIMARY KEY (id)",
            "ALTER TABLE whole ADD PRIMARY KEY (id)",
            "ALTER TABLE hashed ADD PRIMARY KEY (email)",
            "ALTER TABLE whole REPLICA IDENTITY FULL",
            "ALTER TABLE bag REPLICA IDENTITY FULL",
            f"CREATE PUBLICATION {mirror.database.publication} FOR TABLE {', '.join(TABLES)}",
        )
        mirror.follow(**OPTIONS)
        for table in TABLES:
            mirror.execute(
                f"UPDATE {table} SET v = 'changed' WHERE id <= 20",  # what is large is not sent
                f"UPDATE {table} SET card = '{HIDDEN} again', phone = NULL WHERE id BETWEEN 10 AND 30",
                f"UPDATE {table} SET notes = '{HIDDEN}' WHERE id BETWEEN 20 AND 35",
                f"UPDATE {table} SET id = id + 1000, email = email || ' moved' WHERE id BETWEEN 40 AND 50",
                f"DELETE FROM {table} WHERE id > 190 AND id < 1000",
                f"INSERT INTO {table} SELECT i, {ROW} FROM generate_series(500, 503) i",
            )
        mirror.follow(**OPTIONS)
        for table in TABLES:
            mirror.execute(
                f"ALTER TABLE {table} RENAME card TO number",
                f"ALTER TABLE {table} ADD w int DEFAULT 3, ADD card text DEFAULT '{HIDDEN} default'",
                f"UPDATE {table} SET number = '{HIDDEN} c', w = 4 WHERE id < 5",
                f"ALTER TABLE {table} DROP number",
                f"ALTER TABLE {table} RENAME phone TO cell",
                f"ALTER TABLE {table} ADD phone text DEFAULT '{HIDDEN} default'",
                f"INSERT INTO {table} (id, email, card, cell) VALUES (600, '{HIDDEN} d', '{HIDDEN} e', '{HIDDEN} f')",
            )
        mirror.follow(**OPTIONS)
        yield Verified(mirror, **OPTIONS)


def stored(email: str | None) -> str | None:
    return None if email is None else hmac.new(KEYS[0], email.encode(), "sha256").hexdigest()


def assert_lake(mirror: Mirror, table: str) -> None:
    """The lake table has what the rules make of the source."""
    columns = ("id", "email", "cell", "phone", "notes", "v", "large", "n", "w")
    found = mirror.database.all(f"SELECT {', '.join(columns)} FROM {table}")
    made = [
        (row[0], stored(row[1]), row[2] and "***", row[3] and "***", row[4] if row[4] is None else row[4][:5], *row[5:])
        for row in found
    ]
    assert Counter(map(repr, mirror.values(table, *columns))) == Counter(map(repr, made))
    assert all("card" not in row and "number" not in row for row in mirror.rows(table))


@slow
def test_the_lake_has_what_the_rules_leave_and_verify_says_so(ruled: Verified) -> None:
    for table in TABLES:
        assert_lake(ruled.mirror, table)
    verdicts = ruled.verdicts()
    assert {name: (one.outcome, one.reason) for name, one in verdicts.items()} == dict.fromkeys(TABLES, (EQUAL, ""))


@slow
def test_what_differs_is_found_and_repaired_and_nothing_comes_in_by_that(ruled: Verified) -> None:
    wrong = {table: (f"'{stored(f'{HIDDEN} 17')}'", f"'{stored(f'{HIDDEN} 18')}'") for table in ("keyed", "hashed")}
    for table, (changed, missing) in wrong.items():
        ruled.corrupt(table, f"UPDATE {{}} SET v = 'broken', cell = 'x' WHERE email = {changed}")
        ruled.corrupt(table, f"DELETE FROM {{}} WHERE email = {missing}")
        ruled.corrupt(table, EXTRA)
        verdict = ruled.verdicts(table)[table]
        difference = verdict.difference
        assert verdict.outcome == DIFFERENT
        found = [[row.key[0] for row in rows] for rows in (difference.changed, difference.missing, difference.extra)]
        by_hash = [[changed.strip("'")], [missing.strip("'")], ["no such hash"]]
        assert found == ([["17"], ["18"], ["-1"]] if table == "keyed" else by_hash)
        with ruled.mirror.pipeline.running(**ruled.options, watch_interval_s=0.1):
            repair(ruled.mirror.pipeline.store, verdict, seconds=60)
        ruled.mirror.follow(**ruled.options)
        assert ruled.verdicts(table)[table].outcome == EQUAL
        assert_lake(ruled.mirror, table)


OTHERS = "v, n, w, _sluice_lsn, _sluice_ts"
EXTRA = f"INSERT INTO {{}} BY NAME SELECT -1 AS id, 'no such hash' AS email, {OTHERS} FROM {{}} WHERE id = 3"


@slow
def test_what_was_lost_with_the_slot_is_read_again_under_the_rules(ruled: Verified) -> None:
    lossy = Lossy(ruled.mirror, **ruled.options)
    lossy.lose()
    for table in ("keyed", "hashed"):
        ruled.mirror.execute(
            f"UPDATE {table} SET v = 'lost', notes = '{HIDDEN} lost' WHERE id BETWEEN 60 AND 65",
            f"DELETE FROM {table} WHERE id = 66",
            f"INSERT INTO {table} (id, email, card) VALUES (700, '{HIDDEN} 700', '{HIDDEN}')",
        )
    with pytest.raises(SlotLost):
        ruled.mirror.pipeline.run(**ruled.options)
    lossy.go_on()
    for table in ("keyed", "hashed"):
        closed = lossy.close(table)
        assert (closed.reason, closed.repaired) == ("", 8)
    assert lossy.close("whole").reason == ""
    ruled.mirror.follow(**ruled.options)
    for table in ("keyed", "hashed"):
        assert_lake(ruled.mirror, table)
        assert canary.in_stored(ruled.mirror.lake_path().parent, HIDDEN) == []


@pytest.fixture
def apart(database: Database, spark: SparkSession, tmp_path: Path) -> Mirror:
    """For a story of its own."""
    return Mirror(database, spark, tmp_path)


def test_a_changelog_has_old_rows_without_what_the_rules_keep_out(apart: Mirror) -> None:
    rules = with_keys({"card": EXCLUDED, "email": hashed(KEYS[0]), "phone": mask("***")})
    options = under(rules, "public.grown_log", targets=(LakeTarget("changelog"),))
    apart.execute(
        "CREATE TABLE grown_log (id int PRIMARY KEY, card text, email text, phone text)",
        "ALTER TABLE grown_log REPLICA IDENTITY FULL",
        f"INSERT INTO grown_log VALUES (1, '{HIDDEN}', '{HIDDEN} 1', '{HIDDEN}')",
        f"CREATE PUBLICATION {apart.database.publication} FOR TABLE grown_log",
    )
    apart.follow(**options)
    apart.execute(
        f"UPDATE grown_log SET email = '{HIDDEN} 2', card = '{HIDDEN} new'",
        "UPDATE grown_log SET phone = NULL",
        "DELETE FROM grown_log",
    )
    apart.follow(**options)
    first, second = stored(f"{HIDDEN} 1"), stored(f"{HIDDEN} 2")
    rows = sorted(apart.rows("grown_log"), key=lambda row: row["_sluice_lsn"])
    assert [(row["_sluice_op"], row["email"], row["phone"]) for row in rows] == [
        ("i", first, "***"),
        ("u", second, "***"),
        ("u", second, None),
        ("d", None, None),
    ]
    old = [row["_sluice_old"] for row in rows]
    assert old == [
        None,
        {"id": 1, "email": first, "phone": "***"},
        {"id": 1, "email": second, "phone": "***"},
        {"id": 1, "email": second, "phone": None},
    ]
    assert canary.in_stored(apart.lake_path().parent, HIDDEN) == []


@slow
def test_what_the_rules_keep_out_is_in_no_file(ruled: Verified) -> None:
    ruled.mirror.apply()
    assert canary.in_stored(ruled.mirror.lake_path().parent, HIDDEN) == []
    assert canary.in_stored(ruled.mirror.lake_path().parent, KEYS[0].decode()) == []
    assert canary.in_stored(ruled.mirror.lake_path().parent, "äöü😀x"), "the scan reads what is compressed"
