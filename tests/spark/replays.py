"""A story applied in one way, and everything that is demanded of the table that it makes."""

from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable, QueryBuilder
from pyspark.sql import SparkSession

from sluice.contract.entries import Snapshot
from sluice_spark.lake.commit_way import DIRECT, DISTRIBUTED, MERGE
from tests.spark.canonical import Rows, marks, typed
from tests.spark.changes import Change
from tests.spark.conftest import Pipeline
from tests.spark.protocol_reader import Action, DeltaFolder
from tests.spark.stories import Phase, Story
from tests.spark.story_lake import lake_rows
from tests.spark.table_audit import check_checkpoints, check_checksum, check_files, live_files

SMALL = 60_000
"""Bytes of decoded changes for both tasks at once, so that windows are cut into many parts."""
_OWN = "sluice/shop/16385/1/"


class Replay:
    """`story` through the way `way`, in a folder of its own."""

    def __init__(self, spark: SparkSession, folder: Path, story: Story, way: str) -> None:
        self.foreign = spark.newSession()
        # So small row groups need many rows: Parquet looks at the size of a group every hundred rows.
        self.foreign.conf.set("parquet.block.size", "1024")
        self.story = story
        self.way = way
        self.ways: Counter[str] = Counter()
        """By what the commits say, which do not tell direct and distributed ones apart."""
        self.said: set[str] = set()
        """By what the applier reports."""
        self.pipeline = Pipeline(spark, folder)
        self._expected: dict[int, Rows] = {}
        self._checked = -1
        self._gone = -1
        self._last = story.snapshot
        shape = story.shape
        self.pipeline.manifest.table(story.first, publishes=shape.publishes)
        self._copy()
        self.pipeline.manifest.table(story.first, state="live", new=False, publishes=shape.publishes)
        self._apply(one_by_one=True)

    @property
    def table(self) -> DeltaFolder:
        return DeltaFolder(self.pipeline.path())

    def sql(self, statement: str) -> list[Any]:
        return self.pipeline.sql(statement, session=self.foreign)

    def _copy(self) -> None:
        manifest, schema, rows = self.pipeline.manifest, self.story.first, self.story.initial
        changes = [
            Change("i", typed(row), special=marks(row), lsn=manifest.lsn, ordinal=place)
            for place, row in enumerate(rows)
        ]
        half = len(changes) // 2
        segments = tuple(manifest.segment(part, schema) for part in (changes[:half], changes[half:]) if part)
        entry = Snapshot(schema.table_id, 1, schema.version, manifest.lsn, segments, final=True)
        self._expected[manifest.append(entry)] = self.story.snapshot

    def phase(self, phase: Phase) -> None:
        """Publishes and applies the entries of `phase`, checks each version that came of them, and lets others do what
        comes after it.
        """
        publishes = self.story.shape.publishes
        if phase.new is not None:
            self.pipeline.manifest.table(phase.new, state="live", publishes=publishes)
        for step in phase.steps:
            self._expected[self.pipeline.manifest.entry(step.parts)] = step.after
        self._apply(one_by_one=phase.one_by_one)
        self.check_versions()
        self._others(phase.then)

    def _apply(self, *, one_by_one: bool) -> None:
        shape = self.story.shape
        options: dict[str, Any] = {"max_window_bytes": 1} if one_by_one else {}
        if self.way == DISTRIBUTED:
            options["max_memory_bytes"] = SMALL
        tables = {"public.items": {"targets": shape.targets}}
        options = {**shape.options, **options, "tables": tables, "metadata_columns": shape.metadata}
        row = self.pipeline.apply(way=self.way, **options).tables["16385"]
        assert row.state == "live", f"{self}: {row.state}, {row.reason}"
        if row.way:
            self.said.add(row.way)
        assert self.pipeline.complete().seq == self.pipeline.manifest.seq, f"{self}: not everything was applied"

    def _others(self, what: str) -> None:
        if not what:
            return
        key = ", ".join(f"`{name}`" for name in self.story.shape.key)
        statements = {
            "optimize": "OPTIMIZE {t}",
            "zorder": f"OPTIMIZE {{t}} ZORDER BY ({key})",
            "purge": "REORG TABLE {t} APPLY (PURGE)",
            "vacuum": "VACUUM {t} RETAIN 0 HOURS",
            "checkpoints": "ALTER TABLE {t} SET TBLPROPERTIES ('delta.checkpointInterval' = '3')",
        }
        self.sql(statements[what])
        if what == "vacuum":
            self._gone = self.table.versions()[-1] - 1
        self._compare(None, self._newest(), readers="two")

    def _newest(self) -> Rows:
        return self._expected[max(self._expected)]

    def check_versions(self) -> None:
        """Every version since the last look has the rows of the entry that its marker names; files that were joined
        have the rows of before.
        """
        table = self.table
        versions = table.versions()
        for version in versions:
            if version <= self._checked:
                continue
            check_checksum(table, version)
            actions = table.commit(version)
            info: Action = next((action["commitInfo"] for action in actions if "commitInfo" in action), {})
            marked = self._rows_by_marker(version)
            if marked is not None and version > 0:
                self.ways[way_of(info)] += 1
            self._last = self._last if marked is None else marked
            if marked is not None or info.get("operation") == "OPTIMIZE":
                self._compare(version, self._last, readers="one" if version % 3 else "two")
        self._checked = versions[-1]
        self._compare(None, self._newest(), readers="two")
        check_files(table.state())

    def _rows_by_marker(self, version: int) -> Rows | None:
        """What the entry that the marker of `version` names left; None where a version has no marker of ours. The
        marker of the snapshot names the entry before it.
        """
        seq = seq_of(self.table.commit(version))
        if seq is None:
            return None
        return self._expected[max((found for found in self._expected if found <= seq), default=min(self._expected))]

    def _compare(self, version: int | None, expected: Rows, *, readers: str) -> None:
        state = self.table.state(version)
        found = {"by the protocol": state.rows()}
        if readers != "one":
            found["by delta-rs"] = by_delta_rs(self.pipeline.path(), version)
        for reader, rows in found.items():
            self.assert_same(rows, expected, f"version {state.version} {reader}")

    def assert_same(self, rows: list[dict[str, Any]], expected: Rows, where: str) -> None:
        found = lake_rows(rows, self.story.shape)
        missing, extra = expected - found, found - expected
        assert missing.total() + extra.total() == 0, (
            f"{self}, {where}: {missing.total()} rows are missing, {extra.total()} should not be there\n"
            f"missing: {sorted(missing, key=str)[:3]}\nextra: {sorted(extra, key=str)[:3]}"
        )

    def finish(self) -> None:
        """What is asked of the table when the story is over, by Spark too."""
        table = self.table
        check_checkpoints(table)
        state = table.state()
        check_files(state)
        self.assert_same(self._by_spark(), self._newest(), "the newest version by Spark")
        for file in state.files:
            assert file.path.exists()
        listed = {Path(row["path"].removeprefix("file:")) for row in self.sql("VACUUM {t} RETAIN 0 HOURS DRY RUN")}
        assert not listed & live_files(state), f"{self}: VACUUM would delete what is live"
        history = self.sql("DESCRIBE HISTORY {t}")
        assert [row["version"] for row in history] == sorted(table.versions(), reverse=True)
        self._earlier_by_spark()

    def _by_spark(self, version: int | None = None) -> list[dict[str, Any]]:
        reader = self.foreign.read.format("delta")
        if version is not None:
            reader = reader.option("versionAsOf", version)
        return list(reader.load(str(self.pipeline.path())).toArrow().to_pylist())

    def _earlier_by_spark(self) -> None:
        """Time travel to the oldest version of ours whose files are still there."""
        for version in self.table.versions():
            if version > self._gone and (rows := self._rows_by_marker(version)) is not None:
                self.assert_same(self._by_spark(version), rows, f"version {version} by Spark")
                return

    def __str__(self) -> str:
        return f"{self.story.shape.name}, seed {self.story.seed}, {self.way}"


def by_delta_rs(path: Path, version: int | None) -> list[dict[str, Any]]:
    """All rows, by a scan: counts of delta-rs ignore vectors."""
    scan = QueryBuilder().register("lake", DeltaTable(path, version=version)).execute("select * from lake")
    return list(pa.table(scan.read_all()).to_pylist())


def way_of(info: Action) -> str:
    """How a commit of ours was made, by what Spark's own commands say of themselves and a direct commit does not."""
    by_spark = "partitionBy" in info["operationParameters"] or "executionTimeMs" in info["operationMetrics"]
    return MERGE if by_spark else DIRECT


def seq_of(actions: Iterable[Action]) -> int | None:
    """The entry that the marker of a commit of ours names."""
    markers = (action["txn"] for action in actions if "txn" in action)
    return next((one["version"] for one in markers if _is_own(one["appId"])), None)


def _is_own(app_id: str) -> bool:
    """Other commits of ours have a marker of their own, whose name says more."""
    return app_id.startswith(_OWN) and "/" not in app_id.removeprefix(_OWN)
