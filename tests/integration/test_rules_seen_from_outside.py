"""Column rules and tables that ingest does not know yet, or knows under another name."""

from itertools import product
from pathlib import Path
from typing import Any

import pytest

from sluice import faults, lsn
from sluice.contract.column_rules import EXCLUDED, ColumnRules
from sluice.ingest.encode.builder import BuilderLimits
from sluice.ingest.snapshot.chunk_round import SnapshotLimits
from sluice.operate.check.preflight import run_preflight
from sluice.tables.policies import Policies, TablePolicy
from tests.integration.test_column_rules import planned
from tests.support import canary
from tests.support.column_rules import (
    HIDDEN,
    KEYS,
    assert_equal,
    assert_hidden,
    finding,
    hashed,
    run,
    under,
    with_keys,
    written,
)
from tests.support.extent import cases, slow
from tests.support.ingesting import IMMEDIATELY, IngestPipeline
from tests.support.source_setup import since

RULES = ColumnRules({"card": EXCLUDED})


pytestmark = pytest.mark.usefixtures("read_again_at_once")


def configured(rules: ColumnRules, *names: str) -> dict[str, Any]:
    ruled = frozenset(names or ("public.t",))
    return {
        "tables": (),
        "policies": Policies(TablePolicy(ruled=ruled), {name: TablePolicy(rules=rules, ruled=ruled) for name in ruled}),
    }


@pytest.mark.parametrize("what", cases(["partition", "swap"], quick=["swap"]))
def test_rows_of_a_table_that_is_made_in_an_open_transaction_are_withheld(
    pipeline: IngestPipeline, tmp_path: Path, what: str
) -> None:
    since(pipeline.database, 16, "streaming of small transactions")
    options = configured(RULES) | {"streaming": "on", "builder": BuilderLimits(body_bytes=1)}
    partitioned = " PARTITION BY RANGE (id)" if what == "partition" else ""
    pipeline.execute(
        f"CREATE TABLE t (id int PRIMARY KEY, card text){partitioned}", "CREATE PUBLICATION {p} FOR ALL TABLES"
    )
    pipeline.run(**options)
    pipeline.dsn = pipeline.database.dsn + IMMEDIATELY
    inside = {
        "partition": (
            "CREATE TABLE low PARTITION OF t FOR VALUES FROM (0) TO (100)",
            "INSERT INTO t VALUES (1, '{hidden}')",
        ),
        "swap": (
            "CREATE TABLE t_new (id int PRIMARY KEY, card text)",
            "INSERT INTO t_new VALUES (1, '{hidden}')",
            "ALTER TABLE t RENAME TO t_old",
            "ALTER TABLE t_new RENAME TO t",
            "DROP TABLE t_old",
        ),
    }[what]
    with pipeline.database.connect() as connection, pipeline.running(**options) as running:
        connection.execute("BEGIN")
        for statement in written(*inside):
            connection.execute(statement.encode())
        running.wait_until(lambda: list(tmp_path.rglob("stage/**/*.parquet")))
        assert_hidden(pipeline)
        connection.execute("COMMIT")
    pipeline.run(times=3, **options)
    assert_hidden(pipeline)
    if what == "swap":
        assert_equal(pipeline)


@slow
def test_a_table_that_loses_its_name_to_another_keeps_new_columns_out(pipeline: IngestPipeline) -> None:
    options = configured(ColumnRules(new_columns="exclude"))
    pipeline.run("CREATE TABLE t (id int PRIMARY KEY, v text)", "CREATE PUBLICATION {p} FOR ALL TABLES", **options)
    with pipeline.running(**options) as running:
        pipeline.execute(
            *written(
                "ALTER TABLE t RENAME TO t_old",
                "CREATE TABLE t (id int PRIMARY KEY, v text)",
                "INSERT INTO t VALUES (1, 'x')",
                "ALTER TABLE t_old ADD ssn text",
                "INSERT INTO t_old VALUES (5, 'v', '{hidden}')",
            )
        )
        behind = lsn.parse(pipeline.wal_end())
        pipeline.execute("INSERT INTO t VALUES (2, 'y')")
        running.wait_until(lambda: pipeline.state().through_lsn > behind)
    assert_hidden(pipeline)
    pipeline.run(times=2, **options)
    assert_hidden(pipeline)


@pytest.mark.parametrize(
    ("detached", "via_root"),
    cases(product(["low", "zz", "sub"], [True, False]), quick=[("sub", False)]),
)
def test_a_partition_that_is_detached_does_not_bring_what_the_rules_of_its_root_keep_out(
    pipeline: IngestPipeline, detached: str, via_root: bool
) -> None:
    """Nor one that was published by itself, and was not carried for that. Tables are looked at by their names."""
    options = configured(RULES)
    run(
        pipeline,
        "CREATE TABLE t (id int PRIMARY KEY, card text) PARTITION BY RANGE (id)",
        "CREATE TABLE low PARTITION OF t FOR VALUES FROM (0) TO (100)",
        "CREATE TABLE zz PARTITION OF t FOR VALUES FROM (100) TO (200)",
        "CREATE TABLE sub PARTITION OF t FOR VALUES FROM (200) TO (300) PARTITION BY RANGE (id)",
        "CREATE TABLE below PARTITION OF sub FOR VALUES FROM (200) TO (250)",
        "INSERT INTO t VALUES (1, '{hidden}'), (101, '{hidden}'), (201, '{hidden}')",
        f"CREATE PUBLICATION {{p}} FOR ALL TABLES WITH (publish_via_partition_root = {via_root})",
        **options,
    )
    assert_hidden(pipeline)
    pipeline.execute(f"ALTER TABLE t DETACH PARTITION {detached}")
    if via_root:
        tables = {"public.t": {"columns": {"card": "exclude"}}}
        assert planned(pipeline, tables)[f"public.{detached}"][0] == "stop"
    for number in range(3):
        pipeline.run(**options)
        row = 200 + number if detached == "sub" else number
        pipeline.execute(*written(f"INSERT INTO {detached} VALUES ({row + 2}, '{{hidden}}')"))
    pipeline.run(**options)
    assert_hidden(pipeline)
    name = {"sub": "below"}.get(detached, detached) if not via_root else detached
    state, found = finding(pipeline, f"public.{name}")
    assert state == "quarantined"
    assert found in ("table.rules_left", "partition.rules")
    of_its_own = configured(RULES, "public.t", f"public.{name}")
    pipeline.run(times=2, **of_its_own)
    assert_hidden(pipeline)
    assert pipeline.table(f"public.{name}").state == "live"


@slow
@pytest.mark.parametrize("edited", ["key", "excluded"])
def test_rules_that_are_edited_hold_for_what_was_prepared_before(pipeline: IngestPipeline, edited: str) -> None:
    before = under(with_keys({"card": hashed(KEYS[0])}))
    after = under(with_keys({"card": hashed(KEYS[1]) if edited == "key" else EXCLUDED}))
    more: dict[str, Any] = {"two_phase": True, "builder": BuilderLimits(body_bytes=1)}
    pipeline.execute(
        "CREATE TABLE t (id int PRIMARY KEY, card text)",
        "INSERT INTO t VALUES (1, 'a')",
        "CREATE PUBLICATION {p} FOR TABLE t",
    )
    pipeline.run(**before, **more)
    pipeline.database.transact(
        "INSERT INTO t VALUES (2, 'b')", "UPDATE t SET card = 'c'", end="PREPARE TRANSACTION 'p1'"
    )
    pipeline.run(**before, **more)
    pipeline.run("COMMIT PREPARED 'p1'", times=3, **after, **more)
    assert_equal(pipeline)


def test_rules_that_are_edited_hold_for_a_snapshot_that_is_under_way(pipeline: IngestPipeline, tmp_path: Path) -> None:
    """What was read under the old ones and is not published goes, and no further chunk is read."""
    pipeline.execute(
        "CREATE TABLE t (id int PRIMARY KEY, card text)",
        f"INSERT INTO t SELECT i, '{HIDDEN}' || i || repeat('x', 1000) FROM generate_series(1, 400) i",
        "CREATE PUBLICATION {p} FOR TABLE t",
    )
    limits = SnapshotLimits(connections=1, chunk_bytes=64 << 10)
    plain, ruled = configured(ColumnRules()), configured(RULES)
    gate = tmp_path / "gate"
    faults.arm(f"snapshot.chunk.before=hold:{gate}@2")
    with pipeline.running(**plain, snapshot=limits) as running:
        running.wait_until(lambda: faults.passages("snapshot.chunk.before") == 2)
        ingest = running.ingest
        running.call(lambda: ingest.reconfigure(pipeline.options(**ruled, snapshot=limits)))
        before = canary.in_stored(tmp_path, f"{HIDDEN}400")
        gate.touch()
        running.wait_until(lambda: pipeline.table("public.t").state == "live")
    assert (before, canary.in_stored(tmp_path, f"{HIDDEN}400")) == ([], [])
    pipeline.run(times=2, **ruled)
    assert_equal(pipeline, hidden=False)


@pytest.mark.parametrize("renamed", cases(["RENAME TO customers", "SET SCHEMA other"], quick=["SET SCHEMA other"]))
def test_a_table_that_is_renamed_and_must_be_read_again_does_not_leave_its_rules_behind(
    pipeline: IngestPipeline, renamed: str
) -> None:
    """Rows say both before a look does: what begins then is under the rules of the new name."""
    options = configured(RULES)
    run(
        pipeline,
        "CREATE SCHEMA other",
        "CREATE TABLE t (id int PRIMARY KEY, card text, v text)",
        "INSERT INTO t VALUES (1, '{hidden}', '7')",
        "CREATE PUBLICATION {p} FOR TABLE t",
        **options,
    )
    name = "customers" if "customers" in renamed else "other.t"
    with pipeline.running(**options) as running:
        running.wait_until(lambda: running.status.stream.decoder_beat > 0)
        pipeline.database.transact(
            *written(
                "ALTER TABLE t ALTER v TYPE int USING v::int + 1",
                f"ALTER TABLE t {renamed}",
                f"INSERT INTO {name} VALUES (2, '{{hidden}} b', 2)",
            )
        )
        behind = lsn.parse(pipeline.wal_end())
        pipeline.execute(f"INSERT INTO {name} VALUES (4, 'x', 4)")
        running.wait_until(lambda: pipeline.state().through_lsn > behind)
    pipeline.run(times=3, **options)
    assert_hidden(pipeline)
    renamed_to = "public.customers" if name == "customers" else name
    assert finding(pipeline, renamed_to) == ("quarantined", "table.rules_left")


@slow
def test_a_rule_may_name_a_column_that_the_publication_leaves_out(pipeline: IngestPipeline) -> None:
    """Both keep it out, and the rule goes on when the publication does not."""
    since(pipeline.database, 15, "column lists")
    pipeline.execute(
        *written(
            "CREATE TABLE t (id int PRIMARY KEY, card text, v text)",
            "INSERT INTO t VALUES (1, '{hidden}', 'a')",
            "CREATE PUBLICATION {p} FOR TABLE t (id, v)",
        )
    )
    options = configured(RULES)
    found = run_preflight(pipeline.options().source, None, policies=under(RULES)["policies"]).findings
    assert [one.code for one in found if "rule" in one.code] == []
    pipeline.run(**options)
    assert_equal(pipeline)
    pipeline.run("ALTER PUBLICATION {p} SET TABLE t", times=3, **options)
    assert_equal(pipeline)
