"""Spools as ingest and the applier leave them, for the tests of garbage collection."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from _pytest.mark import MarkDecorator, ParameterSet

from sluice.contract import keys
from sluice.contract.applied import AppliedLog, Complete
from sluice.contract.entries import (
    BodyCommit,
    Changes,
    Commits,
    Prepared,
    PreparedEnd,
    PreparedPart,
    Segment,
    Snapshot,
    digest,
)
from sluice.contract.table_state import State
from sluice.manifest import pruning as gc
from sluice.manifest.reader import load_state
from sluice.manifest.values import PipelineState
from sluice.manifest.writer import ManifestLog
from sluice.operate.spool_verify import verify
from sluice.store.base import ObjectStore
from sluice.store.memory import MemoryStore
from tests.support import policies
from tests.support.extent import FULL
from tests.support.manifests import opened, put, schema, segment, table
from tests.support.recorded import row

AZURE = pytest.param("azure", marks=pytest.mark.skipif(not FULL, reason="on Azurite: make clouds runs it"))
CONTENT = b"rows of a table"
START = datetime(2030, 1, 1, tzinfo=UTC)
AT_ONCE = timedelta(0)


def stores(*, s3: MarkDecorator | tuple[()] = ()) -> list[str | ParameterSet]:
    """The kinds of object store that must all behave alike. S3 is the dear one: a test whose many requests ask nothing
    of it that those of other tests do not may mark it.
    """
    return ["memory", "local", pytest.param("s3", marks=s3), AZURE]


class Recording(MemoryStore):
    """Knows by which right of S3 each object was created or removed."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.used: set[tuple[str, str]] = set()

    def create(self, key: str, data: bytes | memoryview) -> None:
        self.used.add(("s3:PutObject", key))
        super().create(key, data)

    def delete(self, key: str) -> None:
        self.used.add(("s3:DeleteObject", key))
        super().delete(key)

    def refused_by(self, policy: str) -> list[tuple[str, str]]:
        """What an example policy does not allow of it."""
        assert {action for action, _ in self.used} == {"s3:PutObject", "s3:DeleteObject"}
        document = policies.policy(policy)
        return [one for one in self.used if not policies.allows(document, one[0], f"spool/test/{one[1]}")]


LATER = START + timedelta(days=30)


class World:
    """A pipeline whose clock goes on by an hour with each entry, and its applier's record."""

    def __init__(self, store: ObjectStore, *, begin: datetime = START) -> None:
        self.store = store
        self.time = begin
        self.number = 0
        self.log = self.open()

    def open(self) -> ManifestLog:
        self.log = ManifestLog.open(self.store, opened(), load_state(self.store), clock=self._tick)
        return self.log

    def _tick(self) -> datetime:
        self.time += timedelta(hours=1)
        return self.time

    @property
    def state(self) -> PipelineState:
        return self.log.state

    def join(self, table_id: str, *, generation: int = 1, snapshot: bool = True) -> str:
        """A table with one object of its snapshot; its key."""
        self.log.append(table(table_id, generation=generation, version=1 if generation == 1 else None))
        if not snapshot:
            return ""
        part = self._stored(keys.segment(table_id, self.state.epoch, self.state.seq), table_id, lsn=1)
        self.log.append(Snapshot(table_id, generation, 1, max(1, self.state.through_lsn), (part,), final=True))
        self.log.append(table(table_id, generation=generation, version=None, state="live"))
        return part.key

    def change(self, table_id: str) -> str:
        lsn = self.state.through_lsn + 10
        part = self._stored(keys.segment(table_id, self.state.epoch, self.state.seq), table_id, lsn=lsn)
        put(self.log, Changes((part,), Commits([lsn], [1], [7])), through_lsn=lsn)
        return part.key

    def prepare(self, gid: str) -> Prepared:
        lsn = self.state.through_lsn + 10
        part = self._stored(keys.staged(self.state.epoch, 700, self.state.seq), "7", lsn=0)
        waiting = Prepared(gid, 700, lsn, 1, 1, (PreparedPart(schema(), part),))
        put(self.log, Changes((), Commits(), prepared=(waiting,)), through_lsn=lsn)
        return waiting

    def end(self, waiting: Prepared, fate: str) -> None:
        lsn = self.state.through_lsn + 10
        part = replace(waiting.parts[0].segment, first_lsn=lsn, last_lsn=lsn, body=BodyCommit(lsn, 1, 700))
        ended = (PreparedEnd(waiting.gid, waiting.end_lsn, fate),)
        if fate == "committed":
            body = Changes((part,), Commits([lsn], [1], [700]), ended=ended)
        else:
            body = Changes((), Commits(), ended=ended)
        put(self.log, body, through_lsn=lsn)

    def _stored(self, key: str, table_id: str, *, lsn: int) -> Segment:
        self.store.put(key, CONTENT)
        return replace(segment(table_id, first_lsn=lsn), key=key, bytes=len(CONTENT), sha256=digest(CONTENT))

    def applied(self, through: dict[str, int] | None = None, *, complete: int | None = None, **states: str) -> None:
        """The applier reports; left out, every live table is through the last entry."""
        self.number += 1
        rows = {}
        for table_id, known in self.state.tables.items():
            done = (through or {}).get(table_id, self.state.seq if known.state == State.LIVE else 0)
            state = states.get(f"t{table_id}", known.state)
            rows[table_id] = row(
                f"t{table_id}", state, table_id=table_id, generation=known.generation, through_seq=done
            )
        at, complete = "2026-01-01T00:00:00+00:00", self.state.seq if complete is None else complete
        self.store.create(keys.apply_log(self.number), AppliedLog(self.number, "a", at, rows).encode())
        self.store.create(keys.apply_complete(self.number), Complete(self.number, 1, complete, at, {}).encode())

    def plan(self, keep: timedelta = AT_ONCE, now: datetime = LATER) -> gc.Plan:
        return gc.plan(self.store, keep_seconds=keep.total_seconds(), now=lambda: now)

    def collect(self, keep: timedelta = AT_ONCE, now: datetime = LATER) -> set[str]:
        """What a collection deletes. The spool is found whole afterwards."""
        before = self.objects()
        gc.carry_out(self.store, self.plan(keep, now))
        assert verify(self.store, content=True).flaws == []
        return before - self.objects()

    def objects(self) -> set[str]:
        return {key for folder in (keys.DATA, keys.STAGE) for key in self.store.list(folder)}

    def entries(self) -> list[str]:
        return [key for key in self.store.list(keys.MANIFEST) if not key.startswith(keys.CHECKPOINTS)]
