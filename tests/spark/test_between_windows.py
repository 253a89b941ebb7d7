"""What other programs do to a lake table between two windows of a running applier, in every way of committing: the
table has the rows of the source afterwards, for every reader, or it is stopped by name.
"""

from collections import Counter
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import pytest
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException

from sluice.errors import UnsupportedChange
from sluice_spark.lake.commit_way import DIRECT, DISTRIBUTED, MERGE
from tests.spark.changes import Change
from tests.spark.conftest import Pipeline
from tests.spark.model import SCHEMA, row
from tests.spark.protocol_reader import DeltaFolder
from tests.spark.replays import by_delta_rs
from tests.spark.table_audit import check_checkpoints, check_checksum, check_files
from tests.spark.windows import Windows
from tests.support.extent import slow

WAYS = (DIRECT, DISTRIBUTED, MERGE)
Rows = dict[int, tuple[int, str]]
"""(v, big) by id."""


def _set(**properties: str) -> str:
    stated = ", ".join(f"'delta.{name.replace('__', '.')}' = '{value}'" for name, value in properties.items())
    return f"ALTER TABLE {{t}} SET TBLPROPERTIES ({stated})"


@dataclass(frozen=True)
class Done:
    """Statements of somebody else; `stops` is a part of the reason for which the table is stopped, empty for none.
    `refused` says that Delta refuses the last statement itself, `by_spark` that Spark alone reads the
    table afterwards: our own reader does not know its features, or its checkpoints leave out what was removed.
    """

    statements: tuple[str, ...]
    stops: str = ""
    refused: bool = False
    by_spark: bool = False


def _done(*statements: str, stops: str = "", refused: bool = False, by_spark: bool = False) -> Done:
    return Done(statements, stops, refused, by_spark)


OPERATIONS = {
    "optimized": _done("OPTIMIZE {t}"),
    "sorted": _done("OPTIMIZE {t} ZORDER BY (v, id)"),
    "purged": _done("REORG TABLE {t} APPLY (PURGE)"),
    "vacuumed": _done("OPTIMIZE {t}", "VACUUM {t} RETAIN 0 HOURS"),
    "clustered": _done("ALTER TABLE {t} CLUSTER BY (v)", "OPTIMIZE {t}", "OPTIMIZE {t} FULL"),
    "clustered no more": _done("ALTER TABLE {t} CLUSTER BY (v)", "OPTIMIZE {t}", "ALTER TABLE {t} CLUSTER BY NONE"),
    "checkpoints of version 2": _done(_set(checkpointPolicy="v2", checkpointInterval="1"), by_spark=True),
    "checkpoints without JSON": _done(
        _set(checkpoint__writeStatsAsJson="false", checkpoint__writeStatsAsStruct="true", checkpointInterval="1"),
        "OPTIMIZE {t}", by_spark=True,
    ),
    "a log without a past": _done(
        _set(
            deletedFileRetentionDuration="interval 0 seconds", logRetentionDuration="interval 0 seconds",
            checkpointInterval="1",
        ),
        "OPTIMIZE {t}", "VACUUM {t}", by_spark=True,
    ),
    "times in commits": _done(_set(enableInCommitTimestamps="true"), "OPTIMIZE {t}"),
    "ids of rows": _done(_set(enableRowTracking="true"), "OPTIMIZE {t}"),
    "ids of rows, no more": _done(
        _set(enableRowTracking="true"), "OPTIMIZE {t}", _set(enableRowTracking="false"), "OPTIMIZE {t}"
    ),
    "a feed": _done(_set(enableChangeDataFeed="true"), "OPTIMIZE {t}"),
    "vectors off": _done(_set(enableDeletionVectors="false"), "REORG TABLE {t} APPLY (PURGE)"),
    "vectors off and on": _done(
        _set(enableDeletionVectors="false"), "OPTIMIZE {t}", _set(enableDeletionVectors="true"), "OPTIMIZE {t}"
    ),
    "the feature of vectors dropped": _done("ALTER TABLE {t} DROP FEATURE deletionVectors"),
    "append only": _done(_set(appendOnly="true"), stops="APPEND_ONLY"),
    "append only, no more": _done(_set(appendOnly="true"), "OPTIMIZE {t}", _set(appendOnly="false")),
    "statistics of nothing": _done(_set(dataSkippingNumIndexedCols="0"), "OPTIMIZE {t}"),
    "statistics of another column": _done(_set(dataSkippingStatsColumns="v"), "OPTIMIZE {t}"),
    "compacted by itself": _done(_set(autoOptimize__autoCompact="true", autoOptimize__optimizeWrite="true")),
    "random prefixes": _done(_set(randomizeFilePrefixes="true"), "OPTIMIZE {t}"),
    "wider types allowed": _done(_set(enableTypeWidening="true"), "OPTIMIZE {t}", by_spark=True),
    "a manifest of files": _done(_set(compatibility__symlinkFormatManifest__enabled="true"), refused=True),
    "a constraint that holds": _done("ALTER TABLE {t} ADD CONSTRAINT c CHECK (id > 0)"),
    "a constraint that went": _done(
        "ALTER TABLE {t} ADD CONSTRAINT c CHECK (id > 0)", "ALTER TABLE {t} DROP CONSTRAINT c"
    ),
    "a default": _done(
        _set(feature__allowColumnDefaults="supported"), "ALTER TABLE {t} ALTER COLUMN v SET DEFAULT 7", stops="CHANGE"
    ),
    "another order": _done("ALTER TABLE {t} ALTER COLUMN v FIRST", stops="CHANGE COLUMN"),
    "another name": _done("ALTER TABLE {t} RENAME COLUMN v TO w", stops="RENAME COLUMN"),
    "another name and back": _done(
        "ALTER TABLE {t} RENAME COLUMN v TO w", "ALTER TABLE {t} RENAME COLUMN w TO v", stops="RENAME COLUMN"
    ),
    "names of columns without ids": _done(_set(columnMapping__mode="none"), stops="COLUMN MAPPING"),
    "columns by id": _done(_set(columnMapping__mode="id"), refused=True),
    "an identity": _done("ALTER TABLE {t} ADD COLUMN n BIGINT GENERATED ALWAYS AS IDENTITY", refused=True),
    "commits by a coordinator": _done(
        _set(**{"coordinatedCommits__commitCoordinator-preview": "nobody"}), refused=True
    ),
    "commits by a catalog": _done(_set(feature__catalogManaged="supported"), refused=True),
    "restored to now": _done("RESTORE TABLE {t} TO VERSION AS OF {now}"),
    "optimized and restored": _done("OPTIMIZE {t}", "RESTORE TABLE {t} TO VERSION AS OF {now}", stops="RESTORE"),
    "a clone of it": _done("CREATE TABLE delta.`{folder}/clone` SHALLOW CLONE {t}", "OPTIMIZE delta.`{folder}/clone`"),
    "its own clone": _done(
        "CREATE TABLE delta.`{folder}/clone` SHALLOW CLONE {t}",
        "CREATE OR REPLACE TABLE {t} SHALLOW CLONE delta.`{folder}/clone`",
        refused=True,
    ),
    "its history cut": _done(
        "ALTER TABLE {t} DROP FEATURE deletionVectors TRUNCATE HISTORY", refused=True
    ),
    "a warning of vacuums": _done(_set(feature__vacuumProtocolCheck="supported"), "VACUUM {t}", by_spark=True),
}  # fmt: skip


class Story:
    """A lake table of which every window changes something, and the rows that it is to have."""

    def __init__(self, pipeline: Pipeline, way: str) -> None:
        self.pipeline = pipeline
        self.rows: Rows = dict.fromkeys(range(1, 41), (0, "B"))
        pipeline.begin(SCHEMA, *(row(number) for number in self.rows))
        self.windows = Windows(pipeline, way=way)
        self.windows.apply()
        self.number = 0

    def window(self) -> str:
        """An update that sends all, one that keeps a value, a change of a key, a delete, two inserts. The way."""
        self.number += 1
        n, new = self.number, 100 * self.number
        self.rows[n] = (n, f"said {n}")
        self.rows[n + 10] = (n, self.rows[n + 10][1])
        self.rows[new] = (n, self.rows.pop(n + 20)[1])
        del self.rows[n + 30]
        self.rows[new + 1] = self.rows[new + 2] = (n, "new")
        changes = (
            Change("u", row(n, n, f"said {n}")),
            Change("u", {"id": n + 10, "v": n}, unchanged=("big", "at")),
            Change("u", {"id": new, "v": n}, old={"id": n + 20}, unchanged=("big", "at")),
            Change("d", old={"id": n + 30}),
            Change("i", row(new + 1, n, "new")),
            Change("i", row(new + 2, n, "new")),
        )
        return self.windows.change(*changes).way.name

    def check(self, *, by_spark: bool) -> None:
        expected = Counter((number, *values) for number, values in self.rows.items())
        frame = self.pipeline.spark.newSession().read.format("delta").load(str(self.pipeline.path()))
        assert _counted([one.asDict() for one in frame.collect()]) == expected
        if by_spark:
            return
        table = DeltaFolder(self.pipeline.path())
        state = table.state()
        check_files(state)
        check_checksum(table, state.version)
        check_checkpoints(table)
        assert _counted(state.rows()) == expected
        assert _counted(by_delta_rs(self.pipeline.path(), None)) == expected


def _counted(rows: list[dict[str, Any]]) -> Counter[tuple[int, int, str]]:
    return Counter((one["id"], one["v"], one["big"]) for one in rows)


@slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", OPERATIONS)
def test_what_others_do_between_two_windows_leaves_the_rows_of_the_source_or_stops_the_table(
    pipeline: Pipeline, way: str, name: str
) -> None:
    done = OPERATIONS[name]
    story = Story(pipeline, way)
    story.window()
    now = str(pipeline.version())
    for statement in done.statements:
        is_refused = done.refused and statement == done.statements[-1]
        with pytest.raises((PySparkException, Py4JJavaError)) if is_refused else nullcontext():
            pipeline.sql(statement.replace("{now}", now).replace("{folder}", str(pipeline.folder)))
    if done.stops:
        with pytest.raises(UnsupportedChange, match=done.stops):
            story.window()
        return
    for _ in range(2):
        story.window()
    story.check(by_spark=done.by_spark)
