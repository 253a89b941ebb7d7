"""Where a replay ends, and which tables there are what the source had: by the manifest alone."""

import uuid
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from sluice.contract.entries import Commits, Lost, Progress
from sluice.contract.table_state import State
from sluice.errors import UsageError
from sluice.manifest.reader import load_state
from sluice.manifest.replaying import Moment, choose, find
from sluice.manifest.writer import ManifestLog
from sluice.operate.replay import require_apart
from sluice.store.memory import MemoryStore
from sluice.tables import messages
from tests.support.manifests import changes, opened, put, repair, segment, snapshot, table

NOON = datetime(2030, 1, 1, 12, tzinfo=UTC)
HOUR = timedelta(hours=1)
LOST = Lost("slot lost", ("7",))


class Spool:
    """The log is at LSN 10. Entries are written at `time`."""

    def __init__(self) -> None:
        self.store, self.time = MemoryStore(uuid.uuid4().hex), NOON
        self.opens(through_lsn=10)

    def opens(self, *, through_lsn: int, lost: Lost | None = None) -> None:
        known = load_state(self.store)
        self.log = ManifestLog.open(
            self.store, opened(lost=lost), known, through_lsn=through_lsn, clock=lambda: self.time
        )

    def put(self, body: Any, *, through_lsn: int = 0) -> None:
        put(self.log, body, through_lsn=through_lsn or self.log.state.through_lsn)

    def joins(self, table_id: str = "7", **fields: Any) -> None:
        self.put(table(table_id, **fields))
        self.put(snapshot(table_id, snapshot_lsn=self.log.state.through_lsn, **fields))

    def commits(self, *lsns: int, at: datetime, table_id: str = "7", **fields: Any) -> None:
        """The last one is examined."""
        body = replace(
            changes(*lsns, table_id=table_id),
            commits=Commits(list(lsns), [int(at.timestamp() * 1e6)] * len(lsns), [1] * len(lsns)),
            **fields,
        )
        self.log.examined(lsns[-1])
        self.put(body, through_lsn=lsns[-1])

    def position(self, to: Moment, *names: str) -> int:
        """Where a replay would end. Raises UsageError."""
        return choose(find(self.store, to), names or ["public.t7"])[0].lsn


def test_rows_that_were_read_after_the_time_are_not_called_those_of_the_time() -> None:
    """The rows of a snapshot are those of its own moment: of what was committed until then no entry tells."""
    spool = Spool()
    spool.joins()
    spool.commits(20, at=NOON + HOUR)
    with pytest.raises(UsageError, match=r"public\.t7 whose rows were read at 2030-01-01T12:00:00\+00:00, after"):
        spool.position(NOON - HOUR)
    assert spool.position(NOON) == spool.position(10) == 10


def test_messages_that_are_kept_from_a_later_time_on_keep_no_table_from_being_made() -> None:
    spool = Spool()
    spool.joins()
    spool.commits(20, at=NOON)
    spool.time = NOON + 2 * HOUR
    spool.put(Progress(), through_lsn=30)
    for body in messages.brought_to(spool.log.state, wanted=True, prefixes=()):
        spool.put(body)
    spool.commits(40, at=NOON + 3 * HOUR)
    _, _, tables = choose(find(spool.store, NOON + HOUR), ())
    assert [one.table_name for one in tables] == ["messages", "t7"]


def test_a_table_that_is_read_again_after_the_time_is_the_one_from_before_or_none() -> None:
    spool = Spool()
    spool.joins()
    spool.commits(20, at=NOON)
    spool.time = NOON + 2 * HOUR
    spool.joins(generation=2, version=2)
    spool.commits(30, at=NOON + 3 * HOUR)
    _, _, (chosen,) = choose(find(spool.store, NOON + HOUR), ["public.t7"])
    assert chosen.generation == 1
    spool.time = NOON + 5 * HOUR
    spool.put(Progress(), through_lsn=40)
    spool.joins(generation=3, version=3)
    spool.commits(50, at=NOON + 6 * HOUR)
    with pytest.raises(UsageError, match="whose rows were read at"):
        spool.position(NOON + 4 * HOUR)


def test_rows_that_closed_a_gap_after_the_time_are_not_called_those_of_the_time() -> None:
    spool = Spool()
    spool.joins()
    spool.opens(through_lsn=20, lost=LOST)
    spool.time = NOON + 2 * HOUR
    spool.put(repair(as_of_lsn=20, through_lsn=20, gap_seq=spool.log.state.seq))
    assert spool.log.state.tables["7"].state is State.LIVE
    spool.commits(30, at=NOON + 3 * HOUR)
    with pytest.raises(UsageError, match="whose rows were read at"):
        spool.position(NOON + HOUR)
    assert spool.position(NOON + 2 * HOUR) == 20


def test_a_table_is_not_made_in_a_shape_that_it_came_to_behind_the_position() -> None:
    """One entry has the transaction of another table, and the first rows of this one in its next shape."""
    spool = Spool()
    for table_id in ("7", "8"):
        spool.joins(table_id)
    shaped = table("8", state="live", version=2, lsn=30, relfilenode=0, fingerprint="")
    rows = (segment("7", first_lsn=20), segment("8", first_lsn=30, version=2))
    spool.commits(20, 30, at=NOON, segments=rows, tables=(shaped,))
    assert spool.position(25) == 20
    with pytest.raises(UsageError, match=r"public\.t8 because entry 6 has a change of it"):
        spool.position(25, "public.t8")
    assert spool.position(30, "public.t8") == 30


def test_the_end_of_what_was_received_before_a_slot_was_lost_can_be_replayed() -> None:
    spool = Spool()
    spool.joins()
    spool.commits(20, at=NOON)
    spool.opens(through_lsn=40, lost=LOST)
    assert spool.position(20) == 20
    with pytest.raises(UsageError, match="were lost with the slot"):
        spool.position(30)


def test_the_lake_of_the_pipeline_is_recognized_however_its_address_is_written() -> None:
    for written in ("file:///data/lake", "file://localhost/data/lake/inside", "file://localhost/data"):
        with pytest.raises(UsageError, match="is the lake, or is inside it"):
            require_apart(written, {"the lake": "file:///data/lake"})
    require_apart("file://localhost/data/lakes", {"the lake": "file:///data/lake"})
