"""What the lake offers stays readable for the retention, and only what is gone from the offer lets go of files."""

import time
import uuid
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

import sluice_lake
from sluice import faults
from sluice.contract import boundary
from sluice.contract.applied import Complete, CompletedTable, time_text
from sluice.contract.boundary import LakeBoundary
from sluice.errors import StoreUnavailable, WriterFenced
from sluice.store.local import LocalStore
from sluice.store.memory import MemoryStore
from sluice_lake.boundary import decoded, key_of, number_in
from sluice_spark.progress.offers import Offers
from tests.support.offers import fenced, offers, reports

HOUR = 3600.0


class Lake:
    """One of memory, in which an applier publishes boundaries at `now`."""

    def __init__(self) -> None:
        self.now = 1_800_000_000.0
        self.files = MemoryStore(uuid.uuid4().hex, prefix="")
        self.made = self.opened()

    def opened(self, **options: Any) -> Offers:
        return offers(self.files, clock=lambda: self.now, **options)

    def publish(self, *numbers: int, apart: float = 0.0) -> None:
        """Each is current when it is published; so much time passes behind it."""
        for number in numbers:
            self.made.publish(_complete(number), current_at=self.now)
            self.now += apart

    def offered(self, *, expired: bool = False) -> list[int]:
        """Numbers of the boundaries, once those were removed whose time was over if they are `expired`."""
        if expired:
            self.made.expire()
        return [boundary.number_of(key) for key in self.files.list(boundary.folder("shop"))]


@pytest.fixture
def lake() -> Iterator[Lake]:
    yield Lake()
    faults.arm("")


def _complete(number: int, *, lsn: int = 0, time_us: int = 0, reached_us: int = 0) -> Complete:
    table = CompletedTable("public", "t", "public/t", 7, "16385/1", 5)
    left_out = {"public.other": "stale"}
    return Complete(
        *(number, lsn or number, 9, "", {"public.t": 7}, left_out, {"public.t": "public/t"}, (table,)),
        time_us=time_us,
        reached_us=reached_us,
    )


def test_readers_read_what_the_applier_states(lake: Lake) -> None:
    lake.made.publish(_complete(1234, lsn=1 << 33, time_us=1_750_000_000_000_000), current_at=1.0)
    (key,) = lake.files.list(boundary.folder("shop"))
    assert (key, number_in(key)) == (key_of("shop", 1234), 1234)
    stated, read = LakeBoundary.decode(lake.files.get(key)), decoded(lake.files.get(key))
    (mine,), (theirs,) = stated.tables, read.tables
    assert (mine.schema, mine.table, mine.path, mine.version) == ("public", "t", "public/t", 7)
    assert theirs.marker == mine.marker == "sluice/shop/16385/1/a manifest"
    assert (theirs.name, theirs.version, theirs.marker_version) == ("public.t", 7, 5)
    assert (read.lsn, read.pipeline, read.manifest, read.left_out) == (1 << 33, "shop", "a manifest", stated.left_out)
    assert (read.time.timestamp(), read.published_at.timestamp()) == (1_750_000_000.0, lake.now)
    assert read.retention.total_seconds() == HOUR


def test_a_boundary_expires_the_retention_after_the_next_one_was_published(lake: Lake) -> None:
    lake.publish(1, 2, 3, apart=HOUR / 2)
    lake.now -= 1.0
    assert lake.offered(expired=True) == [1, 2, 3], "2 was published less than an hour ago"
    lake.now += 1.0
    assert lake.offered(expired=True) == [2, 3]
    lake.now += 10 * HOUR
    assert lake.offered(expired=True) == [3], "the newest one stays"


def test_what_an_offered_boundary_needs_is_held_until_the_offer_is_gone(lake: Lake) -> None:
    made, began = lake.made, lake.now
    assert made.held_since == float("inf")
    made.publish(_complete(1), current_at=began - 3 * HOUR)
    lake.now += HOUR
    lake.publish(2)
    assert made.held_since <= began - 3 * HOUR
    assert lake.opened().held_since == made.held_since, "the next process knows"
    lake.now += HOUR
    made.expire()
    assert began < made.held_since <= began + HOUR
    made.still_current(lake.now)
    assert made.held_since > began + HOUR


def test_what_boundaries_need_is_held_when_the_clock_was_set_back_until_they_are_gone(lake: Lake) -> None:
    """A file that is replaced then has an earlier time than the boundaries that need it."""
    lake.publish(1, 2, 3, apart=HOUR)
    lake.now -= 10 * HOUR
    replaced_at = lake.now + 1
    for number in (4, 5, 6):
        lake.now += 2
        lake.publish(number)
        assert lake.made.held_since < replaced_at
    lake.now += 20 * HOUR
    for _ in range(9):
        lake.made.expire()
    assert lake.offered(expired=True) == [6]
    lake.made.still_current(lake.now)
    assert lake.made.held_since > replaced_at + HOUR


def test_times_that_differ_by_little_hold_nothing_longer_than_the_boundaries_are_offered(lake: Lake) -> None:
    """What is current is known a moment later than the next boundary says: nobody set a clock back."""
    made, began = lake.made, lake.now
    for number in range(1, 200):
        made.publish(_complete(number), current_at=lake.now - 0.2)
        made.still_current(lake.now)
        lake.now += HOUR / 20
        made.still_current(lake.now + 0.1)
        made.expire()
    assert made.held_since > began + 8 * HOUR


def test_a_boundary_that_somebody_removed_by_hand_lets_go_of_nothing(lake: Lake) -> None:
    """Whether who removes what has expired published it, saw it or knows nothing of it."""
    began = lake.now
    lake.publish(1, 2, 3, 4, apart=HOUR / 3)
    saw_it = lake.opened()
    lake.files.delete(key_of("shop", 2))
    lake.now += HOUR / 3
    for one in (saw_it, lake.opened(), lake.made):
        one.expire()
        assert lake.offered() == [3, 4]
        assert one.held_since <= began + HOUR


def test_an_lsn_of_the_same_manifest_never_falls_and_that_of_another_one_may(lake: Lake) -> None:
    assert lake.made.publish(_complete(1, lsn=50), current_at=0.0)
    again = lake.opened()
    assert not again.publish(_complete(2, lsn=49), current_at=0.0)
    assert again.publish(_complete(2, lsn=50), current_at=0.0)
    assert lake.opened(manifest="another manifest").publish(_complete(3, lsn=7), current_at=0.0)
    assert lake.offered() == [1, 2, 3]


def test_a_manifest_that_begins_takes_back_the_positions_of_the_one_before(lake: Lake) -> None:
    """Those of another server may be greater: a wait for one of the new server must not end by the old one."""
    spool = MemoryStore(uuid.uuid4().hex, prefix="")
    lake.made.publish(_complete(1, lsn=5000), current_at=0.0)
    reports(spool, lake.opened()).begin(seq=1)
    assert lake.offered() == [1], "the same manifest goes on"
    anew = reports(spool, lake.opened(manifest="another manifest"))
    anew.begin(seq=0)
    assert lake.offered() == [1], "there is no entry yet"
    anew.begin(seq=1)
    newest = LakeBoundary.decode(lake.files.get(boundary.key("shop", 2)))
    assert (newest.lsn, newest.tables, newest.manifest) == ("0/0", (), "another manifest")
    anew.complete(_complete(0, lsn=7), time.monotonic())
    assert lake.offered() == [1, 2, 3]


def test_times_of_one_manifest_never_fall(lake: Lake) -> None:
    for number, time_us in ((1, 5_000_000), (2, 3_000_000)):
        lake.made.publish(_complete(number, time_us=time_us, reached_us=time_us - 1_000_000), current_at=0.0)
    newest = LakeBoundary.decode(lake.files.get(boundary.key("shop", 2)))
    assert (newest.time, newest.reached) == (time_text(5.0), time_text(4.0))


def test_an_applier_that_was_replaced_does_not_publish_over_its_successor(lake: Lake) -> None:
    replaced = lake.opened(require_owner=fenced)
    lake.made.publish(_complete(1, lsn=50), current_at=0.0)
    with pytest.raises(WriterFenced):
        replaced.publish(_complete(1, lsn=60), current_at=0.0)
    assert lake.offered() == [1]


@pytest.mark.parametrize("whose", ["its own, whose answer was lost", "of an applier that was replaced"])
def test_a_boundary_that_is_there_already_is_offered_and_the_next_one_follows(lake: Lake, whose: str) -> None:
    replaced = lake.opened()
    if whose.startswith("its own"):
        faults.arm("store.create.after=raise:StoreUnavailable@1")
        with pytest.raises(StoreUnavailable):
            lake.made.publish(_complete(1, lsn=50), current_at=lake.now)
    else:
        replaced.publish(_complete(1, lsn=50), current_at=lake.now)
    lake.now += 1.0
    assert lake.made.publish(_complete(1, lsn=60), current_at=lake.now) == 2
    assert lake.offered() == [1, 2]
    assert lake.made.held_since < lake.now - 1.0, "what the first one needs stays as well"
    assert not lake.made.publish(_complete(3, lsn=55), current_at=lake.now)
    lake.now += HOUR
    assert lake.offered(expired=True) == [2]


def test_a_boundary_is_not_published_behind_a_later_one_that_took_its_number(lake: Lake) -> None:
    replaced = lake.opened()
    replaced.publish(_complete(1, lsn=50), current_at=lake.now)
    assert not lake.made.publish(_complete(1, lsn=40), current_at=lake.now)
    assert (lake.offered(), lake.made.newest_lsn) == ([1], 50)


def test_a_later_one_that_took_its_number_stays_for_its_time_behind_the_next_one(lake: Lake) -> None:
    replaced = lake.opened()
    replaced.publish(_complete(1, lsn=50), current_at=lake.now)
    assert not lake.made.publish(_complete(1, lsn=40), current_at=lake.now)
    lake.now += HOUR
    assert lake.made.publish(_complete(1, lsn=60), current_at=lake.now) == 2
    assert lake.offered(expired=True) == [1, 2]
    lake.now += HOUR
    assert lake.offered(expired=True) == [2]


def test_what_a_boundary_needs_is_held_though_the_next_one_stayed_current_long_after_it(lake: Lake) -> None:
    lake.made = lake.opened(retention_seconds=24 * HOUR)
    lake.publish(1)
    lake.now -= 10 * HOUR
    replaced_at = lake.now
    lake.publish(2, 3)  # set in one round of the loop: the third no later than the second
    lake.now += 5 * HOUR
    lake.made.still_current(lake.now)
    assert lake.offered() == [1, 2, 3]
    assert lake.made.held_since <= replaced_at


def test_a_boundary_is_offered_its_time_though_somebody_removed_the_next_one(lake: Lake) -> None:
    lake.publish(1, 2, 3)
    lake.made = lake.opened()
    lake.files.delete(key_of("shop", 2))
    lake.now += HOUR / 2
    assert lake.offered(expired=True) == [1, 3]
    lake.now += HOUR / 2
    assert lake.offered(expired=True) == [3]


def test_a_position_of_entries_that_were_lost_is_not_one_of_the_log_that_goes_on(tmp_path: Path) -> None:
    """An older copy of the spool was restored: it has the manifest's name, and other entries from there on."""
    files, hashes = LocalStore(tmp_path), {9: "lost"}

    def published(*lsns: int) -> None:
        made = offers(files, entry_sha256=lambda seq: hashes.get(seq, "old"))
        written = reports(MemoryStore(uuid.uuid4().hex), made)
        written.begin(seq=9)
        for lsn in lsns:
            written.complete(_complete(0, lsn=lsn, time_us=lsn * 1_000_000, reached_us=lsn * 1_000_000), 0.0)

    published(100, 200, 300)
    hashes[9] = "other"
    published(50, 150)
    published(160)
    lake = sluice_lake.Lake(str(tmp_path))
    assert [lake.as_of(lsn=lsn).boundary.lsn for lsn in (60, 120, 150, 155, 160)] == [50, 50, 150, 150, 160]
    with pytest.raises(sluice_lake.BoundaryExpired):
        lake.as_of(time=datetime.fromtimestamp(1, UTC))
