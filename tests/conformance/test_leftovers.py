"""What older writers left behind goes; what any entry names, and what a living writer may yet publish, stays."""

import threading
import time
import uuid
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sluice.contract import keys
from sluice.contract.control import REPAIR, REPAIR_KEPT_SECONDS, REPAIR_READ_SECONDS, Request
from sluice.contract.entries import BodyCommit, Changes, Commits, Prepared, PreparedEnd, PreparedPart, Repair, Snapshot
from sluice.errors import ManifestCorrupt, StoreRefused
from sluice.manifest import leftovers, reader
from sluice.manifest.leftovers import collect
from sluice.manifest.writer import ManifestLog
from sluice.store.base import ObjectStore
from sluice.store.memory import MemoryStore
from sluice.store.probe import ABANDONED_SECONDS
from tests.support.extent import FULL
from tests.support.manifests import changes, open_log, put, schema, segment, table


def naming(log: ManifestLog, *names: str, lsn: int) -> None:
    """An entry that names these objects, bodies and segments alike."""
    parts = [
        replace(segment(first_lsn=lsn), key=name, body=BodyCommit(lsn, 1, 7) if name.startswith("stage/") else None)
        for name in names
    ]
    put(log, Changes(tuple(parts), Commits([lsn], [1], [7])), through_lsn=lsn)


def run(store: ObjectStore, log: ManifestLog, *, stop: threading.Event | None = None) -> int:
    return collect(
        store, opened_seq=log.state.seq, epoch=log.state.epoch, table_ids=["7", "8"], stop=stop or threading.Event()
    )


def objects(store: ObjectStore) -> set[str]:
    return {key for key in store.list("") if not key.startswith("manifest/")}


def fill(store: ObjectStore, *names: str) -> None:
    for name in names:
        store.put(name, b"x")


def test_what_no_entry_names_goes_and_everything_else_stays(store: ObjectStore) -> None:
    first = open_log(store)
    first.append(table("7"))
    first.append(table("8"))
    kept = [keys.staged(1, 700, 1), keys.segment("7", 1, 2), keys.segment("8", 1, 3)]
    left = [keys.staged(1, 700, 4), keys.staged(1, 701, 5), keys.segment("7", 1, 6), keys.segment("8", 1, 70)]
    foreign = ["stage/notes.txt", "data/7/other.parquet", "control/1.json", "apply/log/0000000000000001.json"]
    fill(store, *kept, *left, *foreign)
    naming(first, *kept, lsn=20)
    second = open_log(store)
    own = [keys.staged(2, 900, 1), keys.segment("7", 2, 2)]
    newer = [keys.staged(3, 900, 1), keys.segment("7", 3, 2)]
    fill(store, *own, *newer)
    assert run(store, second) == len(left)
    assert objects(store) == {*kept, *foreign, *own, *newer}
    assert run(store, second) == 0


def test_objects_of_a_probe_that_ended_in_the_middle_go_once_no_probe_can_be_as_old(store: ObjectStore) -> None:
    def tried(age_seconds: float) -> str:
        return keys.probe_folder(time.time_ns() - int(age_seconds * 1e9), uuid.uuid4().hex) + "once"

    under_way, died = tried(ABANDONED_SECONDS - 60), tried(ABANDONED_SECONDS + 60)
    fill(store, under_way, died, "probe/notes.txt")
    assert run(store, open_log(store)) == 1
    assert objects(store) == {under_way, "probe/notes.txt"}


def test_rows_of_a_repair_go_when_nobody_asks_for_them_and_nobody_can_any_more(store: ObjectStore) -> None:
    def rows(age_seconds: float) -> str:
        token = keys.repair_token(time.time_ns() - int(age_seconds * 1e9), uuid.uuid4().hex)
        return keys.repair_rows(token, 0)

    assert REPAIR_READ_SECONDS < REPAIR_KEPT_SECONDS
    kept = REPAIR_KEPT_SECONDS
    under_way, asked, died = rows(kept - 60), rows(kept + 60), rows(30 * kept)
    fill(store, under_way, asked, died, "repair/notes.txt")
    repair = Repair("7", 1, 1, 10, 10, (replace(segment(first_lsn=10), key=asked),), 4)
    request = Request(REPAIR, "public", "t7", "2030-01-01T00:00:00+00:00", repair=repair)
    odd, waiting = keys.control_request("odd"), keys.control_request("waiting")
    store.put(waiting, request.encode())
    fill(store, odd)
    log = open_log(store)
    assert run(store, log) == 0, "what an object asks for that cannot be read is not known"
    store.delete(odd)
    assert run(store, log) == 1
    assert objects(store) == {under_way, asked, "repair/notes.txt", waiting}
    store.delete(waiting)
    assert run(store, log) == 1
    assert objects(store) == {under_way, "repair/notes.txt"}


def test_a_snapshot_keeps_its_segments(store: ObjectStore) -> None:
    first = open_log(store)
    first.append(table("7"))
    mine = keys.segment("7", 1, 1)
    fill(store, mine, keys.segment("7", 1, 2))
    first.append(Snapshot("7", 1, 1, 10, (replace(segment(first_lsn=10), key=mine),), final=True))
    run(store, open_log(store))
    assert objects(store) == {mine}


def test_the_rows_of_a_prepared_transaction_stay_before_and_after_its_commit(store: ObjectStore) -> None:
    first = open_log(store)
    first.append(table("7"))
    prepared = keys.staged(1, 700, 1)
    fill(store, prepared, keys.staged(1, 701, 2))
    part = PreparedPart(schema(), replace(segment(first_lsn=0), key=prepared))
    put(first, Changes((), Commits(), prepared=(Prepared("g", 700, 20, 1, 3, (part,)),)), through_lsn=20)
    second = open_log(store)
    run(store, second)
    assert objects(store) == {prepared}
    body = replace(segment(first_lsn=30), key=prepared, body=BodyCommit(30, 1, 700))
    put(second, Changes((body,), Commits([30], [1], [700]), ended=(PreparedEnd("g", 20, "committed"),)), through_lsn=30)
    run(store, open_log(store))
    assert objects(store) == {prepared}


def test_an_object_that_a_later_epoch_names_stays(store: ObjectStore) -> None:
    first = open_log(store)
    first.append(table("7"))
    named = keys.staged(1, 700, 1)
    fill(store, named)
    naming(open_log(store), named, lsn=30)
    run(store, open_log(store))
    assert objects(store) == {named}


def test_an_older_writer_that_still_uploads_is_cleaned_up_after_next_time(store: ObjectStore) -> None:
    open_log(store).append(table("7"))
    second = open_log(store)
    assert run(store, second) == 0
    late = keys.segment("7", 1, 9)
    fill(store, late)
    third = open_log(store)
    assert run(store, third) == 1
    assert objects(store) == set()


def test_a_stop_leaves_the_rest_for_the_next_start(store: ObjectStore) -> None:
    open_log(store).append(table("7"))
    fill(store, keys.staged(1, 700, 4))
    stopped = threading.Event()
    stopped.set()
    assert run(store, open_log(store), stop=stopped) == 0
    assert len(objects(store)) == 1


def test_nothing_goes_while_an_earlier_entry_is_missing(store: ObjectStore) -> None:
    first = open_log(store)
    first.append(table("7"))
    named = keys.segment("7", 1, 1)
    fill(store, named)
    naming(first, named, lsn=20)
    second = open_log(store)
    store.delete(keys.manifest_entry(3))
    with pytest.raises(ManifestCorrupt):
        run(store, second)
    assert objects(store) == {named}


def test_a_store_that_lets_nobody_delete_is_an_error_and_loses_nothing() -> None:
    class WriteOnce(MemoryStore):
        def delete(self, key: str) -> None:
            raise StoreRefused(f"delete of {key} is denied")

    store = WriteOnce(uuid.uuid4().hex)
    open_log(store).append(table("7"))
    fill(store, keys.staged(1, 700, 4))
    with pytest.raises(StoreRefused):
        run(store, open_log(store))


def test_epochs_that_were_cut_off_by_the_look_back_are_left_alone(
    store: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reader, "BACKWARDS", 2)
    monkeypatch.setattr(leftovers, "LOOK_BACK_ENTRIES", 3)
    first = open_log(store)
    first.append(table("7"))
    named, forgotten = keys.segment("7", 1, 1), keys.segment("7", 1, 2)
    fill(store, named, forgotten)
    naming(first, named, lsn=20)
    second = open_log(store)
    for lsn in (30, 40, 50, 60):
        put(second, changes(lsn), through_lsn=lsn)
    fill(store, keys.segment("7", 2, 5))
    third = open_log(store)
    assert run(store, third) == 1
    assert objects(store) == {named, forgotten}


@settings(max_examples=60 if FULL else 30, deadline=None)
@given(
    st.lists(
        st.lists(st.tuples(st.booleans(), st.booleans(), st.sampled_from("78")), max_size=6), min_size=1, max_size=4
    )
)
def test_whatever_epochs_there_were_only_named_objects_of_ended_ones_are_left(
    epochs: list[list[tuple[bool, bool, str]]],
) -> None:
    """Each writer stores objects, some as bodies, and names some of them."""
    store = MemoryStore(uuid.uuid4().hex)
    log = open_log(store)
    log.append(table("7"))
    log.append(table("8"))
    expected: set[str] = set()
    for written in epochs:
        epoch = log.state.epoch
        for counter, (staged, published, table_id) in enumerate(written, 1):
            key = keys.staged(epoch, 700, counter) if staged else keys.segment(table_id, epoch, counter)
            fill(store, key)
            if published:
                naming(log, key, lsn=log.state.through_lsn + 10)
                expected.add(key)
        log = open_log(store)
    run(store, log)
    assert objects(store) == expected
