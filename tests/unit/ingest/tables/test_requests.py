"""Requests are found by one thread and carried out by another one."""

import uuid
from collections.abc import Callable, Sequence
from datetime import UTC, datetime

import pytest

from sluice.contract import keys
from sluice.contract.control import ADVANCE, REPAIR, RESYNC, Request
from sluice.contract.table_state import State
from sluice.errors import SourceUnavailable
from sluice.ingest.snapshot.reader import TableLocked
from sluice.ingest.tables.followed_tables import FollowedTables
from sluice.ingest.tables.requests import Requests
from sluice.manifest.ordered_log import OrderedLog
from sluice.manifest.reader import load_state
from sluice.manifest.writer import ManifestLog
from sluice.store.memory import MemoryStore
from sluice.tables import events
from sluice.tables.catalog_diff import fingerprint
from tests.support import source_facts
from tests.support.manifests import opened, snapshot, table


class Slow(MemoryStore):
    """A store in which something happens while a request is read."""

    meanwhile: Callable[[], None] | None = None

    def get(self, key: str) -> bytes:
        data = super().get(key)
        if key.startswith(keys.CONTROL) and self.meanwhile is not None:
            happens, self.meanwhile = self.meanwhile, None
            happens()
        return data


def test_a_request_that_is_carried_out_while_another_look_reads_it_is_not_carried_out_twice() -> None:
    store = Slow(uuid.uuid4().hex)
    log = ManifestLog.open(store, opened(), load_state(store))
    facts = source_facts.numbered(7)
    log.append(table("7", state="live", version=1, relfilenode=facts.relfilenode, fingerprint=fingerprint(facts)))
    tables = FollowedTables(
        OrderedLog(log, threaded=False), lambda _: facts, (), wal_end=lambda: 10, await_seen=lambda _: None
    )
    requests = Requests(store, tables, "p")
    wanted = Request(RESYNC, "public", "t7", datetime.now(UTC).isoformat(timespec="seconds"))
    store.create(keys.control_request("1"), wanted.encode())

    requests.take_at_once()
    found = dict(requests.waiting)
    store.meanwhile = lambda: requests.take(found, {7: facts})
    requests.take_at_once()
    assert list(store.list(keys.CONTROL)) == []
    shape = tables.decide(events.SnapshotDue(facts))
    assert shape is not None
    assert tables.publish_snapshot(snapshot("7", generation=2, version=shape.version))
    requests.take(dict(requests.waiting), {7: facts})
    assert (tables.states()["7"].state, tables.states()["7"].generation) == (State.LIVE, 2)


@pytest.mark.parametrize("wanted", [(), (("0/AB",), ("0/CD",)), (("0/AB", "0/CD"),), (("row",),)])
def test_a_hint_that_names_no_position_is_refused(wanted: tuple[tuple[str, ...], ...]) -> None:
    store, heard = MemoryStore(uuid.uuid4().hex), list[int]()
    log = OrderedLog(ManifestLog.open(store, opened(), load_state(store)), threaded=False)
    tables = FollowedTables(log, lambda _: None, (), wal_end=lambda: 10, await_seen=lambda _: None)
    requests = Requests(store, tables, "p", advance=heard.append)
    for number, positions in (("1", (("0/AB",),)), ("2", wanted)):
        asked = Request(ADVANCE, "", "", "2030-01-01T00:00:00+00:00", positions)
        store.create(keys.control_request(number), asked.encode())
    requests.take_at_once()
    assert heard == [0xAB]
    assert list(store.list(keys.CONTROL)) == [keys.refused_request(keys.control_request("2"))]


def test_a_repair_that_waits_for_its_table_holds_up_no_other_one() -> None:
    store, done = MemoryStore(uuid.uuid4().hex), list[str]()
    log = OrderedLog(ManifestLog.open(store, opened(), load_state(store)), threaded=False)
    requests = Requests(store, FollowedTables(log, lambda _: None, (), wal_end=int, await_seen=lambda _: None), "p")
    for number, name in enumerate(("locked", "free", "beyond")):
        asked = Request(REPAIR, "public", name, "2030-01-01T00:00:00+00:00", (("1",),))
        store.create(keys.control_request(str(number)), asked.encode())

    def repaired(_: str, name: str, wanted: Sequence[tuple[str, ...]]) -> int:
        if name == "locked":
            raise TableLocked("somebody has locked it")
        if name == "beyond":
            raise SourceUnavailable("the server is gone", reason="connect_failed")
        done.append(name)
        return len(wanted)

    requests.take_at_once()
    with pytest.raises(SourceUnavailable, match="the server is gone"):
        requests.repair(repaired, lambda *_: None)
    assert done == ["free"]
    store.delete(keys.control_request("2"))
    requests.take_at_once()
    with pytest.raises(TableLocked):
        requests.repair(repaired, lambda *_: None)
    assert list(store.list(keys.CONTROL)) == [keys.control_request("0")]
