"""Other targets of a table that is carried, taken over at a start: what `plan` says beforehand is what happens, and no
lake table gets rows that are not those of its kind.
"""

from collections.abc import Mapping
from dataclasses import replace

import pytest

from sluice.contract.applied import AppliedTable
from sluice.contract.lake_layout import LakeLayout
from sluice.contract.lake_targets import LakeTarget
from sluice.contract.table_state import State
from sluice.manifest.newest_record import newest_log
from sluice.operate.target_changes import target_changes
from sluice_spark.session import private
from tests.e2e.mirror import FOLLOWED, Mirror
from tests.spark import lake
from tests.support.compare import assert_equal
from tests.support.extent import slow

NAME = "public.orders"
MIRROR, SOFT = LakeTarget(), LakeTarget(name="orders_s", deletes="soft")
HISTORY, LOG = LakeTarget("history", "orders_h"), LakeTarget("changelog", "orders_c")


class Story:
    """The table `orders`, whose targets change between starts."""

    def __init__(self, mirror: Mirror) -> None:
        self.mirror = mirror
        self._last = 50

    def planned(self, *targets: LakeTarget) -> dict[str, tuple[str, str]]:
        """By the name of each lake table, what `plan` says of these targets."""
        store = self.mirror.store(FOLLOWED)
        log = newest_log(store).read()
        assert log is not None
        found = target_changes(self.mirror.pipeline.state(), lambda _: targets, log, pruned_seq=0)
        said = [(preview.effect, *preview.why.removeprefix("lake table ").split(": ", 1)) for _, preview in found]
        return {title.rpartition("/")[2]: (effect, why) for effect, title, why in said}

    def restart(self, *targets: LakeTarget) -> Mapping[str, AppliedTable]:
        """The rows that the applier reports after a start with these, when changes came meanwhile."""
        self._last += 10
        self.mirror.execute(
            f"INSERT INTO orders VALUES ({self._last}, 'new'), ({self._last + 1}, 'moves')",
            f"UPDATE orders SET v = 'v{self._last}' WHERE id <= 2",
            f"UPDATE orders SET id = id + 1000 WHERE id = {self._last + 1}",
            f"DELETE FROM orders WHERE id = {self._last - 40}",
        )
        self.mirror.pipeline.run()
        tables = {NAME: {"targets": [target.encode() for target in targets]}}
        self.mirror.apply_by(replace(self.mirror.options(), tables=tables))
        return {row.target: row for row in self.mirror.applied_rows()}

    def restart_live(self, *targets: LakeTarget) -> None:
        """All are live then, and nothing more is planned."""
        rows = self.restart(*targets)
        assert {title: row.state for title, row in rows.items()} == dict.fromkeys(rows, State.LIVE)
        assert self.planned(*targets) == {}

    def versions(self, *names: str) -> dict[str, int]:
        return {name: lake.version(self.mirror.lake_path() / "public" / name) for name in names}

    def rows(self, name: str) -> list[tuple[int, str]]:
        """Those that stand for a row of the source, as another engine reads them."""
        found = lake.rows_in(self.mirror.lake_path() / "public" / name, metadata=True)
        found = [row for row in found if row.get("_sluice_is_current", True) and not row.get("_sluice_deleted_at")]
        return sorted((row["id"], row["v"]) for row in found)

    def source(self) -> list[tuple[int, str]]:
        return self.mirror.database.all("SELECT id, v FROM orders ORDER BY id")

    def ops(self) -> int:
        """How many changes the changelog has, each of them once."""
        found = lake.rows_in(self.mirror.lake_path() / "public" / LOG.name, metadata=True)
        assert len({(row["_sluice_lsn"], row["_sluice_ordinal"], row["id"]) for row in found}) == len(found)
        return len(found)


@slow
@pytest.mark.timeout(900)
def test_what_is_planned_for_other_targets_is_what_happens_at_the_next_start(mirror: Mirror) -> None:
    mirror.execute(
        "CREATE TABLE orders (id int PRIMARY KEY, v text)",
        "INSERT INTO orders SELECT i, 'v' FROM generate_series(1, 50) i",
        f"CREATE PUBLICATION {mirror.database.publication} FOR ALL TABLES",
    )
    story = Story(mirror)
    story.restart_live(MIRROR, SOFT, HISTORY, LOG)

    # Other settings of the same lake tables.
    settings = replace(HISTORY, track=("v",), layout=LakeLayout(cluster_by=("id",)))
    planned = story.planned(MIRROR, replace(SOFT, soft_delete_retention=1.0), settings, LOG)
    assert {name: effect for name, (effect, _) in planned.items()} == {"orders_s": "followed", "orders_h": "followed"}
    assert "track was all columns and is v" in planned["orders_h"][1]
    assert "OPTIMIZE clusters by id" in planned["orders_h"][1]
    story.restart_live(MIRROR, SOFT, settings, LOG)
    changes = story.ops()

    # Renamed: a new lake table from the spool, and the old one stays. Removed: it stays.
    other = replace(HISTORY, name="orders_h2")
    planned = story.planned(MIRROR, SOFT, other)
    assert {name: effect for name, (effect, _) in planned.items()} == {
        "orders_h2": "followed",
        "orders_h": "stop",
        "orders_c": "stop",
    }
    assert "built from the spool" in planned["orders_h2"][1]
    assert "stays at public/orders_h and" in planned["orders_h"][1]
    versions = story.versions("orders_h", "orders_c")
    story.restart_live(MIRROR, SOFT, other)  # what was removed is said once
    assert story.versions(*versions) == versions
    assert story.rows("orders_h2") == story.rows("orders_s") == story.source()

    # A target again, but of another kind: the lake table keeps what it holds.
    changed = replace(HISTORY, name=LOG.name)
    assert "if it holds a history" in story.planned(MIRROR, SOFT, other, changed)[LOG.name][1]
    rows = story.restart(MIRROR, SOFT, other, changed)
    assert rows[LOG.name].state == State.STALE
    assert "holds a changelog, but the configured kind is history" in rows[LOG.name].reason
    assert story.versions(LOG.name)[LOG.name] == versions[LOG.name]
    story.restart(MIRROR, SOFT, other)

    # A target again: the changelog continues, with every change once.
    planned = story.planned(MIRROR, SOFT, other, LOG)
    assert planned.keys() == {LOG.name}
    assert planned[LOG.name][0] == "followed"
    assert "continues at public/orders_c where it stopped" in planned[LOG.name][1]
    story.restart_live(MIRROR, SOFT, other, LOG)
    assert story.ops() == changes + 4 * 6

    # Exchanged names: each lake table holds what its name no longer asks for, and gets nothing.
    swapped = (MIRROR, replace(SOFT, name=other.name), replace(other, name=SOFT.name), LOG)
    planned = story.planned(*swapped)
    assert {name: effect for name, (effect, _) in planned.items()} == {other.name: "stop", SOFT.name: "stop"}
    assert planned[other.name][1].startswith("the lake table holds a history, but the configured kind is mirror with")
    before = story.versions(*planned)
    rows = story.restart(*swapped)
    assert {row.target: row.state for row in rows.values()} == {
        "": State.LIVE,
        LOG.name: State.LIVE,
        other.name: State.STALE,
        SOFT.name: State.STALE,
    }
    assert planned[other.name][1] == rows[other.name].reason
    assert story.versions(*planned) == before
    assert story.planned(*swapped) == planned

    # And back.
    assert story.planned(MIRROR, SOFT, other, LOG) == {}
    story.restart_live(MIRROR, SOFT, other, LOG)
    assert story.rows("orders_h2") == story.rows("orders_s") == story.source()
    assert_equal(mirror.database, ["orders"], lake_uri=mirror.lake_uri())

    # A lake table that was written to while it was no target is not taken up again.
    story.restart(MIRROR, SOFT)
    private(mirror.spark).sql(f"DELETE FROM delta.`{mirror.lake_path() / 'public' / other.name}` WHERE id = 3")
    rows = story.restart(MIRROR, SOFT, other)
    assert rows[other.name].state == State.STALE
    assert rows[""].state == rows[SOFT.name].state == State.LIVE
