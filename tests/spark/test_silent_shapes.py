"""Schema versions without rows, commits that landed before an error, and positions that no table
can reach: what the lake holds, and what is said of it.
"""

from dataclasses import replace

import pytest

from sluice.contract import keys
from sluice.contract.entries import Table
from sluice.contract.schema import TableSchema
from sluice.contract.table_state import State
from tests.spark.changes import FACTS, INT4, Change, column
from tests.spark.conftest import Pipeline, running
from tests.spark.model import ID, SCHEMA, named, row
from tests.spark.test_failing_windows import FailsAfterCommit
from tests.support.extent import slow

WIDER = replace(SCHEMA, version=2, columns=(*SCHEMA.columns, column("n", 6, INT4, missing="5")))
NARROWER = replace(SCHEMA, version=2, columns=tuple(item for item in SCHEMA.columns if item.name != "v"))
WITHOUT_V = {name: value for name, value in row(1).items() if name != "v"}


def _is_reshaped_in_silence(pipeline: Pipeline, schema: TableSchema, expected: dict[str, object]) -> None:
    """The schema version is in the manifest, and the stream has passed it without a row."""
    pipeline.begin(SCHEMA, row(1))
    pipeline.apply()
    manifest, at = pipeline.manifest, pipeline.manifest.lsn + 1
    manifest.append(Table(ID, "public", "items", State.LIVE, 1, lsn=at, schema=schema, fingerprint=FACTS))
    pipeline.progress(10)
    assert pipeline.applied().complete_through_lsn == pipeline.manifest.lsn
    assert pipeline.rows() == [expected]


@slow
def test_a_column_added_in_silence_is_in_the_lake_when_the_table_is_called_complete(pipeline: Pipeline) -> None:
    _is_reshaped_in_silence(pipeline, WIDER, row(1, n=5))


def test_a_column_dropped_in_silence_is_gone_from_the_lake_when_the_table_is_called_complete(
    pipeline: Pipeline,
) -> None:
    _is_reshaped_in_silence(pipeline, NARROWER, WITHOUT_V)


@slow
def test_a_commit_that_landed_is_ours_even_when_most_of_its_entries_are_forgotten(
    pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next attempt ends before the marker; no other applier was involved."""
    monkeypatch.setattr("sluice_spark.progress.ledger.KEPT_WHILE_WAITING", 4)
    pipeline.begin(named("other"), row(1))
    pipeline.begin(SCHEMA, row(1))
    pipeline.apply()
    monkeypatch.setattr("sluice_spark.lake.rows_to_commit.LOCAL_BYTES", 0)
    for key in range(2, 8):
        pipeline.change(Change("i", row(key)))
    pipeline.store = FailsAfterCommit(pipeline.store, lambda: None)
    with running(pipeline) as work:
        work.takes(pipeline.manifest.seq)
    assert pipeline.keys() == list(range(1, 8))


@slow
def test_a_boundary_says_that_a_table_made_anew_under_its_name_is_there(pipeline: Pipeline) -> None:
    pipeline.begin(SCHEMA, row(1))
    pipeline.apply()
    pipeline.manifest.table(SCHEMA, state="detached", reason="dropped at the source", new=False)
    pipeline.begin(replace(SCHEMA, table_id="20000"), row(7))
    pipeline.change(Change("i", row(8)))
    pipeline.apply()
    complete = pipeline.complete()
    assert "public.items" in complete.versions
    assert complete.left_out == {}


def test_waiting_for_a_position_that_no_table_can_reach_ends_with_an_error(pipeline: Pipeline) -> None:
    pipeline.begin(SCHEMA, row(1))
    pipeline.change(Change("i", row(2)))
    pipeline.store.delete(list(pipeline.store.list(keys.segment_folder(ID)))[-1])
    with running(pipeline, ends="ApplyError", until_lsn=pipeline.manifest.lsn) as work:
        work.until(lambda: work.ended, what="the applier ends")
