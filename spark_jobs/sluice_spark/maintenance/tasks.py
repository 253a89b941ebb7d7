"""One turn of one lake table: Delta's own statements, each between two looks at the table.

Owns that whatever a statement commits is judged like anybody else's commit: it carries no mark of ours,
so it counts as harmless only because it rearranged files. Data files are removed by Delta's VACUUM alone,
never by this process. Before each statement `before_commit` raises when this process may not commit.
Runs in a worker thread; the caller holds the table's mutex.
"""

import json
import math
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from pyspark.sql import SparkSession

from sluice import faults
from sluice.contract.applied import MaintenanceRun, time_text
from sluice.errors import ApplyError, UnsupportedChange, WriterFenced
from sluice_spark.lake.build import LOG, PREFIX
from sluice_spark.lake.delta_calls import DeltaCalls
from sluice_spark.lake.examined_version import ExaminedVersion
from sluice_spark.lake.failures import SparkGone, translated_errors
from sluice_spark.lake.foreign_commits import TAG, Commit
from sluice_spark.lake.table import USER_METADATA, LakeTable
from sluice_spark.maintenance.file_counts import count_files
from sluice_spark.maintenance.planner import SPARSE, TIERS, FileCounts, Turn, worth_doing

BATCH_BYTES = 256 << 20
"""Written anew per commit: what a cancelled join has committed stays done."""
SETTINGS = {
    "spark.databricks.delta.optimize.maxFileSize": str(TIERS[-1]),
    "spark.databricks.delta.optimize.maxDeletedRowsRatio": str(SPARSE),
    "spark.databricks.delta.optimize.batchSize": str(BATCH_BYTES),
    "spark.databricks.delta.optimize.maxThreads": "1",
    # The retention that we ask for is at least an hour, whatever the table's own says.
    "spark.databricks.delta.retentionDurationCheck.enabled": "false",
    "spark.databricks.delta.vacuum.retentionWindowIgnore.enabled": "false",
    # For people who read the table's history.
    USER_METADATA: json.dumps({TAG: "maintenance"}),
    # In a job, which can be cancelled.
    "spark.databricks.delta.vacuum.parallelDelete.enabled": "true",
    "spark.sql.sources.parallelPartitionDiscovery.parallelism": "2",
}
"""Of the session that maintenance has for itself."""
SMALLEST_FILE = "spark.databricks.delta.optimize.minFileSize"
_REMEMBERS, _OURS = "delta.deletedFileRetentionDuration", "sluice.deletedFileRetentionDuration"
"""The second one has the value that the first one has from us."""
MOST_DAYS = 30
"""The log of a table that says nothing of it, by Delta's rules, which want removed files to be forgotten first."""
_LONGEST_PREFIX = 2
"""Of the folders that Delta makes for data files under random names."""
_HOUR = 3600.0
_REMOVED, _ADDED = ("numRemovedFiles", "numRemovedBytes"), ("numAddedFiles", "numAddedBytes")
_VACUUMED = ("numDeletedFiles", "sizeOfDataToDelete")


class Interrupted(Exception):
    """The turn was called off. What it had committed stays."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a turn did. `place` is where the lake table stands since then, `runs` each task that ran."""

    place: ExaminedVersion
    runs: dict[str, MaintenanceRun] = field(default_factory=dict)


@dataclass(slots=True)
class Call:
    """A turn that is under way, and the way to call it off from another thread."""

    session: SparkSession
    group: str = field(default_factory=lambda: f"maintenance-{uuid.uuid4()}")
    """Of its jobs. Spark remembers the groups that were called off."""
    called_off: threading.Event = field(default_factory=threading.Event)

    def begin(self) -> None:
        """In the thread of the turn."""
        context = self.session.sparkContext
        context.setLocalProperty("spark.scheduler.pool", "maintenance")
        context.setJobGroup(self.group, "maintenance of a lake table", interruptOnCancel=False)

    def end(self) -> None:
        """In the thread of the turn: what it does next belongs to somebody else."""
        for name in ("spark.jobGroup.id", "spark.job.description"):
            self.session.sparkContext.setLocalProperty(name, None)  # type: ignore[arg-type, unused-ignore]

    def call_off(self) -> None:
        """Cancels its jobs, those to come as well. Raises SparkGone."""
        if not self.called_off.is_set():
            self.called_off.set()
            java: Any = self.session.sparkContext._jsc
            with translated_errors():
                java.sc().cancelJobGroupAndFutureJobs(self.group)


class TableTurn:
    """A turn of the table `lake`, whose session is the one of `call`. `others` are the places of everything
    else of this pipeline that must not lie below the table's.
    """

    def __init__(
        self, lake: LakeTable, call: Call, *, before_commit: Callable[[], None], others: Iterable[str]
    ) -> None:
        self._lake = lake
        self._calls = DeltaCalls(lake.session)
        self._call = call
        self._before_commit = before_commit
        self._others = tuple(others)
        self._runs: dict[str, MaintenanceRun] = {}

    def run(
        self, turn: Turn, *, retention_seconds: float, held_since: Callable[[], float] = lambda: math.inf
    ) -> Outcome:
        """What was removed stays for `retention_seconds`, and what was removed since `held_since` (unix seconds) too:
        that is asked for right before anything may go. Raises Interrupted, UnsupportedChange when the table is not the
        one that it was, ApplyError, StoreError, WriterFenced.
        """
        self._call.begin()
        try:
            self._lake.examine()
            if turn is Turn.TIDY:
                self._tidy()
            else:
                self._vacuum(retention_seconds, held_since)
            return Outcome(self._lake.place, self._runs)
        except (UnsupportedChange, WriterFenced, SparkGone):
            # What a look found once it may not find again.
            raise
        except Exception:
            # Spark's error of a cancelled job says less.
            if self._call.called_off.is_set():
                raise Interrupted from None
            raise
        finally:
            self._call.end()

    def _tidy(self) -> None:
        session = self._lake.session
        plan = worth_doing(self._count_files())
        if plan.purge:
            self._statement("purge", f"REORG TABLE {self._lake.expression} APPLY (PURGE)")
            plan = replace(worth_doing(self._count_files()), purge=False)
        if plan.join is not None:
            session.conf.set(SMALLEST_FILE, str(plan.join.below))
            self._statement("join", f"OPTIMIZE {self._lake.expression}")

    def _count_files(self) -> FileCounts:
        with _no_verdict():
            return count_files(self._lake.session, self._lake.path)

    def _vacuum(self, retention_seconds: float, held_since: Callable[[], float]) -> None:
        with _no_verdict():
            self._require_alone()
            self._forget_builds()
            remembers, is_asked_for = self._remembers()
        held = time.time() - held_since()
        # Delta rounds to hours.
        hours = math.ceil(max(retention_seconds, held, _HOUR, remembers if is_asked_for else 0.0) / _HOUR)
        if remembers < held if is_asked_for else remembers < hours * _HOUR:
            self._remember(days=hours // 24 + 2, instead_of=remembers, may=not is_asked_for)
        self._statement("vacuum", f"VACUUM {self._lake.expression} RETAIN {hours} HOURS")

    def _statement(self, task: str, text: str) -> None:
        def run() -> None:
            self._lake.session.sql(text).collect()

        self._timed(task, run)

    def _timed(self, task: str, run: Callable[[], None]) -> None:
        if self._call.called_off.is_set():
            raise Interrupted
        before = self._lake.place.version
        began = time.monotonic()
        self._before_commit()
        faults.point("apply.maintenance.before")
        with _no_verdict():
            run()
        faults.point("apply.maintenance.after")
        self._lake.examine()
        commits = self._lake.commits_since(before)
        self._runs[task] = _run(task, commits, seconds=time.monotonic() - began)

    def _remember(self, *, days: int, instead_of: float, may: bool) -> None:
        """Lets the table remember for so many `days` which files it has removed. Raises ApplyError when this `may` not
        be, because somebody else asked for less, or Delta asks for a longer log.
        """
        if not may or days > MOST_DAYS:
            raise ApplyError(
                f"the lake table remembers for {instead_of / _HOUR:g} h which files it has removed ({_REMEMBERS}), and "
                "they must stay for longer: VACUUM would remove them",
                hint=f"let delta.logRetentionDuration and {_REMEMBERS} of the table be at least {days} days, or lower "
                "lake.vacuum_after or lake.boundary_retention",
            )
        value = f"interval {days} days"
        self._lake.alter(f"SET TBLPROPERTIES ('{_REMEMBERS}' = '{value}', '{_OURS}' = '{value}')")

    def _remembers(self) -> tuple[float, bool]:
        """For how many seconds the table remembers which files it has removed, and whether somebody else asked for
        that: VACUUM takes files that it has forgotten for such as it never had, which go by their age.
        """
        metadata = self._calls.newest(self._calls.log(self._lake.path)).metadata()
        seconds = float(self._calls.logs.tombstoneRetentionMillis(metadata)) / 1000
        asked, ours = (metadata.configuration().get(name) for name in (_REMEMBERS, _OURS))
        return seconds, bool(asked.isDefined()) and not asked.equals(ours)

    def _require_alone(self) -> None:
        """VACUUM removes whatever lies below the table and is not of it. Raises ApplyError when something
        does that is none of Delta's business.
        """
        here = self._lake.path.rstrip("/") + "/"
        if any(other.startswith(here) for other in self._others):
            raise ApplyError(
                "the spool or another lake table lies in the folder of this lake table, and VACUUM would remove it",
                hint="move it, or set tables.<table>.maintenance to false",
            )
        for name in self._folders():
            if name.startswith(("_", ".", PREFIX)) or "=" in name:
                continue
            # A folder of data files has no folders; one that has may be another pipeline's lake table.
            if len(name) > _LONGEST_PREFIX or self._folders(f"/{name}"):
                raise ApplyError(
                    "the folder of the lake table has a folder that Delta did not make, and VACUUM would empty it",
                    hint="move it, or set tables.<table>.maintenance to false",
                )

    def _folders(self, below: str = "") -> list[str]:
        """The names of the folders in that of the table, or in one of those."""
        folder, files = self._calls.place(f"{self._lake.path}{below}")
        return [str(status.getPath().getName()) for status in files.listStatus(folder) if status.isDirectory()]

    def _forget_builds(self) -> None:
        """Logs of snapshots' builds, which a crash left: VACUUM passes by them. None is under way, for the table
        has its snapshot.
        """
        for name in self._folders():
            if name.startswith(PREFIX):
                self._before_commit()
                log, files = self._calls.place(f"{self._lake.path}/{name}/{LOG}")
                files.delete(log, True)  # noqa: FBT003 - a method of Java


@contextmanager
def _no_verdict() -> Iterator[None]:
    """What Delta refuses inside the block says nothing of the rows of the table: only a look does."""
    try:
        with translated_errors():
            yield
    except UnsupportedChange as error:
        raise ApplyError(str(error), hint=error.hint) from error


def _run(task: str, commits: Sequence[Commit], *, seconds: float) -> MaintenanceRun:
    """What `commits` say of themselves, which followed while the task ran."""
    at = time_text(time.time())

    def total(name: str) -> int:
        return sum(commit.metrics.get(name, 0) for commit in commits)

    if task == "vacuum":
        stated = any(name in commit.metrics for commit in commits for name in _VACUUMED)
        files, size = (total(name) if stated else -1 for name in _VACUUMED)
        return MaintenanceRun(at, seconds, files, size)
    return MaintenanceRun(at, seconds, *map(total, (*_REMOVED, *_ADDED)))
