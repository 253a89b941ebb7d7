"""What the lake offers stays readable for the retention, and only what is gone from the offer lets go of files."""

import time
import uuid

import pytest

from sluice.contract import boundary
from sluice.contract.applied import Complete, CompletedTable, time_text
from sluice.contract.boundary import LakeBoundary
from sluice.errors import WriterFenced
from sluice.store.memory import MemoryStore
from sluice_lake.boundary import decoded, key_of, number_in
from sluice_spark.progress.reports import Reports
from tests.support.offers import offers

HOUR = 3600.0


class Clock:
    now = 1_800_000_000.0

    def __call__(self) -> float:
        return self.now


def _complete(number: int, *, lsn: int = 0, time_us: int = 0) -> Complete:
    table = CompletedTable("public", "t", "public/t", 7, "16385/1", 5)
    left_out = {"public.other": "stale"}
    return Complete(
        number, lsn or number, 9, "", {"public.t": 7}, left_out, {"public.t": "public/t"}, (table,), time_us
    )


def _offered(files: MemoryStore) -> list[int]:
    return [boundary.number_of(key) for key in files.list(boundary.folder("shop"))]


def test_readers_read_what_the_applier_states() -> None:
    files, clock = MemoryStore(uuid.uuid4().hex, prefix=""), Clock()
    assert offers(files, clock=clock).publish(
        _complete(1234, lsn=1 << 33, time_us=1_750_000_000_000_000), current_at=1.0
    )
    (key,) = files.list(boundary.folder("shop"))
    assert (key, number_in(key)) == (key_of("shop", 1234), 1234)
    stated, read = LakeBoundary.decode(files.get(key)), decoded(files.get(key))
    (mine,), (theirs,) = stated.tables, read.tables
    assert (mine.schema, mine.table, mine.path, mine.version) == ("public", "t", "public/t", 7)
    assert theirs.marker == mine.marker == "sluice/shop/16385/1/a manifest"
    assert (theirs.name, theirs.version, theirs.marker_version) == ("public.t", 7, 5)
    assert (read.lsn, read.pipeline, read.manifest, read.left_out) == (1 << 33, "shop", "a manifest", stated.left_out)
    assert (read.time.timestamp(), read.published_at.timestamp()) == (1_750_000_000.0, clock.now)
    assert read.retention.total_seconds() == HOUR


def test_a_boundary_expires_the_retention_after_the_next_one_was_published() -> None:
    files, clock = MemoryStore(uuid.uuid4().hex, prefix=""), Clock()
    made = offers(files, clock=clock)
    for number in (1, 2, 3):
        made.publish(_complete(number), current_at=clock.now)
        clock.now += HOUR / 2
    clock.now -= 1.0
    made.expire()
    assert _offered(files) == [1, 2, 3], "2 was published less than an hour ago"
    clock.now += 1.0
    made.expire()
    assert _offered(files) == [2, 3]
    clock.now += 10 * HOUR
    made.expire()
    assert _offered(files) == [3], "the newest one stays"


def test_what_an_offered_boundary_needs_is_held_until_the_offer_is_gone() -> None:
    files, clock = MemoryStore(uuid.uuid4().hex, prefix=""), Clock()
    made = offers(files, clock=clock)
    assert made.held_since == float("inf")
    began = clock.now
    made.publish(_complete(1), current_at=began - 3 * HOUR)
    clock.now += HOUR
    made.publish(_complete(2), current_at=clock.now)
    assert made.held_since <= began - 3 * HOUR
    assert offers(files, clock=clock).held_since == made.held_since, "the next process knows"
    clock.now += HOUR
    made.expire()
    assert began < made.held_since <= began + HOUR
    made.still_current(clock.now)
    assert made.held_since > began + HOUR


def test_what_boundaries_need_is_held_when_the_clock_was_set_back_until_they_are_gone() -> None:
    """A file that is replaced then has an earlier time than the boundaries that need it."""
    files, clock = MemoryStore(uuid.uuid4().hex, prefix=""), Clock()
    made = offers(files, clock=clock)
    for number in (1, 2, 3):
        made.publish(_complete(number), current_at=clock.now)
        clock.now += HOUR
    clock.now -= 10 * HOUR
    replaced_at = clock.now + 1
    for number in (4, 5, 6):
        clock.now += 2
        made.publish(_complete(number), current_at=clock.now)
        assert made.held_since < replaced_at
    clock.now += 20 * HOUR
    for _ in range(10):
        made.expire()
    assert _offered(files) == [6]
    made.still_current(clock.now)
    assert made.held_since > replaced_at + HOUR


def test_times_that_differ_by_little_hold_nothing_longer_than_the_boundaries_are_offered() -> None:
    """What is current is known a moment later than the next boundary says: nobody set a clock back."""
    files, clock = MemoryStore(uuid.uuid4().hex, prefix=""), Clock()
    made, began = offers(files, clock=clock), clock.now
    for number in range(1, 200):
        made.publish(_complete(number), current_at=clock.now - 0.2)
        made.still_current(clock.now)
        clock.now += HOUR / 20
        made.still_current(clock.now + 0.1)
        made.expire()
    assert made.held_since > began + 8 * HOUR


def test_a_boundary_that_somebody_removed_by_hand_lets_go_of_nothing() -> None:
    files, clock = MemoryStore(uuid.uuid4().hex, prefix=""), Clock()
    made, began = offers(files, clock=clock), clock.now
    for number in (1, 2, 3, 4):
        made.publish(_complete(number), current_at=clock.now)
        clock.now += HOUR / 3
    files.delete(key_of("shop", 2))
    again = offers(files, clock=clock)
    clock.now += HOUR / 3
    again.expire()
    assert _offered(files) == [3, 4]
    assert again.held_since <= began + HOUR


def test_an_lsn_of_the_same_manifest_never_falls_and_that_of_another_one_may() -> None:
    files = MemoryStore(uuid.uuid4().hex, prefix="")
    assert offers(files).publish(_complete(1, lsn=50), current_at=0.0)
    again = offers(files)
    assert not again.publish(_complete(2, lsn=49), current_at=0.0)
    assert again.publish(_complete(2, lsn=50), current_at=0.0)
    begun_again = offers(files, manifest="another manifest")
    assert begun_again.publish(_complete(3, lsn=7), current_at=0.0)
    assert _offered(files) == [1, 2, 3]


def test_a_manifest_that_begins_takes_back_the_positions_of_the_one_before() -> None:
    """Those of another server may be greater: a wait for one of the new server must not end by the old one."""
    files, spool = (MemoryStore(uuid.uuid4().hex, prefix="") for _ in range(2))
    offers(files).publish(_complete(1, lsn=5000), current_at=0.0)
    same = Reports(spool, instance="test", offers=offers(files))
    same.begin(seq=1)
    assert _offered(files) == [1], "the same manifest goes on"
    reports = Reports(spool, instance="test", offers=offers(files, manifest="another manifest"))
    reports.begin(seq=0)
    assert _offered(files) == [1], "there is no entry yet"
    reports.begin(seq=1)
    newest = LakeBoundary.decode(files.get(boundary.key("shop", 2)))
    assert (newest.lsn, newest.tables, newest.manifest) == ("0/0", (), "another manifest")
    reports.complete(_complete(0, lsn=7), time.monotonic())
    assert _offered(files) == [1, 2, 3]


def test_times_of_one_manifest_never_fall() -> None:
    files = MemoryStore(uuid.uuid4().hex, prefix="")
    made = offers(files)
    for number, time_us in ((1, 5_000_000), (2, 3_000_000)):
        made.publish(_complete(number, time_us=time_us), current_at=0.0)
    newest = LakeBoundary.decode(files.get(boundary.key("shop", 2)))
    assert newest.time == time_text(5.0)


def test_an_applier_that_was_replaced_does_not_publish_over_its_successor() -> None:
    files = MemoryStore(uuid.uuid4().hex, prefix="")
    before, after = offers(files), offers(files)
    after.publish(_complete(1, lsn=50), current_at=0.0)
    with pytest.raises(WriterFenced):
        before.publish(_complete(1, lsn=40), current_at=0.0)


def test_a_boundary_that_somebody_removed_holds_nothing() -> None:
    files, clock = MemoryStore(uuid.uuid4().hex, prefix=""), Clock()
    made = offers(files, clock=clock)
    for number in (1, 2, 3):
        made.publish(_complete(number), current_at=clock.now - HOUR)
    again = offers(files, clock=clock)
    files.delete(boundary.key("shop", 2))
    clock.now += HOUR
    again.expire()
    assert _offered(files) == [3]


def test_what_a_boundary_needs_is_held_though_the_next_one_stayed_current_long_after_it() -> None:
    files, clock = MemoryStore(uuid.uuid4().hex, prefix=""), Clock()
    made = offers(files, clock=clock, retention_seconds=24 * HOUR)
    made.publish(_complete(1), current_at=clock.now)
    clock.now -= 10 * HOUR
    made.publish(_complete(2), current_at=clock.now)
    replaced_at = clock.now
    # Set in the same round of the loop: no later than the one before.
    made.publish(_complete(3), current_at=clock.now)
    clock.now += 5 * HOUR
    made.still_current(clock.now)
    assert _offered(files) == [1, 2, 3]
    assert made.held_since <= replaced_at


def test_a_boundary_is_offered_its_time_though_somebody_removed_the_next_one() -> None:
    files, clock = MemoryStore(uuid.uuid4().hex, prefix=""), Clock()
    made = offers(files, clock=clock)
    for number in (1, 2, 3):
        made.publish(_complete(number), current_at=clock.now)
    again = offers(files, clock=clock)
    files.delete(boundary.key("shop", 2))
    clock.now += HOUR / 2
    again.expire()
    assert _offered(files) == [1, 3]
    clock.now += HOUR / 2
    again.expire()
    assert _offered(files) == [3]
