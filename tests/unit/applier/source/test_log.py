"""What stands in front of a stream of changes is named, and never passed by."""

from dataclasses import replace
from pathlib import Path

import pytest

from sluice.contract.entries import Lost
from sluice.contract.table_state import State
from sluice.errors import UnsupportedChange, UsageError
from sluice.manifest.reader import load_state
from sluice.store.base import ObjectStore
from sluice.store.opening import open_store
from sluice_spark.source import log
from sluice_spark.source.rows import STATE, Part
from sluice_spark.spool import StorePrefix
from tests.spark.changes import INT8, TEXT, Change, Manifest, column, table_schema
from tests.support.manifests import opened

SCHEMA = table_schema(column("id", 1, INT8, key=True), column("v", 2, TEXT))
OTHER_KEY = table_schema(column("id", 1, INT8), column("v", 2, TEXT, key=True), version=2)
NAME = "public.items"


@pytest.fixture
def store(tmp_path: Path) -> ObjectStore:
    return open_store(tmp_path.as_uri(), options={})


def _live(store: ObjectStore, *, origin: str = "any") -> Manifest:
    manifest = Manifest(store, origin=origin)
    manifest.table(SCHEMA)
    manifest.snapshot([{"id": 1, "v": "a"}], SCHEMA)
    _change(manifest)
    return manifest


def _change(manifest: Manifest) -> int:
    return manifest.transaction([Change("u", {"id": 1, "v": "b"})], SCHEMA)


def _open_again(manifest: Manifest, *, lost: Lost | None = None) -> int:
    manifest.epoch += 1
    return manifest.append(
        opened(server_version=180006, start_lsn=100, lost=lost), through_lsn=manifest.lsn + 10 if lost else None
    )


def _read_on(store: ObjectStore, after: log.Place, name: str = NAME) -> tuple[log.Place, list[Part]]:
    state = load_state(store)
    one, spool = log.subject(state, name), StorePrefix("file:///", "", ())
    last = log.further(store, one, after=after, last_seq=state.seq, most=1000)
    return last, log.parts(store, one, spool, after=after, last=last)


def test_a_stream_ends_where_the_table_turned_stale_with_a_new_epoch(store: ObjectStore) -> None:
    manifest = _live(store, origin="none")
    begun = log.place_at(store, log.followed(load_state(store), NAME).first_seq)
    end = manifest.seq
    _open_again(manifest)
    _change(manifest)
    reached, parts = _read_on(store, begun)
    assert (reached.seq, len(parts)) == (end, 2)
    with pytest.raises(UnsupportedChange, match="what replication brought to the source meanwhile was not sent"):
        _read_on(store, reached)


def test_who_reads_all_tables_learns_which_turned_stale_with_a_new_epoch(store: ObjectStore) -> None:
    manifest = _live(store, origin="none")
    end = log.end_of(load_state(store))
    _open_again(manifest)
    reached, (said,) = _read_on(store, end, log.ALL)
    assert (said.how, said.names, '"state": "stale"' in said.said) == (STATE, ("public", "items"), True)
    _change(manifest)
    assert [part.how for part in _read_on(store, reached, log.ALL)[1]] == [""]


def test_a_stream_says_how_to_get_past_changes_that_were_lost(store: ObjectStore) -> None:
    manifest = _live(store)
    end = log.end_of(load_state(store))
    _open_again(manifest, lost=Lost("the slot was lost", (SCHEMA.table_id,)))
    assert load_state(store).tables[SCHEMA.table_id].state == State.GAP
    with pytest.raises(UnsupportedChange, match="begin behind them, with startingPosition=latest"):
        _read_on(store, end)
    behind = log.end_of(load_state(store))
    _change(manifest)
    assert len(_read_on(store, behind)[1]) == 1


def test_a_table_that_came_later_lost_nothing_with_the_slot(store: ObjectStore) -> None:
    manifest = _live(store)
    end = log.end_of(load_state(store))
    _open_again(manifest, lost=Lost("the slot was lost"))
    through = load_state(store)
    later = replace(SCHEMA, table_id="16386", table_name="later")
    manifest.table(later)
    one, spool = log.subject(load_state(store), log.ALL), StorePrefix("file:///", "", ())
    (said,) = log.parts(store, one, spool, after=end, last=log.end_of(through))
    assert said.names == ("public", "items")


def test_a_name_that_two_tables_have_means_neither(store: ObjectStore) -> None:
    """Names with dots are not quoted."""
    manifest = Manifest(store)
    for table_id, schema, table in (("1", "a", "b.c"), ("2", "a.b", "c")):
        manifest.table(replace(SCHEMA, table_id=table_id, schema_name=schema, table_name=table))
    with pytest.raises(UsageError, match="may be more than one table"):
        log.followed(load_state(store), "a.b.c")


@pytest.mark.parametrize("moved", [True, False])
def test_a_stream_in_the_columns_of_another_key_has_no_row_that_moved_under_the_key_before(
    store: ObjectStore, moved: bool
) -> None:
    manifest = _live(store)
    begun = log.end_of(load_state(store))
    old = {"id": 1} if moved else None
    manifest.transaction([Change("u", {"id": 2 if moved else 1, "v": "b"}, old=old)], SCHEMA)
    manifest.table(OTHER_KEY, state="live")
    if not moved:
        assert len(_read_on(store, begun)[1]) == 1
        return
    with pytest.raises(UnsupportedChange, match="is of its key no more"):
        _read_on(store, begun)


def test_a_stream_that_waits_for_a_snapshot_is_told_what_stands_in_front_of_its_end(store: ObjectStore) -> None:
    manifest = Manifest(store)
    manifest.table(SCHEMA)
    manifest.chunk([{"id": 1, "v": "a"}], SCHEMA, (0, 1))
    begun = log.place_at(store, log.followed(load_state(store), NAME).first_seq)
    assert _read_on(store, begun) == (begun, [])
    _open_again(manifest, lost=Lost("the slot was lost"))
    with pytest.raises(UnsupportedChange, match="were lost with the slot"):
        _read_on(store, begun)
