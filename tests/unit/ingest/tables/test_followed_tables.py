"""Shapes of rows whose transaction has not ended, and what a look at the catalog may conclude meanwhile."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from sluice.contract.catalog_facts import TableFacts, Visible
from sluice.contract.entries import Snapshot
from sluice.contract.reasons import DROPPED
from sluice.contract.resyncs import Cause
from sluice.contract.table_state import State
from sluice.ingest.tables.followed_tables import FollowedTables
from sluice.manifest.ordered_log import OrderedLog
from sluice.manifest.writer import ManifestLog
from sluice.protocol.messages import RelationColumn
from sluice.tables import events
from sluice.tables.catalog_diff import Unseen, fingerprint
from sluice.tables.schemas import build_schema, relation_of, relation_sent_as
from sluice.tables.shape_history import NOT_YET, ShapeHistory
from tests.support import source_facts
from tests.support.manifests import changes, memory_log, put, schema, snapshot, table
from tests.support.spooled import table as table_of

WHOLE = table_of(("id", 23, -1), ("b", 25, -1), key=["id"])


def _following(log: ManifestLog, lookup: Callable[[int], Any], *, wal_end: int = 0) -> FollowedTables:
    return FollowedTables(
        OrderedLog(log, threaded=False), lookup, (), wal_end=lambda: wal_end, await_seen=lambda _: None
    )


def _seen(facts: TableFacts) -> dict[str, Any]:
    """What an entry says of the look that found these."""
    return {"relfilenode": facts.relfilenode, "fingerprint": fingerprint(facts)}


def test_rows_of_an_open_transaction_are_written_in_a_recorded_version_or_in_none() -> None:
    log = memory_log()
    log.append(table("7", version=1))
    asked: list[int] = []
    tables = _following(log, asked.append)
    known = relation_sent_as(schema("7"))
    assert tables.written_in(known) == schema("7")
    assert asked == []
    wider = replace(known, columns=(*known.columns, RelationColumn("fresh", 20, -1, identity=False)))
    assert tables.written_in(wider) == NOT_YET
    assert tables.written_in(replace(known, name="renamed")) == schema("7")
    assert asked == []
    assert log.state.seq == 2


def test_an_announcement_is_doubtful_until_a_look_that_began_later_found_the_same_columns() -> None:
    history, relation = ShapeHistory(), relation_sent_as(WHOLE)
    assert history.announced(relation, 100, 7)
    assert not history.announced(relation, 120, 8)
    assert history.is_doubtful(7)
    history.doubt(7)
    history.confirm(150, Visible(9))
    assert history.is_doubtful(7)
    history.settle(7)
    assert not history.is_doubtful(7)
    assert history.announced(replace(relation), 160, 9)
    assert history.is_doubtful(7)


def test_a_paused_table_under_load_keeps_no_look_from_examining_the_catalog() -> None:
    """Each entry counts what waits for it, which changes nothing that a look could find."""
    log = memory_log()
    facts = source_facts.numbered(7)
    log.append(table("7", state="live", version=1, paused=True, **_seen(facts)))
    tables = _following(log, lambda _: facts)
    before = tables.states()
    put(log, changes(30), through_lsn=40)
    assert tables.states()["7"].paused != before["7"].paused
    assert tables.look(facts, before, wal_end=40)
    tables.decide(events.PauseAsked(7, paused=False))
    assert not tables.look(facts, before, wal_end=40)


@pytest.mark.parametrize(("position_lsn", "is_lost"), [(499, False), (500, True), (None, True)])
def test_a_change_that_cannot_be_written_is_no_loss_where_the_snapshot_has_it(
    position_lsn: int | None, is_lost: bool
) -> None:
    """While its transaction is open, nobody knows where it commits."""
    log = memory_log()
    log.append(replace(table("7", version=1), lsn=500))
    tables = _following(log, lambda _: None)
    tables.decide(events.ValueLost(7, "not sent", position_lsn=position_lsn))
    state = tables.states()["7"]
    assert (state.state is State.STALE, state.cause == "value", state.state.is_followed) == (
        is_lost,
        is_lost,
        not is_lost,
    )


def test_nobody_who_asks_again_waits_for_what_rows_of_a_large_transaction_said() -> None:
    log = memory_log()
    facts = source_facts.numbered(7)
    log.append(table("7", state="live", version=1, **_seen(facts)))
    tables = _following(log, lambda _: facts)
    tables.decide(events.ValueLost(7, "not sent", position_lsn=900))
    assert (tables.states()["7"].state, log.state.tables["7"].state) == (State.STALE, State.LIVE)
    assert tables.take(900) == ()
    assert not tables.look(facts, tables.states(), wal_end=40)
    assert not tables.decide(events.PauseAsked(7, paused=True))
    assert tables.decide(events.SnapshotDue(facts)) is None
    tables.decide(events.TableGone(7, DROPPED))
    assert tables.states()["7"].state is State.STALE
    tables.looked(before_lsn=900, visible=Visible(1000), examined_lsn=log.state.through_lsn, seen={"7": 1})
    tables.forget_stream()
    assert tables.states()["7"].state is State.LIVE
    assert tables.decide(events.PauseAsked(7, paused=True))
    assert not tables.decide(events.PauseAsked(8, paused=True)), "rows said that there is one, and are not stored"


def _of_three() -> tuple[FollowedTables, list[int], TableFacts]:
    """Table 7 waits for its rows; 8 and 9 are live. All are as the catalog was looked at."""
    log = memory_log(through_lsn=10)
    facts = source_facts.numbered(7)
    for number, state in ((7, "snapshot"), (8, "live"), (9, "live")):
        of = source_facts.numbered(number)
        shape = build_schema(relation_of(of), of, None, 1)
        log.append(replace(table(str(number), state=state, **_seen(of)), schema=shape))
    asked: list[int] = []

    def lookup(oid: int) -> TableFacts:
        asked.append(oid)
        return source_facts.numbered(oid)

    return _following(log, lookup, wal_end=100), asked, facts


def _read(facts: TableFacts, *, generation: int = 1) -> Snapshot:
    whole = replace(snapshot("7", snapshot_lsn=40, generation=generation), segments=())
    return replace(whole, relfilenode=facts.relfilenode, fingerprint=fingerprint(facts))


def test_a_connection_that_ends_takes_nothing_from_what_a_look_has_examined() -> None:
    """Otherwise a table would become live without it, and complete as far as that look had examined."""
    tables, _, facts = _of_three()
    now = replace(facts, relfilenode=facts.relfilenode + 1, toast=5, memberships=("entry 2",))
    assert tables.decide(events.SnapshotDue(facts))
    tables.look(now, tables.states(), wal_end=50)
    tables.decide(events.ValueLost(8, "not sent", position_lsn=20))
    tables.forget_stream()
    assert not tables.publish_snapshot(_read(facts))
    assert tables.states()["7"].state is State.SNAPSHOT


def test_a_connection_that_ends_during_a_look_leaves_tables_in_doubt_that_it_found_otherwise() -> None:
    tables, asked, facts = _of_three()
    again = replace(facts.columns[0], attnum=2)
    tables.look(replace(facts, oid=9, name="t9", columns=(again,), attributes=2), tables.states(), wal_end=50)
    tables.decide(events.ValueLost(8, "not sent", position_lsn=20))
    tables.forget_stream()
    tables.looked(before_lsn=50, visible=Visible(1000), examined_lsn=0, seen={})
    relation = relation_of(replace(facts, oid=9, name="t9"))
    tables.resolve(relation, position_lsn=30, reaches_lsn=31, xid=200)
    assert asked == [9]


def test_rows_that_were_read_before_their_generation_was_prepared_are_not_published() -> None:
    """Where the stream began it, rows behind them are in the entry that begins it, and count for no generation."""
    tables, _, facts = _of_three()
    assert tables.decide(events.SnapshotDue(facts))
    tables.decide(events.EqualityLost(7, Unseen(Cause.SCHEMA, "lost"), lsn=30))
    assert tables.decide(events.SnapshotAsked(facts))
    assert tables.states()["7"].generation == 2
    assert not tables.publish_snapshot(_read(facts, generation=2))
    assert tables.decide(events.SnapshotDue(facts))
    assert tables.publish_snapshot(_read(facts, generation=2))


def test_a_table_does_not_join_before_what_rows_said_of_the_one_that_had_its_name_is_stored() -> None:
    """The one before leaves its name and its lake path with its rows; the other one would share them until then."""
    log = memory_log()
    log.append(table("7", state=State.LIVE))
    gone: dict[int, Any] = {}
    tables = _following(log, gone.get, wal_end=40)
    tables.decide(events.ValueLost(7, "not sent", position_lsn=30))
    facts = source_facts.table(source_facts.ID, oid=9, name="t7")
    assert not tables.look(facts, tables.states(), wal_end=40)
    assert log.state.tables.keys() == {"7"}
    tables.forget_stream()
    assert tables.look(facts, tables.states(), wal_end=40)
    assert {key: one.state for key, one in log.state.tables.items()} == {"7": State.DETACHED, "9": State.SNAPSHOT}
