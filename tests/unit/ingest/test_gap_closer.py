"""The rows that came with a request to close a gap: removed when it is done, and when it is refused."""

import hashlib
import itertools
import threading
import uuid
from dataclasses import replace
from typing import Any

import pytest

from sluice.contract import keys
from sluice.contract.entries import Lost, Progress, Repair
from sluice.errors import StoreRefused, UsageError
from sluice.ingest.commit.committer import Committer
from sluice.ingest.snapshot.gap_closer import GapCloser
from sluice.ingest.status import CommitCounts
from sluice.manifest.ordered_log import OrderedLog
from sluice.manifest.reader import load_state
from sluice.manifest.writer import ManifestLog
from sluice.store.memory import MemoryStore
from tests.support.manifests import changes, opened, put, segment, snapshot, table

ROWS = b"rows"
HERE = ((opened().system_identifier, str(opened().timeline)),)
KEY = keys.repair_rows(keys.repair_token(1, uuid.UUID(int=7).hex), 0)


class Scene:
    """Table 7 has a gap, and rows that close it were read."""

    def __init__(self, store: MemoryStore | None = None, *, threaded: bool = False) -> None:
        self.store = store or MemoryStore(uuid.uuid4().hex)
        log = ManifestLog.open(self.store, opened(), load_state(self.store))
        log.append(table("7"))
        log.append(snapshot(snapshot_lsn=log.state.through_lsn))
        put(log, changes(30), through_lsn=30)
        self.log = ManifestLog.open(
            self.store, opened(lost=Lost("the slot was lost", ("7",))), load_state(self.store), through_lsn=100
        )
        self.store.put(KEY, ROWS)
        options: Any = None
        self.ordered = ordered = OrderedLog(self.log, threaded=threaded)
        committer = Committer(
            self.store, ordered, on_problem=lambda _: None, stop=threading.Event(), counts=CommitCounts()
        )
        self.closer = GapCloser(options, ordered, self.store, committer, epoch=2, numbers=itertools.count(1))

    def repair(self, **wrong: Any) -> Repair:
        gap = self.log.state.tables["7"].gap
        assert gap is not None
        sha256 = hashlib.sha256(ROWS).hexdigest()
        rows = replace(segment(first_lsn=100), key=KEY, bytes=len(ROWS), **{"sha256": sha256, **wrong})
        return Repair("7", 1, 1, 100, 100, (rows,), gap.seq)

    def left(self) -> list[str]:
        return list(self.store.list(keys.REPAIRS))


def test_rows_go_when_the_gap_is_closed_and_when_the_request_is_refused() -> None:
    for wrong in ({"sha256": "0" * 64}, {"table_id": "8"}):
        scene = Scene()
        with pytest.raises(UsageError):
            scene.closer.close_gap(scene.repair(**wrong), HERE)
        assert (scene.left(), scene.log.state.tables["7"].state) == ([], "gap")
    scene = Scene()
    scene.closer.close_gap(scene.repair(), HERE)
    assert (scene.left(), scene.log.state.tables["7"].state) == ([], "live")


def test_a_gap_is_closed_where_ingest_may_not_remove_the_rows() -> None:
    class Keeping(MemoryStore):
        def delete(self, key: str) -> None:
            raise StoreRefused("403")

    scene = Scene(Keeping(uuid.uuid4().hex))
    scene.closer.close_gap(scene.repair(), HERE)
    assert (scene.left(), scene.log.state.tables["7"].state) == ([KEY], "live")


@pytest.mark.parametrize("read_from", [(), ((HERE[0][0], "2"),), (("7000000000000000002", HERE[0][1]),)])
def test_rows_that_were_read_before_a_promotion_close_no_gap_after_it(read_from: tuple[tuple[str, ...], ...]) -> None:
    """The promoted server comes to the same position with other rows."""
    scene = Scene()
    with pytest.raises(UsageError, match="from another server, or before its promotion"):
        scene.closer.close_gap(scene.repair(), read_from)
    assert (scene.left(), scene.log.state.tables["7"].state) == ([], "gap")


def test_a_gap_is_closed_while_entries_are_stored_without_a_pause() -> None:
    """Another one is always under way, and the next one waits."""
    scene = Scene(threaded=True)
    ordered, over = scene.ordered, threading.Event()

    def publish() -> None:
        if not over.is_set():
            ordered.run(publish)
        now = scene.log.state.through_lsn
        ordered.publish(Progress(), from_lsn=now, through_lsn=now + 1)

    ordered.run(publish)
    try:
        scene.closer.close_gap(scene.repair(), HERE)
    finally:
        over.set()
        ordered.close()
    assert scene.log.state.tables["7"].state == "live"
