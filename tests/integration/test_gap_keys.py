"""A gap in which a key came to print otherwise, and stayed equal to its type: 1.0 became 1.00."""

from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest

from sluice.contract.entries import Repair
from sluice.contract.row_form import Difference, Row
from sluice.ingest.options import FlushPolicy
from sluice.operate.compare import closing_gaps
from sluice.operate.compare.comparing import Comparison
from sluice.operate.new_slot import recreate
from sluice.source.catalog import Catalog
from sluice.source.sessions import open_query
from sluice.source.snapshot_export import SnapshotHolder
from sluice_spark.read.changes import read_rows
from tests.support.extent import slow
from tests.support.ingesting import IngestPipeline


class Found:
    """A comparison that found rows at the source (`missing`) and in the lake (`extra`) only, as `Comparing` does:
    the texts of these keys differ, and so do their hashes.
    """

    def __init__(self, pipeline: IngestPipeline, *, missing: list[str], extra: list[str]) -> None:
        self.source, self.wal_end = pipeline.known(), pipeline.wal_end
        self.difference = Difference(
            missing=tuple(Row(1, 1, (key,)) for key in missing), extra=tuple(Row(2, 2, (key,)) for key in extra)
        )

    def gap(self, state: Any) -> Iterator[Any]:
        with closing(Catalog(open_query(self.source))) as catalog:
            facts = catalog.table(int(state.table_id), publication=self.source.publication)
        with closing(SnapshotHolder.open(self.source)) as holder:
            verdict = Comparison(
                state.table_id, "public", "t", "different", lsn=holder.consistent_lsn, difference=self.difference
            )
            self.wal_end()  # as the real one does, for ingest to pass the snapshot's position soon
            yield verdict, facts, holder


@pytest.mark.parametrize("together", [10, pytest.param(1, marks=slow)])
def test_a_key_that_prints_otherwise_replaces_the_row_under_its_old_text(
    pipeline: IngestPipeline, monkeypatch: pytest.MonkeyPatch, together: int
) -> None:
    """In one file: the gap can never be closed. In two (more keys than MOST_KEYS, such as lower(email) of citext
    keys): it is closed, the old row is not removed, and the table is live with both.
    """
    monkeypatch.setattr(closing_gaps, "MOST_KEYS", together)
    pipeline.database.execute("CREATE TABLE t (id numeric PRIMARY KEY, v int)", "INSERT INTO t VALUES (1.0, 1), (2, 2)")
    pipeline.run()
    pipeline.database.execute(f"SELECT pg_drop_replication_slot('{pipeline.database.slot}')")
    pipeline.database.execute("UPDATE t SET id = 1.00 WHERE id = 1")
    recreate(pipeline.options(), pipeline.store, mirrored=lambda _: True)
    found = Found(pipeline, missing=["1.00"], extra=["1.0"])
    with pipeline.running(watch_interval_s=0.1, flush=FlushPolicy(progress_interval_s=0.5)):
        closing_gaps.close_gap(
            pipeline.known(),
            pipeline.store,
            found,  # type: ignore[arg-type]
            pipeline.table("public.t"),
            seconds=60,
        )
    assert pipeline.table("public.t").state == "live"
    (repair,) = (entry.body for entry in pipeline.entries() if isinstance(entry.body, Repair))
    rows = [
        (row["_sluice_op"], str((row["_sluice_old"] or row)["id"]))
        for segment in repair.segments
        for part in read_rows(pipeline.store, segment)
        for row in part.to_pylist()
    ]
    assert sorted(rows) == [("d", "1.0"), ("u", "1.00")]
