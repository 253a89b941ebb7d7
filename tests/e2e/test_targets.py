"""Several lake tables of one source table from a real server: each is what its kind says, whatever happens to the
source table, and another engine reads them where the template puts them.
"""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sluice.contract import resyncs
from sluice.contract.applied import AppliedTable
from sluice.contract.control import RESYNC
from sluice.contract.lake_names import LakeNames
from sluice.contract.lake_targets import LakeTarget
from sluice.contract.row_form import LakeQuestion
from sluice.contract.verified import DIFFERENT, EQUAL, NOT_COMPARED
from sluice.manifest.targets import lake_tables
from sluice.operate.compare.comparing import Comparison
from sluice.tables.policies import Policies, TablePolicy
from sluice_spark.options import ApplyOptions
from sluice_spark.session import private
from tests.e2e.mirror import Mirror
from tests.spark import lake
from tests.support.compare import assert_equal
from tests.support.extent import slow

MIRROR, COPY, LOG = LakeTarget(), LakeTarget(name="Orders_Copy"), LakeTarget("changelog", "orders_log")
TITLES = ("public.orders", "public.orders/Orders_Copy", "public.orders/orders_log")


class Fed:
    """A table `orders` that feeds `targets`, at paths by a template."""

    def __init__(self, mirror: Mirror) -> None:
        self.mirror = mirror
        self.targets: tuple[LakeTarget, ...] = (MIRROR, COPY)
        self.name = "public.orders"

    @property
    def ingest(self) -> dict[str, Any]:
        names = LakeNames("{database}/lake_{schema}_{target}", lower=True, database="Shop")
        policy = TablePolicy(targets=(MIRROR, COPY, LOG), names=names)
        return {"policies": Policies(TablePolicy(names=names), {self.name: policy})}

    @property
    def options(self) -> ApplyOptions:
        targets = [target.encode() for target in self.targets]
        return replace(self.mirror.options(), tables={self.name: {"targets": targets}})

    def follow(self) -> dict[str, AppliedTable]:
        self.mirror.pipeline.run(**self.ingest)
        self.mirror.apply_by(self.options)
        return {row.title: row for row in self.mirror.applied_rows()}

    def ask(self, action: str) -> None:
        self.mirror.pipeline.request(action, table=self.name.partition(".")[2])

    def assert_mirrors(self, table: str = "orders") -> None:
        for name in ("orders", "orders_copy"):
            path = f"shop/lake_public_{name}"
            assert_equal(self.mirror.database, [table], lake_uri=self.mirror.lake_uri(), paths={table: path})

    def path(self, name: str) -> Path:
        return self.mirror.lake_path() / "shop" / f"lake_public_{name}"

    def ops(self) -> str:
        """Of the changelog, in their order, as another engine reads it."""
        rows = lake.rows_in(self.path("orders_log"), metadata=True)
        rows.sort(key=lambda row: (row["_sluice_lsn"], row["_sluice_ordinal"]))
        return "".join(row["_sluice_op"] for row in rows)

    def verdicts(self) -> dict[str, Comparison]:
        def before(_: LakeQuestion) -> None:
            self.mirror.pipeline.run(**self.ingest)

        comparing = self.mirror.comparing(self.mirror.source(**self.ingest), before=before, options=self.options)
        states = list(lake_tables(self.mirror.pipeline.state(), self.options.targets_of).values())
        return {verdict.name: verdict for verdict in comparing.compare(states)}


@pytest.fixture
def fed(mirror: Mirror) -> Iterator[Fed]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(resyncs, "REST", 0.0)
        patch.setattr(resyncs, "PAUSES_SECONDS", (0.0,))
        yield Fed(mirror)


@slow
def test_targets_of_one_table_go_through_all_that_happens_to_it(fed: Fed) -> None:
    mirror = fed.mirror
    mirror.execute(
        "CREATE TABLE orders (id int PRIMARY KEY, v text, n numeric(9,2))",
        "ALTER TABLE orders REPLICA IDENTITY FULL",
        "INSERT INTO orders SELECT i, 'v' || i, i / 4.0 FROM generate_series(1, 50) i",
        f"CREATE PUBLICATION {mirror.database.publication} FOR ALL TABLES",
    )
    fed.follow()
    mirror.transaction(
        "UPDATE orders SET v = 'changed' WHERE id <= 3", "UPDATE orders SET id = 1000 WHERE id = 4",
        "DELETE FROM orders WHERE id = 5",
    )  # fmt: skip
    fed.follow()
    fed.assert_mirrors()

    # A target that comes later has all changes since the snapshot, and the others are left alone.
    versions = [lake.version(fed.path(name)) for name in ("orders", "orders_copy")]
    fed.targets = (MIRROR, COPY, LOG)
    rows = fed.follow()
    assert tuple(rows) == TITLES
    assert {row.state for row in rows.values()} == {"live"}
    assert versions == [lake.version(fed.path(name)) for name in ("orders", "orders_copy")]
    assert fed.ops() == "i" * 50 + "uuuud"

    mirror.execute(
        "ALTER TABLE orders ADD w int DEFAULT 7",
        "INSERT INTO orders VALUES (60, 'new', 1, 8)",
        "TRUNCATE orders",
        "INSERT INTO orders VALUES (1, 'again', 2, 9), (2, NULL, NULL, NULL)",
    )
    fed.follow()
    fed.assert_mirrors()
    assert fed.ops() == "i" * 50 + "uuuud" + "iti" + "i"
    assert {name: one.outcome for name, one in fed.verdicts().items()} == dict(
        zip(TITLES, (EQUAL, EQUAL, NOT_COMPARED), strict=True)
    )

    # Each is compared by itself.
    session = private(mirror.spark)
    session.sql(f"UPDATE delta.`{fed.path('orders_copy')}` SET v = 'wrong' WHERE id = 1")
    found = fed.verdicts()
    assert [found[title].outcome for title in TITLES[:2]] == [EQUAL, DIFFERENT]
    mirror.execute("INSERT INTO orders VALUES (3, 'more', 3, 3)")
    rows = fed.follow()
    assert [row.state.value for row in rows.values()] == ["live", "stale", "live"]

    # A new snapshot is one for all of them.
    fed.ask(RESYNC)
    rows = fed.follow()
    assert {(row.state.value, row.generation) for row in rows.values()} == {("live", 2)}
    fed.assert_mirrors()
    assert fed.ops() == "i" * 3

    # A renamed table feeds the same lake tables; its settings are by the new name.
    mirror.execute("ALTER TABLE orders RENAME TO sales", "INSERT INTO sales VALUES (4, 'renamed', 4, 4)")
    fed.name = "public.sales"
    rows = fed.follow()
    assert {title.partition("/")[0] for title in rows} == {"public.sales"}
    assert {row.state.value for row in rows.values()} == {"live"}
    fed.assert_mirrors("sales")
    assert fed.ops() == "i" * 4

    mirror.execute("DROP TABLE sales")
    rows = fed.follow()
    assert {row.state.value for row in rows.values()} == {"detached"}
    assert len(lake.rows_in(fed.path("orders_copy"))) == 4
