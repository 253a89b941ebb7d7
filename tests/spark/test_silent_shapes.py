"""Schema versions without rows, commits that landed before an error, and positions that no table
can reach: what the lake holds, and what is said of it.
"""

from dataclasses import replace

import pytest

from sluice.contract import keys
from sluice.contract.entries import Progress, Table
from sluice.contract.schema import TableSchema
from sluice.contract.table_state import State
from tests.spark.changes import INT4, Change, column
from tests.spark.conftest import Pipeline, running
from tests.spark.model import SCHEMA
from tests.spark.test_failing_windows import FailsAfterCommit
from tests.support.pipeline import wait_until

OTHER = replace(SCHEMA, table_id="16386", table_name="other")
WIDER = replace(SCHEMA, version=2, columns=(*SCHEMA.columns, column("n", 6, INT4, missing="5")))
NARROWER = replace(SCHEMA, version=2, columns=tuple(item for item in SCHEMA.columns if item.name != "v"))


def _row(key: int) -> dict[str, object]:
    return {"id": key, "v": 0, "big": "B", "at": None}


def _reshape(pipeline: Pipeline, schema: TableSchema) -> None:
    """The schema version is in the manifest, and the stream has passed it without a row."""
    manifest = pipeline.manifest
    manifest.append(
        Table(
            schema.table_id,
            "public",
            "items",
            State.LIVE,
            1,
            lsn=manifest.lsn + 1,
            schema=schema,
            fingerprint='{"publishes": "iudt"}',
        )
    )
    manifest.append(Progress(), through_lsn=manifest.lsn + 10)


def test_a_column_added_in_silence_is_in_the_lake_when_the_table_is_called_complete(pipeline: Pipeline) -> None:
    pipeline.begin(SCHEMA, _row(1))
    pipeline.apply()
    _reshape(pipeline, WIDER)
    row = pipeline.apply().tables["16385"]
    assert (row.state, row.complete_through_lsn) == ("live", pipeline.manifest.lsn)
    assert pipeline.rows() == [{**_row(1), "n": 5}]


def test_a_column_dropped_in_silence_is_gone_from_the_lake_when_the_table_is_called_complete(
    pipeline: Pipeline,
) -> None:
    pipeline.begin(SCHEMA, _row(1))
    pipeline.apply()
    _reshape(pipeline, NARROWER)
    row = pipeline.apply().tables["16385"]
    assert (row.state, row.complete_through_lsn) == ("live", pipeline.manifest.lsn)
    assert pipeline.rows() == [{name: value for name, value in _row(1).items() if name != "v"}]


def test_a_commit_that_landed_is_ours_even_when_most_of_its_entries_are_forgotten(
    pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next attempt ends before the marker; no other applier was involved."""
    monkeypatch.setattr("sluice_spark.progress.ledger.KEPT_WHILE_WAITING", 4)
    pipeline.begin(SCHEMA, _row(1))
    pipeline.begin(OTHER, _row(1))
    pipeline.apply()
    monkeypatch.setattr("sluice_spark.lake.rows_to_commit.LOCAL_BYTES", 0)
    for key in range(2, 8):
        pipeline.manifest.transaction([Change("i", _row(key))], SCHEMA)
    pipeline.store = FailsAfterCommit(pipeline.store, lambda: None)
    with running(pipeline) as work:
        wait_until(
            lambda: bool(work.ended) or pipeline.reported()["16385"].through_seq >= pipeline.manifest.seq,
            what="all is applied",
        )
    assert work.ended == []
    assert sorted(int(str(row["id"])) for row in pipeline.rows()) == list(range(1, 8))


def test_a_boundary_says_that_a_table_made_anew_under_its_name_is_there(pipeline: Pipeline) -> None:
    pipeline.begin(SCHEMA, _row(1))
    pipeline.apply()
    pipeline.manifest.table(SCHEMA, state="detached", reason="dropped at the source", new=False)
    again = replace(SCHEMA, table_id="20000")
    pipeline.begin(again, _row(7))
    pipeline.manifest.transaction([Change("i", _row(8))], again)
    pipeline.apply()
    complete = pipeline.complete()
    assert "public.items" in complete.versions
    assert complete.left_out == {}


def test_waiting_for_a_position_that_no_table_can_reach_ends_with_an_error(pipeline: Pipeline) -> None:
    pipeline.begin(SCHEMA, _row(1))
    pipeline.manifest.transaction([Change("i", _row(2))], SCHEMA)
    pipeline.store.delete(list(pipeline.store.list(keys.segment_folder("16385")))[-1])
    with running(pipeline, until_lsn=pipeline.manifest.lsn) as work:
        wait_until(lambda: bool(work.ended), what="the applier ends", timeout=180)
    assert work.ended == ["ApplyError"]
