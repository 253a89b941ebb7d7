"""The life of a table as a pure machine: what an event decides follows from the event and the moment alone."""

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from sluice.contract.catalog_facts import TableFacts
from sluice.contract.chunks import BlockRange
from sluice.contract.entries import Snapshot, Table
from sluice.contract.reasons import DROPPED
from sluice.contract.table_state import State
from sluice.manifest.state import decided
from sluice.manifest.values import PipelineState
from sluice.tables import events
from sluice.tables.catalog_diff import fingerprint
from sluice.tables.events import Answers, Decided, Moment, NeedFacts, TableChange
from sluice.tables.life import TableLives
from sluice.tables.policies import Policies, TablePolicy
from sluice.tables.schemas import build_schema, relation_of
from tests.support import source_facts
from tests.support.manifests import memory_log, table

ID, SEVEN = source_facts.C1, source_facts.numbered(7)
WIDER = replace(
    SEVEN, columns=(ID, replace(ID, name="c2", attnum=2, in_primary_key=False, in_identity=False)), attributes=2
)
NOON = datetime(2030, 1, 1, 12, tzinfo=UTC)


def _state(*carried: TableFacts) -> PipelineState:
    """In which these tables are live, as the catalog was looked at."""
    log = memory_log(through_lsn=10)
    for facts in carried:
        said: dict[str, Any] = {"relfilenode": facts.relfilenode, "fingerprint": fingerprint(facts)}
        shape = build_schema(relation_of(facts), facts, None, 1)
        log.append(replace(table(str(facts.oid), state="live", **said), schema=shape))
    return log.state


def _moment(state: PipelineState, answers: Answers | None = None) -> Moment:
    return Moment(state, state.through_lsn, NOON, 0.0, answers or Answers())


def _changes(found: object) -> list[Table]:
    assert isinstance(found, Decided)
    bodies = [one.entry for one in found.decisions if isinstance(one, TableChange)]
    return [body for body in bodies if isinstance(body, Table)]


def _lives() -> TableLives:
    return TableLives((), Policies(TablePolicy()))


def test_a_decision_that_lacks_an_answer_leaves_nothing_and_is_made_whole_with_it() -> None:
    """Table 7 was renamed, and table 9 has its name now: what became of 7 only the catalog knows."""
    lives, state = _lives(), _state(SEVEN)
    seen = events.CatalogSeen(replace(SEVEN, oid=9), state.tables, wal_end=40)
    known: dict[int, TableFacts | None] = {9: seen.facts}
    assert lives.decide(seen, _moment(state, Answers(40, known))) == NeedFacts(7)
    renamed = replace(SEVEN, name="before")
    found = lives.decide(seen, _moment(state, Answers(40, {**known, 7: renamed})))
    assert [(one.table_id, one.table_name, one.state) for one in _changes(found)] == [
        ("7", "before", None),
        ("9", "t7", State.SNAPSHOT),
    ]
    gone = _lives().decide(seen, _moment(state, Answers(40, {**known, 7: None})))
    assert [(one.table_id, one.state, one.why) for one in _changes(gone)] == [
        ("7", State.DETACHED, DROPPED),
        ("9", State.SNAPSHOT, None),
    ]


def test_a_snapshot_ends_pending_when_a_look_has_found_a_column_that_it_does_not_have() -> None:
    """No row may ever announce the column, and the look that found it has passed."""
    lives = _lives()
    at = _moment(_state(), Answers(40, {7: SEVEN}))
    joined = lives.decide(events.CatalogSeen(SEVEN, at.state.tables, wal_end=40), at)
    state = _applied(at.state, joined)
    prepared = lives.decide(events.SnapshotDue(SEVEN), _moment(state))
    assert isinstance(prepared, Decided)
    state = _applied(state, prepared)
    for facts, ended in ((WIDER, State.PENDING), (SEVEN, State.LIVE)):
        lives.decide(events.CatalogSeen(facts, state.tables, wal_end=60), _moment(state, Answers(60, {7: facts})))
        entry = Snapshot("7", 1, 1, 50, (), final=True, relfilenode=SEVEN.relfilenode, fingerprint=fingerprint(SEVEN))
        read = lives.decide(events.SnapshotRead(entry), _moment(state))
        assert isinstance(read, Decided)
        assert read.answer is True
        assert _applied(state, read).tables["7"].state == ended


def test_a_shape_that_came_and_went_while_a_table_was_read_is_not_followed_where_it_was_seen_first() -> None:
    """Its old rows were sent whole for a while. They are again from 200 on, and the rows until then are not."""
    lives, state, whole = _lives(), _state(), replace(SEVEN, replica_identity="f")

    def give(event: events.Event[Any], facts: TableFacts, wal_end: int) -> PipelineState:
        return _applied(state, lives.decide(event, _moment(state, Answers(wal_end, {7: facts}))))

    state = give(events.CatalogSeen(SEVEN, state.tables, wal_end=40), SEVEN, 40)
    state = give(events.SnapshotDue(SEVEN), SEVEN, 40)
    state = give(events.CatalogSeen(whole, state.tables, wal_end=60), whole, 60)
    for facts, lsn in ((whole, 55), (SEVEN, 65)):
        state = give(events.RowsCame(relation_of(facts), lsn, lsn + 1, 500), facts, lsn + 2)
    state = replace(state, through_lsn=70)
    read = Snapshot("7", 1, 1, 45, (), final=True, relfilenode=SEVEN.relfilenode, fingerprint=fingerprint(SEVEN))
    state = give(events.SnapshotRead(read), SEVEN, 70)
    assert (state.tables["7"].state, state.tables["7"].schema_version) == (State.PENDING, 3)
    state = give(events.CatalogSeen(whole, state.tables, wal_end=200), whole, 200)
    assert (state.tables["7"].state, state.tables["7"].schema_version) == (State.PENDING, 3)
    state = give(events.CatalogSeen(whole, state.tables, wal_end=210), whole, 210)
    assert state.tables["7"].schema_version == 3
    state = replace(state, through_lsn=200)
    state = give(events.CatalogSeen(whole, state.tables, wal_end=210), whole, 210)
    assert (state.tables["7"].state, state.tables["7"].schema_lsns[4]) == (State.LIVE, 199)


def _applied(state: PipelineState, found: object) -> PipelineState:
    assert isinstance(found, Decided)
    for one in found.decisions:
        if isinstance(one, TableChange):
            state = decided(state, one.entry, written_at=NOON.isoformat())
    return state


@pytest.mark.parametrize(("next_process_at", "live_at"), [(None, 60), (10, 60), (30, 90)])
def test_a_table_whose_awaited_column_went_again_is_pending_until_the_stream_has_come_to_where_it_was_gone(
    next_process_at: int | None, live_at: int
) -> None:
    """At positions before that the source had the column. The next process knows where it found the column gone."""
    lives, state = _lives(), _state(SEVEN)
    dropped = replace(SEVEN, attributes=2)
    looks = (
        (WIDER, 10, 40),
        (dropped, 30, 60),
        (dropped, 59, 90),
        (dropped, 60, 95),
        (dropped, 89, 95),
        (dropped, 90, 99),
    )
    for facts, through, wal_end in looks:
        state = replace(state, through_lsn=through)
        seen = events.CatalogSeen(facts, state.tables, wal_end=wal_end)
        state = _applied(state, lives.decide(seen, _moment(state, Answers(wal_end, {7: facts}))))
        assert state.tables["7"].state == (State.LIVE if through >= live_at else State.PENDING), through
        if through == next_process_at:
            lives = _lives()


@pytest.mark.parametrize(("next_process_at", "live_at"), [(None, 60), (30, 90)])
def test_a_table_is_pending_while_a_column_that_no_look_has_seen_is_still_to_come_and_go_in_the_stream(
    next_process_at: int | None, live_at: int
) -> None:
    """The number of attributes says that there was one: at positions before the look the source had it."""
    lives, state = _lives(), _state(SEVEN)
    dropped = replace(SEVEN, attributes=2)
    looks = ((SEVEN, 10, 10), (dropped, 30, 60), (dropped, 59, 90), (dropped, 60, 95), (dropped, 90, 99))
    for facts, through, wal_end in looks:
        state = replace(state, through_lsn=through)
        seen = events.CatalogSeen(facts, state.tables, wal_end=wal_end)
        state = _applied(state, lives.decide(seen, _moment(state, Answers(wal_end, {7: facts}))))
        expected = State.LIVE if through >= live_at or facts is SEVEN else State.PENDING
        assert state.tables["7"].state == expected, through
        if through == next_process_at:
            lives = _lives()


def test_chunks_of_one_shape_are_not_gone_on_with_in_another_that_rows_bring_while_the_next_is_prepared() -> None:
    """Whoever reads had compared them with the newest shape before. Ingest ended: the manifest refused the chunk."""
    lives, state = _lives(), _state()

    def give(event: events.Event[Any], facts: TableFacts) -> PipelineState:
        return _applied(state, lives.decide(event, _moment(state, Answers(60, {7: facts}))))

    state = give(events.CatalogSeen(SEVEN, state.tables, wal_end=40), SEVEN)
    state = give(events.SnapshotDue(SEVEN), SEVEN)
    blocks: dict[str, Any] = {"relations": ("7",), "ranges": (BlockRange("7", 0, 2),)}
    said: dict[str, Any] = {"relfilenode": SEVEN.relfilenode, "fingerprint": fingerprint(SEVEN)}
    state = give(events.SnapshotRead(Snapshot("7", 1, 1, 50, (), final=False, **said, **blocks)), SEVEN)
    state = give(events.RowsCame(relation_of(WIDER), 65, 66, 500), WIDER)
    assert (state.tables["7"].generation, state.tables["7"].schema_version) == (1, 2)
    state = give(events.SnapshotDue(WIDER), WIDER)
    assert (state.tables["7"].generation, state.tables["7"].snapshot) == (2, None)
