"""What `plan` says of targets that a start would not build from the spool. The rest: tests/e2e."""

from dataclasses import replace

from sluice.contract.applied import AppliedLog, AppliedTable
from sluice.contract.lake_layout import LakeLayout
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
    ((effect, why),) = planned(MIRROR, LOG, table=closed, left="public/orders_c")
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


def test_settings_that_change_say_what_becomes_of_rows_that_are_there() -> None:
    history, row = LakeTarget("history"), replace(ROW, mode="history")
    ((effect, why),) = planned(replace(history, track=("a", "b")), row=row)
    said = "track was all columns and is a, b for changes that are applied from then on; older versions stay"
    assert (effect, why) == ("followed", f"lake table public.orders: {said}")
    assert planned(replace(history, track=("a",)), row=replace(row, track=("a",))) == []
    soft = LakeTarget(deletes="soft", soft_delete_retention=9.0)
    row = replace(ROW, mode="mirror with soft deletes")
    assert "deleted longer ago than the new soft_delete_retention are removed" in planned(soft, row=row)[0][1]
    row = replace(row, soft_delete_retention=9.0)
    assert planned(soft, row=row) == []
    assert "deleted rows are kept from then on" in planned(replace(soft, soft_delete_retention=None), row=row)[0][1]


def test_a_layout_that_changes_says_what_is_done_at_once_and_what_waits_for_somebody() -> None:
    def said(now: LakeLayout, was: LakeLayout) -> str:
        found = planned(replace(MIRROR, layout=now), row=replace(ROW, layout=was))
        assert {effect for effect, _ in found} <= {"followed"}
        return "; ".join(why.removeprefix("lake table public.orders: ") for _, why in found)

    plain, made_again = LakeLayout(), "holds when the lake table is made again (`sluice rebuild public.orders`"
    clustered, other = LakeLayout(cluster_by=("a", "b")), LakeLayout(cluster_by=("b",))
    parted = LakeLayout(partition_by=("day",))
    described = LakeLayout((("team", "shop"), ("delta.targetFileSize", "64m")))
    vectors = LakeLayout((("delta.enableDeletionVectors", "false"),))
    for layout in (plain, clustered, parted, described, vectors):
        assert said(layout, layout) == ""
    assert said(replace(described, properties=described.properties[::-1]), described) == ""
    assert said(described, plain) == "properties are set: delta.targetFileSize, team"
    assert said(plain, described).startswith("properties stay in the lake table until somebody unsets them: delta.")
    for now, was in ((vectors, plain), (plain, vectors)):
        assert said(now, was).startswith(f"delta.enableDeletionVectors: {made_again}")
    for was in (plain, other):
        assert said(clustered, was) == "OPTIMIZE clusters by a, b, and nothing is rewritten at once"
    assert said(plain, other) == "the clustering by b stays until somebody ends it"
    waits = "partition_by was {} and is {} from the next snapshot on: `sluice resync public.orders`"
    assert said(parted, plain) == waits.format("no column", "day")
    assert said(parted, other) == waits.format("no column", "day") + "; the clustering by b stays until that snapshot"
    assert said(other, parted) == waits.format("day", "no column") + "; OPTIMIZE clusters by b, after that snapshot"


def test_settings_of_a_lake_table_that_is_made_again_hold_with_it() -> None:
    parted = replace(MIRROR, layout=LakeLayout(partition_by=("day",)))
    assert planned(parted, table=replace(TABLE, generation=2)) == []
    assert planned(parted, row=replace(ROW, delta_version=-1)) == []


def test_tables_that_nothing_follows_are_not_planned() -> None:
    assert planned(LOG, table=replace(TABLE, state=State.DETACHED)) == []
