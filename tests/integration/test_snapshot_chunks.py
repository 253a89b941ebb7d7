"""Chunks of a table that are read at different moments, while rows move between them: with the changes
from between they are the table, or the snapshot begins again and says why.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import structlog

from sluice import faults
from sluice.contract.entries import Snapshot
from sluice.ingest.options import FlushPolicy
from sluice.ingest.snapshot.chunk_round import SnapshotLimits
from tests.support.extent import cases, slow
from tests.support.ingesting import IngestPipeline, Running
from tests.support.source_setup import detach_half_way, since

CHUNKS: dict[str, Any] = {
    "watch_interval_s": 0.2,
    "tables": (),
    "snapshot": SnapshotLimits(connections=1, chunk_bytes=64 * 1024),
    "flush": FlushPolicy(max_delay_s=0.05, progress_interval_s=0.2),
}
"""Eight blocks a chunk, read one after the other."""
ROWS = 3000
"""About twenty-five blocks."""
SETUP = (
    "CREATE TABLE t (id int PRIMARY KEY, n int, pad text) WITH (fillfactor = 100, autovacuum_enabled = off)",
    f"INSERT INTO t SELECT i, 0, repeat('x', 40) FROM generate_series(1, {ROWS}) i",
)
MOVED = ("VACUUM t", "UPDATE t SET n = n + 1 WHERE id % 3 = 0")
"""Rows of every chunk go to blocks that were freed in other chunks."""


@contextmanager
def chunked(
    pipeline: IngestPipeline, *then: str, passage: int = 3, do: Callable[[], None] = lambda: None
) -> Iterator[Running]:
    """Ingest that lost the round of its snapshot before chunk number `passage` was published, with the statements
    of `then` carried out, and `do`, before the next one.
    """
    gate = pipeline.folder / "chunk.open"
    faults.arm(f"snapshot.chunk.before=hold:{gate}+raise:SourceUnavailable@{passage}")
    with pipeline.running(**CHUNKS) as running:
        running.wait_until(lambda: faults.passages("snapshot.chunk.before") >= passage)
        do()
        pipeline.execute(*then)
        gate.touch()
        yield running
        running.wait_until(lambda: "snapshot" not in pipeline.states())


def chunks_of(pipeline: IngestPipeline, name: str = "public.t") -> list[Snapshot]:
    table = pipeline.table(name)
    return [
        entry.body
        for entry in pipeline.entries()
        if isinstance(entry.body, Snapshot)
        and (entry.body.table_id, entry.body.generation) == (table.table_id, table.generation)
    ]


def assert_equal(pipeline: IngestPipeline, folder: Path | None = None) -> None:
    """After a last run. `folder` has the spool of a pipeline that does not know its own."""
    pipeline.run(**CHUNKS)
    replace(pipeline, folder=folder or pipeline.folder).assert_equal()


MOVES = {
    "rows move between chunks": MOVED,
    "rows move and come back": (*MOVED, "VACUUM t", "UPDATE t SET n = n - 1 WHERE id % 3 = 0"),
    "rows are deleted and others take their blocks": (
        "DELETE FROM t WHERE id % 2 = 0",
        "VACUUM t",
        "INSERT INTO t SELECT i, 1, repeat('y', 40) FROM generate_series(10001, 11000) i",
    ),
    "keys change": (
        "UPDATE t SET id = id + 100000 WHERE id % 5 = 0",
        "VACUUM t",
        "UPDATE t SET n = 7 WHERE id > 100000",
    ),
    "keys are swapped": (
        "UPDATE t SET id = -id WHERE id IN (1, 2999)",
        "UPDATE t SET id = CASE id WHEN -1 THEN 2999 ELSE 1 END WHERE id IN (-1, -2999)",
    ),
    "a deleted row comes again": ("DELETE FROM t WHERE id < 50", "VACUUM t", "INSERT INTO t VALUES (7, 77, 'again')"),
    "the end of the table is cut off": ("DELETE FROM t WHERE id > 1500", "VACUUM t"),
}


@pytest.mark.parametrize("moves", cases(MOVES, quick=["keys change"]))
def test_chunks_of_different_moments_and_the_changes_between_them_are_the_table(
    pipeline: IngestPipeline, moves: str
) -> None:
    pipeline.execute(*SETUP)
    pipeline.publish("t")

    with chunked(pipeline, *MOVES[moves]):
        pass
    chunks = chunks_of(pipeline)
    assert pipeline.table("public.t").generation == 1
    assert len({chunk.snapshot_lsn for chunk in chunks}) == 2
    assert sum(bool(chunk.ranges) for chunk in chunks) >= 3
    assert_equal(pipeline)


def began_again(pipeline: IngestPipeline, *then: str, do: Callable[[], None] = lambda: None) -> str:
    """The reason that a warning gave for the second generation of public.t, which is whole and equal."""
    with structlog.testing.capture_logs() as logs, chunked(pipeline, *then, do=do):
        pass
    assert pipeline.table("public.t").generation == 2
    assert len({chunk.snapshot_lsn for chunk in chunks_of(pipeline)}) == 1
    assert_equal(pipeline)
    return next(str(log["reason"]) for log in logs if log["event"] == "the snapshot begins again")


LARGE = ("ALTER TABLE t ALTER pad SET STORAGE EXTERNAL", "UPDATE t SET pad = repeat(id::text, 2000) WHERE id % 300 = 0")
"""Some values are stored out of line, and an update that leaves them does not send them."""


def test_a_value_that_was_not_sent_between_two_parts_makes_the_snapshot_begin_again(pipeline: IngestPipeline) -> None:
    """The row moved from a chunk that was not read to one that was: it is in none, and its value nowhere."""
    pipeline.execute(*SETUP, *LARGE, "VACUUM FULL t", "DELETE FROM t WHERE id < 100", "VACUUM t")
    pipeline.publish("t")
    reason = began_again(pipeline, "UPDATE t SET n = 1 WHERE id = 3000")
    assert "without all its values" in reason


@slow
def test_a_value_that_was_not_sent_before_the_first_part_was_published_counts_too(
    pipeline: IngestPipeline, tmp_path: Path
) -> None:
    pipeline.execute(*SETUP, *LARGE, "VACUUM FULL t", "DELETE FROM t WHERE id < 100", "VACUUM t")
    pipeline.publish("t")
    before, after = tmp_path / "before.open", tmp_path / "after.open"
    faults.arm(f"snapshot.locked=hold:{before}@1,snapshot.chunk.before=hold:{after}+raise:SourceUnavailable@2")
    with pipeline.running(**CHUNKS) as running:
        running.wait_until(lambda: faults.passages("snapshot.locked") > 0)
        pipeline.execute("UPDATE t SET n = 1 WHERE id = 3000")
        table_id = pipeline.table("public.t").table_id
        running.wait_until(lambda: pipeline.state().tables[table_id].unsent_lsn > 0)
        before.touch()
        after.touch()
        running.wait_until(lambda: pipeline.table("public.t").state == "live")
    assert pipeline.table("public.t").generation == 2
    assert_equal(pipeline)


@slow
def test_values_that_were_not_sent_do_no_harm_while_all_parts_are_of_one_moment(pipeline: IngestPipeline) -> None:
    pipeline.execute(*SETUP, *LARGE)
    pipeline.publish("t")
    with chunked(pipeline, "UPDATE t SET n = 1 WHERE id = 3000", passage=1):
        pass
    assert pipeline.table("public.t").generation == 1
    assert_equal(pipeline)


BEGINS_AGAIN = {
    "VACUUM FULL": ("VACUUM FULL t", "rewritten or truncated"),
    "CLUSTER": ("CLUSTER t USING t_pkey", "rewritten or truncated"),
    "TRUNCATE": ("TRUNCATE t", "rewritten or truncated"),
    "a column that was added": ("ALTER TABLE t ADD COLUMN more int DEFAULT 7", "columns changed"),
    "REPACK": ("REPACK t", "rewritten or truncated"),
    "REPACK beside its writers": ("REPACK (CONCURRENTLY) t", "rewritten or truncated"),
}


@pytest.mark.parametrize("change", cases(BEGINS_AGAIN, quick=["VACUUM FULL", "REPACK", "REPACK beside its writers"]))
def test_a_table_whose_blocks_are_others_begins_again(pipeline: IngestPipeline, change: str) -> None:
    if change.startswith("REPACK"):
        since(pipeline.database, 19, "REPACK")
    pipeline.execute(*SETUP)
    pipeline.publish("t")
    statement, said = BEGINS_AGAIN[change]
    reason = began_again(pipeline, statement, "INSERT INTO t (id, n) VALUES (100000, 1)")
    assert said in reason


def test_a_key_that_was_another_one_between_two_parts_makes_the_snapshot_begin_again(
    pipeline: IngestPipeline, tmp_path: Path
) -> None:
    """Nothing of it is left in the catalog, and the stream comes to it only after the last part was read."""
    index = "CREATE UNIQUE INDEX t_n ON t (n)"
    pipeline.execute(SETUP[0], "ALTER TABLE t ALTER n SET NOT NULL", index, SETUP[1].replace("i, 0,", "i, -i,"))
    pipeline.publish("t")
    stream = tmp_path / "stream.open"

    def hold_the_stream() -> None:
        faults.arm(f"decode.before=hold:{stream},snapshot.chunk.before=count")

    change = (
        "ALTER TABLE t REPLICA IDENTITY USING INDEX t_n",
        "UPDATE t SET id = id + 100000 WHERE id % 3 = 0",
        "ALTER TABLE t REPLICA IDENTITY DEFAULT",
        "UPDATE t SET n = n - 100000 WHERE id % 5 = 0",
    )
    with (
        structlog.testing.capture_logs() as logs,
        chunked(pipeline, *change, do=hold_the_stream) as running,
    ):
        running.wait_until(lambda: (known := pipeline.table("public.t").snapshot) is not None and known.complete)
        stream.touch()
    assert pipeline.table("public.t").generation == 2
    assert "columns changed" in next(str(log["reason"]) for log in logs if log["event"] == "the snapshot begins again")
    assert_equal(pipeline)


WITHOUT_KEY = {
    "no key": ("ALTER TABLE t DROP CONSTRAINT t_pkey", "REPLICA IDENTITY DEFAULT", "has no key"),
    "whole rows": ("ALTER TABLE t DROP CONSTRAINT t_pkey", "REPLICA IDENTITY FULL", "has no key"),
    "a key and whole rows": ("SELECT 1", "REPLICA IDENTITY FULL", "not its replica identity"),
}


@pytest.mark.parametrize("identity", cases(WITHOUT_KEY, quick=["a key and whole rows"]))
def test_a_table_without_a_key_that_tells_rows_apart_continues_only_under_one_snapshot(
    pipeline: IngestPipeline, identity: str
) -> None:
    first, then, said = WITHOUT_KEY[identity]
    pipeline.execute(*SETUP, first, f"ALTER TABLE t {then}")
    pipeline.publish("t")
    reason = began_again(pipeline, "INSERT INTO t VALUES (100000, 1, '')")
    assert said in reason


@slow
def test_rows_named_by_other_columns_between_two_parts_count_although_the_stream_is_behind(
    pipeline: IngestPipeline, tmp_path: Path
) -> None:
    """The catalog is as it was when the second part is read, and the stream brings the rows from between later."""
    by_n = ("ALTER TABLE t ALTER n SET NOT NULL", "UPDATE t SET n = -id", "CREATE UNIQUE INDEX t_n ON t (n)")
    pipeline.execute(*SETUP, *by_n, "VACUUM FULL t")
    pipeline.publish("t")
    chunk, stream = tmp_path / "chunk.open", tmp_path / "stream.open"
    faults.arm(f"snapshot.chunk.before=hold:{chunk}+raise:SourceUnavailable@3,decode.before=hold:{stream}")
    with structlog.testing.capture_logs() as logs, pipeline.running(**CHUNKS) as running:
        running.wait_until(lambda: faults.passages("snapshot.chunk.before") >= 3)
        pipeline.execute(
            "ALTER TABLE t REPLICA IDENTITY USING INDEX t_n",
            "UPDATE t SET id = id + 100000 WHERE id % 5 = 0",
            "ALTER TABLE t REPLICA IDENTITY DEFAULT",
        )
        chunk.touch()
        running.wait_until(lambda: (snapshot := pipeline.table("public.t").snapshot) and snapshot.complete)
        stream.touch()
        running.wait_until(lambda: pipeline.table("public.t").state == "live")
    assert pipeline.table("public.t").generation == 2
    reasons = [log["reason"] for log in logs if log["event"] == "the snapshot begins again"]
    assert reasons == ["the table's columns changed since a chunk of it was read"]
    assert_equal(pipeline)


@slow
def test_partitions_are_read_in_parts_by_several_connections(pipeline: IngestPipeline) -> None:
    pipeline.execute(
        "CREATE TABLE p (id int, k int, pad text, PRIMARY KEY (id, k)) PARTITION BY LIST (k)",
        *(f"CREATE TABLE p{k} PARTITION OF p FOR VALUES IN ({k})" for k in range(4)),
        "INSERT INTO p SELECT i, i % 3, repeat('x', 40) FROM generate_series(1, 6000) i",
    )
    pipeline.publish("p")

    faults.arm("snapshot.chunk.after=raise:SourceUnavailable@4")
    with pipeline.running(**{**CHUNKS, "snapshot": SnapshotLimits(connections=3, chunk_bytes=64 * 1024)}) as running:
        running.wait_until(lambda: faults.passages("snapshot.chunk.after") >= 4)
        pipeline.execute("UPDATE p SET k = (k + 1) % 4 WHERE id % 7 = 0", "DELETE FROM p WHERE id % 11 = 0")
        running.wait_until(lambda: pipeline.table("public.p").state == "live")
    assert pipeline.table("public.p").generation == 1
    chunks = chunks_of(pipeline, "public.p")
    assert len(chunks[0].relations) == 4
    assert_equal(pipeline)


@pytest.mark.parametrize("moments", [1, 2])
def test_a_partition_that_is_created_while_its_table_is_read_does_not_begin_the_snapshot_again(
    pipeline: IngestPipeline, moments: int
) -> None:
    """Where one is created every hour, a table that takes longer would never be read."""
    pipeline.execute(
        "CREATE TABLE p (id int, k int, pad text, PRIMARY KEY (id, k)) PARTITION BY LIST (k)",
        *(f"CREATE TABLE p{k} PARTITION OF p FOR VALUES IN ({k})" for k in range(3)),
        "INSERT INTO p SELECT i, i % 3, repeat('x', 40) FROM generate_series(1, 4500) i",
    )
    pipeline.publish("p")
    later = (
        "CREATE TABLE p3 PARTITION OF p FOR VALUES IN (3)",
        "INSERT INTO p SELECT i, 3, 'new' FROM generate_series(10001, 10050) i",
        "UPDATE p SET k = 3 WHERE k > 0 AND id % 7 = 0",
    )

    gate = pipeline.folder / "chunk.open"
    faults.arm(f"snapshot.chunk.before=hold:{gate}{'+raise:SourceUnavailable' * (moments - 1)}@3")
    with pipeline.running(**CHUNKS) as running:
        running.wait_until(lambda: faults.passages("snapshot.chunk.before") >= 3)
        pipeline.execute(*later)
        gate.touch()
        running.wait_until_live()
    assert pipeline.table("public.p").generation == 1
    assert len({chunk.snapshot_lsn for chunk in chunks_of(pipeline, "public.p")}) == moments
    assert_equal(pipeline)


@slow
def test_a_partition_whose_detachment_was_cancelled_half_way_is_in_no_chunk(pipeline: IngestPipeline) -> None:
    """Who reads the root does not see its rows, and who reads leaf by leaf may not either."""
    pipeline.execute(
        "CREATE TABLE p (id int PRIMARY KEY, pad text) PARTITION BY RANGE (id)",
        f"CREATE TABLE p1 PARTITION OF p FOR VALUES FROM (0) TO ({ROWS})",
        f"CREATE TABLE p2 PARTITION OF p FOR VALUES FROM ({ROWS}) TO ({2 * ROWS})",
        f"INSERT INTO p SELECT i, repeat('x', 40) FROM generate_series(0, {2 * ROWS - 1}) i",
    )
    detach_half_way(pipeline.database, "p", "p1")
    pipeline.publish("p")
    pipeline.run(**CHUNKS)
    assert len(chunks_of(pipeline, "public.p")) > 1
    assert_equal(pipeline)
