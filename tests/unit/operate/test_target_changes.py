"""What `plan` says of other targets where a start would not simply build them from the spool. What it says otherwise is
compared with what happens in tests/e2e/test_target_changes.py.
"""

from dataclasses import replace

from sluice.contract.applied import AppliedLog, AppliedTable
from sluice.contract.lake_targets import LakeTarget
from sluice.contract.schema import TableSchema
from sluice.contract.table_state import State
from sluice.manifest.gaps import Gap
from sluice.manifest.values import PipelineState, TableState
from sluice.operate.target_changes import target_changes

SCHEMA = TableSchema("7", 1, "public", "orders", "d", ())
TABLE = TableState("7", "public", "orders", State.LIVE, None, 10, 1, 5, {1: SCHEMA}, path="public/orders")
ROW = AppliedTable("7", "public", "orders", "public/orders", "mirror", 1, State.LIVE, delta_version=3)
MIRROR, LOG = LakeTarget(), LakeTarget("changelog", "orders_c")


def planned(
    *targets: LakeTarget, table: TableState = TABLE, row: AppliedTable = ROW, pruned: int = 0, left: str = ""
) -> list[tuple[str, str]]:
    """The effect and reason of each change."""
    other = TableState("8", "public", "old", State.LIVE, None, 10, 1, 5, {1: SCHEMA}, path="public/orders_c")
    manifest = PipelineState(tables={"7": table, "8": other})
    reported = AppliedLog(1, "one", "2026-11-01T00:00:00.000+00:00", {"7": row}, left={LOG.name: left} if left else {})

    def configured(name: str) -> tuple[LakeTarget, ...]:
        return targets if name == "public.orders" else (LakeTarget(name="elsewhere"),)

    found = target_changes(manifest, configured, reported, pruned_seq=pruned)
    return [(preview.effect, preview.why) for _, preview in found]


def test_what_the_spool_no_longer_has_cannot_make_a_lake_table() -> None:
    assert planned(MIRROR) == []
    ((effect, why),) = planned(MIRROR, LOG, pruned=4)
    built = "lake table public.orders/orders_c: it is added at public/orders_c, and built from the spool"
    assert (effect, why) == ("followed", built)
    ((effect, why),) = planned(MIRROR, LOG, pruned=5)
    assert (effect, "no longer has the snapshot" in why, "`sluice resync public.orders`" in why) == ("stop", True, True)


def test_changes_that_are_lost_cannot_be_in_a_changelog() -> None:
    closed = replace(TABLE, gaps=(Gap(6, 1, 10, 20, as_of_lsn=30),))
    ((effect, why),) = planned(MIRROR, LOG, table=closed)
    assert (effect, "changes since the snapshot are lost" in why) == ("stop", True)
    assert planned(MIRROR, LakeTarget(name="copy"), table=closed)[0][0] == "followed"


def test_a_lake_table_that_was_a_target_before_continues() -> None:
    ((effect, why),) = planned(MIRROR, LOG, pruned=5, left="public/orders_c")
    continues = "continues at public/orders_c where it stopped if it holds a changelog and the spool still has all"
    assert (effect, continues in why) == ("followed", True)


def test_a_lake_table_that_begins_again_is_made_in_the_kind_that_is_configured() -> None:
    soft = LakeTarget(deletes="soft")
    ((effect, why),) = planned(soft)
    assert (effect, "holds a mirror, but the configured kind is mirror with soft deletes" in why) == ("stop", True)
    assert planned(soft, table=replace(TABLE, generation=2)) == []
    assert planned(soft, row=replace(ROW, delta_version=-1)) == []
    assert planned(MIRROR, row=replace(ROW, mode="mirror of whole rows")) == []


def test_tables_that_nothing_follows_are_not_planned() -> None:
    assert planned(LOG, table=replace(TABLE, state=State.DETACHED)) == []
