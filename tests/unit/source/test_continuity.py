"""Whether we may go on from a slot: each way in which server and manifest can disagree has its
name, and only agreement gives a position.
"""

from dataclasses import replace

import pytest

from sluice.contract.entries import Opened
from sluice.errors import SlotLost
from sluice.source.continuity import prove_continuity
from sluice.source.facts import ServerFacts, SlotFacts

SERVER = ServerFacts(
    system_identifier="7",
    timeline=1,
    database="shop",
    database_oid=16384,
    server_version=180004,
    wal_end_lsn=1000,
    wal_level="logical",
    in_recovery=False,
    encoding="UTF8",
)
SLOT = SlotFacts(
    name="sluice_shop",
    plugin="pgoutput",
    slot_type="logical",
    database="shop",
    temporary=False,
    active_pid=None,
    restart_lsn=400,
    confirmed_flush_lsn=500,
    two_phase=False,
    failover=False,
    synced=False,
    wal_status="reserved",
    invalidation_reason="",
    conflicting=False,
    safe_wal_size=None,
    catalog_xmin_age=3,
)
OPENED = Opened(
    system_identifier="7",
    timeline=1,
    database="shop",
    database_oid=16384,
    slot="sluice_shop",
    publication="sluice_shop",
    two_phase=False,
    origin="any",
    server_version=180004,
    start_lsn=100,
    instance="i",
)

DOUBTS = {
    "a slot that is gone": ("MISSING", SERVER, None, 500),
    "a slot on another cluster": ("WRONG_CLUSTER", replace(SERVER, system_identifier="8"), SLOT, 500),
    "another cluster without the slot": ("WRONG_CLUSTER", replace(SERVER, system_identifier="8"), None, 500),
    "another database": (
        "WRONG_DATABASE",
        replace(SERVER, database="other", database_oid=16385),
        replace(SLOT, database="other"),
        500,
    ),
    "the database dropped and made again": ("WRONG_DATABASE", replace(SERVER, database_oid=16999), SLOT, 500),
    "the slot of another database": ("WRONG_DATABASE", SERVER, replace(SLOT, database="other"), 500),
    "a failover": ("TIMELINE", replace(SERVER, timeline=2), SLOT, 500),
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
    for slot in (
        None,
        replace(SLOT, wal_status="lost"),
        replace(SLOT, plugin="test_decoding"),
        replace(SLOT, two_phase=True),
    ):
        with pytest.raises(SlotLost):
            prove_continuity(None, 0, server=SERVER, slot=slot, two_phase=False)


def test_two_phase_may_be_on_when_both_sides_say_so() -> None:
    assert prove_continuity(OPENED, 600, server=SERVER, slot=replace(SLOT, two_phase=True), two_phase=True) == 600
