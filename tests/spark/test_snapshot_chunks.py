"""A snapshot that was read in chunks at different moments is one commit of the lake: readers see the table
as it was, or whole.
"""

import pytest
from deltalake import DeltaTable

from sluice.contract.chunks import ENDLESS, BlockRange
from sluice.contract.entries import Segment, Snapshot
from sluice.errors import ManifestCorrupt
from tests.spark.changes import INT4, INT8, TEXT, Change, column, table_schema
from tests.spark.conftest import Pipeline
from tests.spark.windows import Windows
from tests.support.extent import slow

SCHEMA = table_schema(column("id", 1, INT8, key=True), column("v", 2, INT4), column("t", 3, TEXT))
FACTS = '{"publishes": "iudt"}'


def _row(key: int, v: int) -> dict[str, object]:
    return {"id": key, "v": v, "t": f"row {key}"}


def _chunk(pipeline: Pipeline, rows: list[dict[str, object]], blocks: tuple[int, int], *, generation: int) -> Segment:
    manifest = pipeline.manifest
    changes = [Change("i", row, lsn=manifest.lsn, ordinal=place) for place, row in enumerate(rows)]
    segment = manifest.segment(changes, SCHEMA)
    manifest.append(
        Snapshot(
            "16385",
            generation,
            1,
            manifest.lsn,
            (segment,),
            final=False,
            relfilenode=1,
            fingerprint=FACTS,
            relations=("1",) if blocks[0] == 0 else (),
            ranges=(BlockRange("1", *blocks),),
        )
    )
    return segment


def _end(pipeline: Pipeline, *, generation: int, lsn: int) -> None:
    pipeline.manifest.append(
        Snapshot("16385", generation, 1, lsn, (), final=True, relfilenode=1, fingerprint=FACTS),
    )


def _read_in_chunks(pipeline: Pipeline, *, generation: int) -> None:
    """Row 1 is in both chunks, row 4 in none, row 2 was deleted, row 5 came, row 3 has another key."""
    manifest = pipeline.manifest
    _chunk(pipeline, [_row(1, 1), _row(2, 1), _row(3, 1)], (0, 8), generation=generation)
    manifest.transaction([Change("u", _row(1, 2)), Change("u", _row(4, 2)), Change("d", {}, old={"id": 2})], SCHEMA)
    manifest.transaction([Change("i", _row(5, 1)), Change("u", _row(30, 2), old={"id": 3})], SCHEMA)
    _chunk(pipeline, [_row(1, 2), _row(6, 1)], (8, ENDLESS), generation=generation)
    moment = manifest.lsn
    manifest.transaction([Change("u", _row(6, 3))], SCHEMA)
    pipeline.apply()
    _end(pipeline, generation=generation, lsn=moment)


WHOLE = {1: 2, 4: 2, 5: 1, 6: 3, 30: 2}


@slow
def test_chunks_and_the_changes_between_them_are_one_commit(pipeline: Pipeline) -> None:
    pipeline.manifest.table(SCHEMA)
    _read_in_chunks(pipeline, generation=1)
    assert not DeltaTable.is_deltatable(str(pipeline.path())), "a table that is not whole can be read"
    pipeline.apply()
    assert {row["id"]: row["v"] for row in pipeline.rows()} == WHOLE
    # A later window goes on behind the last moment.
    pipeline.manifest.transaction([Change("d", {}, old={"id": 30})], SCHEMA)
    pipeline.apply()
    assert {row["id"] for row in pipeline.rows()} == {1, 4, 5, 6}


@slow
def test_a_resync_in_chunks_takes_the_place_of_the_table_in_one_commit(pipeline: Pipeline) -> None:
    pipeline.begin(SCHEMA, _row(100, 1), _row(1, 0))
    pipeline.apply()
    before = DeltaTable(pipeline.path()).version()
    pipeline.manifest.table(SCHEMA, generation=2, new=False)
    _read_in_chunks(pipeline, generation=2)
    assert {row["id"] for row in pipeline.rows()} == {100, 1}
    pipeline.apply()
    assert {row["id"]: row["v"] for row in pipeline.rows()} == WHOLE
    assert DeltaTable(pipeline.path()).version() == before + 2, "the snapshot, and the change behind it"


def test_a_chunk_that_is_not_what_the_manifest_describes_is_named_and_commits_nothing(pipeline: Pipeline) -> None:
    pipeline.manifest.table(SCHEMA)
    segment = _chunk(pipeline, [_row(1, 1)], (0, 8), generation=1)
    pipeline.manifest.transaction([Change("u", _row(1, 2))], SCHEMA)
    _chunk(pipeline, [_row(6, 1)], (8, ENDLESS), generation=1)
    _end(pipeline, generation=1, lsn=pipeline.manifest.lsn)
    pipeline.store.put(segment.key, b"other bytes")
    with pytest.raises(ManifestCorrupt, match=segment.key):
        Windows(pipeline).apply()
    assert not DeltaTable.is_deltatable(str(pipeline.path()))
