"""Whether we may go on from a slot: each disagreement has its name, and only agreement gives a position."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from psycopg import pq

from sluice.contract.entries import Fork, Opened
from sluice.errors import SlotLost, SourceUnavailable
from sluice.ingest.epoch import opened_entry
from sluice.ingest.start import Start
from sluice.manifest.values import PipelineState
from sluice.source import timeline_history
from sluice.source.continuity import prove_continuity
from sluice.source.facts import ServerFacts, SlotFacts
from sluice.source.timeline_history import parse_history
from tests.support import source_facts
from tests.support.manifests import opened

SERVER = source_facts.server(1000)
SLOT = replace(source_facts.slot(restart=400, safe=None), active_pid=None, confirmed_flush_lsn=500)
_CODE = pq.DiagnosticField.SQLSTATE
OPENED = opened(system_identifier="7", database="d", slot="s")

DOUBTS = {
    "a slot that is gone": ("MISSING", SERVER, None, 500),
    "a slot on another cluster": ("WRONG_CLUSTER", replace(SERVER, system_identifier="8"), SLOT, 500),
    "another cluster without the slot": ("WRONG_CLUSTER", replace(SERVER, system_identifier="8"), None, 500),
    "another database": ("WRONG_DATABASE", replace(SERVER, database_oid=6), replace(SLOT, database="other"), 500),
    "the database dropped and made again": ("WRONG_DATABASE", replace(SERVER, database_oid=6), SLOT, 500),
    "the slot of another database": ("WRONG_DATABASE", SERVER, replace(SLOT, database="other"), 500),
    "a history that cannot be read": ("TIMELINE", replace(SERVER, timeline=2, forks=None), SLOT, 500),
    "a server that went another way": ("TIMELINE", replace(SERVER, timeline=3, forks=(Fork(2, 900),)), SLOT, 500),
    "a promotion before its end": ("DIVERGED", replace(SERVER, timeline=2, forks=(Fork(1, 599),)), SLOT, 600),
    "another plugin": ("WRONG_PLUGIN", SERVER, replace(SLOT, plugin="wal2json"), 500),
    "a physical slot": ("WRONG_PLUGIN", SERVER, replace(SLOT, slot_type="physical", plugin="", database=""), 500),
    "a temporary slot": ("WRONG_PLUGIN", SERVER, replace(SLOT, temporary=True), 500),
    "removed WAL": ("INVALIDATED", SERVER, replace(SLOT, wal_status="lost"), 500),
    "an invalidated slot": ("INVALIDATED", SERVER, replace(SLOT, invalidation_reason="idle_timeout"), 500),
    "a conflict on a standby": ("INVALIDATED", SERVER, replace(SLOT, conflicting=True), 500),
    "a slot without a position": ("INVALIDATED", SERVER, replace(SLOT, confirmed_flush_lsn=None), 500),
    "a slot that grew two-phase": ("TWO_PHASE", SERVER, replace(SLOT, two_phase=True), 500),
    "a slot one byte ahead of the manifest": ("AHEAD", SERVER, replace(SLOT, confirmed_flush_lsn=501), 500),
    "a manifest one byte ahead of the server": ("DIVERGED", SERVER, SLOT, 1001),
}


@pytest.mark.parametrize(("case", "server", "slot", "through_lsn"), DOUBTS.values(), ids=DOUBTS.keys())
def test_every_doubt_is_a_named_stop(case: str, server: ServerFacts, slot: SlotFacts | None, through_lsn: int) -> None:
    with pytest.raises(SlotLost, match=f"^{case}: ") as caught:
        prove_continuity(OPENED, through_lsn, server=server, slot=slot, two_phase=False)
    assert caught.value.hint


@pytest.mark.parametrize("through_lsn", [500, 501, 1000])
def test_streaming_goes_on_from_the_manifest_even_where_the_slot_fell_back(through_lsn: int) -> None:
    assert prove_continuity(OPENED, through_lsn, server=SERVER, slot=SLOT, two_phase=False) == through_lsn


def test_a_new_pipeline_starts_where_its_slot_does() -> None:
    assert prove_continuity(None, 0, server=SERVER, slot=SLOT, two_phase=False) == 500


def test_a_new_pipeline_does_not_use_a_slot_that_is_lost_or_of_another_kind() -> None:
    others = (replace(SLOT, wal_status="lost"), replace(SLOT, plugin="test_decoding"), replace(SLOT, two_phase=True))
    for slot in (None, *others):
        with pytest.raises(SlotLost):
            prove_continuity(None, 0, server=SERVER, slot=slot, two_phase=False)


def test_two_phase_may_be_on_when_both_sides_say_so() -> None:
    assert prove_continuity(OPENED, 600, server=SERVER, slot=replace(SLOT, two_phase=True), two_phase=True) == 600


SECOND = replace(OPENED, timeline=2, forks=(Fork(1, 300),))


@pytest.mark.parametrize(
    ("of", "timeline", "forks"),
    [
        (OPENED, 2, (Fork(1, 600),)),
        (OPENED, 5, (Fork(1, 600), Fork(2, 700), Fork(4, 800))),
        (SECOND, 2, (Fork(1, 300),)),
        (SECOND, 3, (Fork(1, 300), Fork(2, 600))),
        (SECOND, 2, None),
        (replace(SECOND, forks=()), 2, (Fork(1, 300),)),
        (replace(SECOND, forks=()), 3, (Fork(1, 300), Fork(2, 600))),
    ],
)
def test_a_server_that_was_promoted_after_the_manifests_end_goes_on(
    of: Opened, timeline: int, forks: tuple[Fork, ...] | None
) -> None:
    server = replace(SERVER, timeline=timeline, forks=forks)
    assert prove_continuity(of, 600, server=server, slot=SLOT, two_phase=False) == 600


@pytest.mark.parametrize(
    ("timeline", "forks"),
    [
        (2, (Fork(1, 299),)),
        (1, ()),
        (3, (Fork(1, 700),)),
        (3, (Fork(1, 299), Fork(2, 700))),
        (4, (Fork(1, 300), Fork(3, 700))),
    ],
)
def test_a_timeline_of_another_history_is_refused_whatever_its_number(timeline: int, forks: tuple[Fork, ...]) -> None:
    server = replace(SERVER, timeline=timeline, forks=forks)
    with pytest.raises(SlotLost, match=r"^TIMELINE"):
        prove_continuity(SECOND, 600, server=server, slot=SLOT, two_phase=False)


def test_a_history_that_was_not_known_proves_nothing_of_another_timeline() -> None:
    unknown = replace(SECOND, forks=())
    for timeline, forks, case in (
        (3, (Fork(1, 300),), "TIMELINE"),
        (3, (Fork(1, 300), Fork(2, 599)), "DIVERGED"),
        (1, (), "TIMELINE"),
    ):
        server = replace(SERVER, timeline=timeline, forks=forks)
        with pytest.raises(SlotLost, match=f"^{case}"):
            prove_continuity(unknown, 600, server=server, slot=SLOT, two_phase=False)


def test_a_history_that_the_server_does_not_give_this_time_is_that_of_the_epoch_before() -> None:
    options: Any = SimpleNamespace(source=SimpleNamespace(slot="s", publication="p"), two_phase=False, origin="any")
    options.instance = "two"
    server = replace(SERVER, timeline=2, forks=None)
    state = replace(PipelineState(), opened=SECOND)
    assert opened_entry(options, Start(state, server, 600)).forks == SECOND.forks
    assert opened_entry(options, Start(state, replace(server, timeline=3), 600)).forks == ()


@pytest.mark.parametrize(
    ("sqlstate", "is_lost"), [(None, True), (b"57P01", True), (b"58P01", False), (b"42501", False)]
)
def test_a_connection_that_is_lost_while_the_history_is_asked_for_is_no_server_that_does_not_give_it(
    monkeypatch: pytest.MonkeyPatch, sqlstate: bytes | None, *, is_lost: bool
) -> None:
    result = SimpleNamespace(status=pq.ExecStatus.FATAL_ERROR, error_field=lambda part: {_CODE: sqlstate}.get(part))
    connection: Any = SimpleNamespace(pgconn=SimpleNamespace(exec_=lambda _: result), close=lambda: None)
    monkeypatch.setattr(timeline_history, "open_replication", lambda _: connection)
    source: Any = None
    if is_lost:
        with pytest.raises(SourceUnavailable):
            timeline_history.read_history(source, 2)
    else:
        assert timeline_history.read_history(source, 2) is None


HISTORY = b"1\t0/3000148\tno recovery target specified\n\n# a comment\n2\t16/B374D848\tbefore 2026-01-01\n"


def test_a_history_that_could_not_be_asked_for_is_no_loss_and_no_proof() -> None:
    away = replace(SERVER, timeline=2, forks=None, history_away="too many walsenders")
    with pytest.raises(SourceUnavailable, match="too many walsenders"):
        prove_continuity(OPENED, 600, server=away, slot=SLOT, two_phase=False)
    same = replace(OPENED, timeline=2, forks=(Fork(1, 300),))
    assert prove_continuity(same, 600, server=away, slot=SLOT, two_phase=False) == 600


def test_a_history_file_is_read() -> None:
    assert parse_history(HISTORY) == (Fork(1, 0x3000148), Fork(2, 0x16_B374D848))


@pytest.mark.parametrize("content", [b"1\n", b"x\t0/1\n", b"1\tzero\n", b"2\t0/1\n1\t0/2\n", b"\xff\t0/1"])
def test_a_history_that_is_damaged_is_none(content: bytes) -> None:
    assert parse_history(content) is None


def test_a_slot_that_is_being_made_is_waited_for_and_not_lost() -> None:
    """It has no confirmed position until older transactions have ended, like one of which the WAL is gone."""
    made = replace(SLOT, active_pid=7, confirmed_flush_lsn=None)
    assert made.invalidated == ""
    with pytest.raises(SourceUnavailable, match="slot s is being made by process 7"):
        prove_continuity(None, 0, server=SERVER, slot=made, two_phase=False)


def test_a_slot_that_is_missing_on_a_standby_may_be_on_the_primary() -> None:
    with pytest.raises(SlotLost, match=r"MISSING: .* which is a standby") as found:
        prove_continuity(OPENED, 600, server=replace(SERVER, in_recovery=True), slot=None, two_phase=False)
    assert "target_session_attrs=read-write" in found.value.hint


@pytest.mark.parametrize("temporary", [False, True])
def test_a_slot_that_a_standby_keeps_in_step_is_waited_for_until_its_promotion(*, temporary: bool) -> None:
    """As in a failover that leads there before the standby is promoted. It is temporary until it is in step."""
    kept, standby = replace(SLOT, synced=True, temporary=temporary), replace(SERVER, in_recovery=True)
    with pytest.raises(SourceUnavailable, match="slot s is kept in step with that of the primary"):
        prove_continuity(OPENED, 600, server=standby, slot=kept, two_phase=False)
    promoted = replace(kept, temporary=False)
    assert prove_continuity(OPENED, 600, server=SERVER, slot=promoted, two_phase=False) == 600


def test_a_standby_that_has_not_replayed_what_the_manifest_has_is_waited_for() -> None:
    """After a restart it accepts connections before it is where it was."""
    behind = replace(SERVER, in_recovery=True)
    with pytest.raises(SourceUnavailable, match=r"through 0/3E9, and this standby has replayed its log to 0/3E8"):
        prove_continuity(OPENED, 1001, server=behind, slot=SLOT, two_phase=False)
    assert prove_continuity(OPENED, 1000, server=behind, slot=SLOT, two_phase=False) == 1000
