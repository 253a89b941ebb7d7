"""One Delta table as the applier sees it: its columns, its transaction markers, and the only way to
commit to it.

Owns exactly-once. A commit carries (application id, version). It is refused beforehand when the
table already records that version or a greater one, because Delta would skip it silently, and it
counts only when the marker has been read back. Markers are set on the session right before the
statement and unset in every case, so they cannot leak into another one. (Delta protocol:
Transaction Identifiers.)

Also owns that no foreign change goes unnoticed: every version since the last look is examined,
before a window and after its commit.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from sluice import faults
from sluice.contract.lake_layout import MAPPING, refused_unmapped
from sluice.errors import ApplyError, ServiceError, UnsupportedChange, WriterFenced
from sluice_spark.lake.changes_to_commit import (
    Change,
    ColumnChange,
    Marker,
    NewColumns,
    Reshape,
    StatedColumns,
    Statement,
    Write,
)
from sluice_spark.lake.commit_way import MERGE, CommitWay, NotDirect
from sluice_spark.lake.describing import Words, first_words
from sluice_spark.lake.direct.commit import DirectTable, DirectWindow, FilledColumns, FirstRows
from sluice_spark.lake.direct.edit import Edit, Maker
from sluice_spark.lake.direct.table_folder import TableFolder
from sluice_spark.lake.direct.transaction import DeltaTransaction
from sluice_spark.lake.disk_sync import sync_commits
from sluice_spark.lake.examined_version import (
    ExaminedVersion,
    belongs_to_others,
    contradiction,
    generation_before,
    gone,
    schema_app_id,
    shown,
)
from sluice_spark.lake.failures import CommitConflict, translated_errors
from sluice_spark.lake.foreign_commits import (
    ABSENT,
    AFTER,
    ENTRY,
    Commit,
    changes_data,
    of_another_entry,
    of_another_shape,
    refuse_late,
    tag,
)
from sluice_spark.lake.layout import NEITHER, Field, is_floating, made_with, statistics_properties
from sluice_spark.lake.log import FORGETS, LakeLog
from sluice_spark.lake.merge import merge_text, rows_merge_text, table_at
from sluice_spark.lake.plan import Columns, CommitPlan, MergePlan, RowsMergePlan
from sluice_spark.lake.rows_to_commit import HeldRows, Pieces, struct
from sluice_spark.phases import Phases

COMMITS_READ = 10_000
"""At most, to find the one that led to the columns of a table."""
USER_METADATA = "spark.databricks.delta.commitInfo.userMetadata"
VIEW = "sluice_window"
"""What a MERGE statement calls the rows of its window."""
CHOSEN = "the configuration asks for it"
FRESH_LOOKS = 5
"""How often a direct commit that met another one is prepared again, at once."""


class LakeTable:
    """The Delta table at `path`, for one private session and the application id `app_id`. Not
    thread-safe: one worker at a time. With `direct` windows are committed directly where the
    table allows it; `way` says how the last one was, `fresh_looks` how often it met another commit
    and was prepared again, `seconds` the time of its phases; a caller may add phases of its own.

    `place` is how far the table has been examined; looking and committing advance it.
    """

    def __init__(
        self,
        session: SparkSession,
        path: str,
        *,
        app_id: str,
        before_commit: Callable[[], None],
        place: ExaminedVersion | None = None,
        direct: DirectTable | None = None,
        log: LakeLog | None = None,
        folder: TableFolder | None = None,
        replaces: Sequence[str] = (),
        partitions: Sequence[str] = (),
        without: Collection[str] = (),
        entry_sha256: Callable[[int], str] = lambda _seq: "",
        shape_sha256: Callable[[int], str] = lambda _version: "",
    ) -> None:
        """`log` is how the table's log is read, None: through Delta. In `folder` are its files. `replaces`: see
        `belongs_to_others`. When it is made anew it has `partitions`, and is `without` these properties. `entry_sha256`
        tells the hash of the manifest entry of that number, empty if it is not known, and `shape_sha256` that of the
        columns of a version of the source table (`columns_sha256`).
        """
        self.session = session
        self.path = path
        self.app_id = app_id
        self._replaces, self._partitions, self._made_with = replaces, partitions, made_with(without)
        self.place = place or ExaminedVersion()
        self._based_on = self.place.marker
        """The marker that the next window follows."""
        self.way = CommitWay()
        self.fresh_looks = 0
        self.seconds = Phases()
        self._tracked: Mapping[str, Mapping[str, int]] = {}
        """What Delta added to the files of the last commit."""
        self._before_commit = before_commit
        self._entry_sha256, self._shape_sha256 = entry_sha256, shape_sha256
        self.columns_sha256 = ""
        """Of the version of the source table's columns to which the next change of columns leads."""
        self._direct = direct
        self._folder = folder
        self._log = log or LakeLog(session, path)

    @property
    def _is_local(self) -> bool:
        return self.path.startswith("/")

    @property
    def expression(self) -> str:
        """The table in SQL."""
        return table_at(self.path)

    def recorded(self) -> ExaminedVersion:
        """The newest version and the marker it records, without proof of how it came to be. Raises
        ApplyError.
        """
        with translated_errors():
            version = self._log.update()
            return ExaminedVersion(version, self._log.marker(self.app_id) if version >= 0 else None)

    def file_count(self) -> int:
        """Files in the newest version."""
        with translated_errors():
            self._log.update()
            return self._log.file_count()

    @property
    def known_file_count(self) -> int | None:
        """Files in the version that the table stands at, None when only a look at it would tell."""
        return self._direct.file_count(self.place.version) if self._direct is not None else None

    def require_replaceable(self) -> None:
        """Raises UnsupportedChange when there is a table of somebody else or of another pipeline, ApplyError."""
        with translated_errors():
            app_ids = self._log.app_ids() if self._log.update() >= 0 else [self.app_id]
        if said := belongs_to_others(app_ids, app_id=self.app_id, replaces=self._replaces):
            raise UnsupportedChange(said, hint="move or remove it, or set another lake.uri; then resync the table")

    def marker(self, app_id: str) -> int | None:
        """The transaction version that the table records for `app_id`."""
        with translated_errors():
            return self._log.marker(app_id) if self._log.update() >= 0 else None

    def columns_before(self) -> tuple[int, str] | None:
        """The version of the source table's columns that the generation before has come to in this table, and what the
        commit that led to it says of them (`columns_sha256`); None where the log does not say it: a generation that has
        the columns of its snapshot still says it only where `state_columns` left it.
        """
        with translated_errors():
            newest = self._log.update()
            before = generation_before(self._log.app_ids() if newest >= 0 else [], app_id=self.app_id)
            version = self._log.marker(schema_app_id(before)) if before else None
            if before is None or version is None:
                return None
            for number in range(newest, max(newest - COMMITS_READ, -1), -1):
                try:
                    commit = self._log.commit(number)
                except UnsupportedChange:
                    return None  # the log was cleaned up
                if commit.markers.get(schema_app_id(before)) == version:
                    return version, str(commit.tag.get(ENTRY, ""))
        return None

    def column_names(self) -> list[str]:
        """The names alone, as of the last look. Takes no query."""
        with translated_errors():
            return self._log.column_names()

    def columns(self) -> list[tuple[str, str]]:
        """Names and Spark types, in order."""
        with translated_errors():
            return [
                (field.name, field.dataType.simpleString())
                for field in self.session.read.format("delta").load(self.path).schema
            ]

    def find(self, reported: ExaminedVersion | None) -> ExaminedVersion:
        """Examines a table that this process has not seen; `reported` is what an earlier process
        reported about it (None: nothing).

        Raises UnsupportedChange when it was changed by somebody else, when it and the report
        contradict each other, or when its log does not say.
        """
        with translated_errors():
            version = self._log.update()
            self._require_markers_kept(version)
            marker = self._log.marker(self.app_id) if version >= 0 else None
            if version >= 0 and (marker is not None or reported is not None):
                # Power loss may have emptied the last commit, which Delta takes for one that did nothing.
                self._log.commit(version)
            contradicted = reported and contradiction(reported, ExaminedVersion(version, marker))
            if contradicted:
                raise UnsupportedChange(contradicted)
            if marker is None:
                self.place = ExaminedVersion(version, None, seen=True)
            else:
                self.place = (
                    reported if reported is not None and reported.marker is not None else self._own(version, marker)
                )
                self._advance(version)
            self._based_on = self.place.marker
            return self.place

    def examine(self) -> ExaminedVersion:
        """Examines every version since the last look. Raises UnsupportedChange for a foreign one, or another table."""
        with translated_errors():
            return self._advance(self._log.update())

    def search_ahead(self, plan: CommitPlan, held: HeldRows) -> None:
        """Finds for `held` what a later direct commit of `plan` need not look for again. From any
        thread, unlike all else. Raises NotDirect, UnsupportedChange, StoreError.
        """
        if self._direct is not None:
            held.found = self._direct.search_ahead(plan, held.tables())

    def commits_since(self, before: int, *, to: int | None = None) -> list[Commit]:
        """Those that were examined after version `before`, or all up to `to`. Raises ApplyError, UnsupportedChange."""
        with translated_errors():
            return [self._log.commit(one) for one in range(before + 1, (self.place.version if to is None else to) + 1)]

    def changes_columns(self, commit: Commit) -> bool:
        """Whether those that `commit` states are other ones than before it: a property that is set states them too.
        Raises UnsupportedChange when the log does not say any more.
        """
        return commit.columns is not None and commit.columns != self._log.shape_at(commit.version - 1)

    def commit_plan(self, version: int, *, plan: CommitPlan, pieces: Pieces) -> None:
        """Commits `plan` with the rows of `pieces` and the marker `version`, directly where the table allows it."""
        if self._direct is None:
            self.way = self.way if self.way.reason else CommitWay(MERGE, CHOSEN)
        elif self.commit_window(version, DirectWindow(self._direct, plan, pieces)):
            return
        with self.seconds.phase("commit"):
            self._commit_by_spark(version, plan, pieces)

    def _commit_by_spark(self, version: int, plan: CommitPlan, pieces: Pieces) -> None:
        self.examine()  # The statement is based on what it finds.
        if isinstance(plan.action, str):
            self.write(self.app_id, version, frame=pieces.frame(plan.columns), mode=plan.action)
            return
        if isinstance(plan.action, MergePlan) and plan.action.settlement is not None:
            with translated_errors():
                read = f"{self.expression} VERSION AS OF {self.place.version}"
                pieces = pieces.settled(plan, read)
        pieces.frame(plan.columns).createOrReplaceTempView(VIEW)
        before = self.place.version
        try:
            self.execute(self.app_id, version, statement=self._statement(plan.action))
        finally:
            self.session.catalog.dropTempView(VIEW)
        if isinstance(plan.action, RowsMergePlan):
            made = next(commit for commit in self.commits_since(before) if commit.markers.get(self.app_id) == version)
            plan.action.require_removed(made.metrics.get("numTargetRowsDeleted"))

    def commit_window(self, version: int, maker: Maker) -> bool:
        """Commits the window of `maker` in its way, with the marker `version`. Whether the table allows that: otherwise
        nothing is committed, and only Spark can write to it.
        """
        try:
            self.commit_newest(version, maker)
        except NotDirect as reason:
            self.way = CommitWay(MERGE, str(reason))
            return False
        self.way = CommitWay(maker.way)
        return True

    def commit_newest(self, version: int, maker: Maker | Reshape, *, app_id: str = "") -> None:
        """Commits what `maker` makes of the newest version of the table, with the marker: nothing if it makes nothing.
        When another commit came in between, that one is examined, and an edit is made anew. Raises NotDirect before
        anything is committed.
        """
        marker = app_id or self.app_id, version
        for last in (False,) * FRESH_LOOKS + (True,):
            self._refuse_second_commit(*marker)
            with translated_errors():
                base = DeltaTransaction(self.session, self.path, newest=self.place.version)
            if base.version != self.place.version:
                # Our own change of the schema, or somebody else's commit: it is examined first.
                self.examine()
                continue
            with translated_errors():
                edit = maker.edit(base)
            if edit is None:
                return
            try:
                self._commit_made(edit, marker)
                return
            except CommitConflict:
                if last:
                    raise
                # What came in between is examined, and the next attempt is based on it.
                self.fresh_looks += 1
                self.examine()
        raise CommitConflict("the lake table changes faster than it can be looked at")

    def _commit_made(self, edit: Edit | ColumnChange, marker: Marker) -> None:
        if isinstance(edit, ColumnChange):
            self.commit(edit)
            return
        edit.marker = marker
        self.seconds.add(edit.seconds)
        with self.seconds.phase("commit"):
            self.commit(edit)

    def join_small_files(self, beside: Executor | None) -> None:
        """Puts what was joined of small data files in their place, in a commit that changes no row. Where there are
        many, they are joined in `beside` (None: at once), for a later call. A conflict with another commit leaves it
        for later.

        The commit has a marker of its own. Without one, a conflict that Delta reports with a commit
        of its own, whose answer was lost, would look like another one's, and would delete rows.
        """
        if self._direct is None:
            return
        joining = self._direct.joining
        with suppress(NotDirect, CommitConflict):
            joined = joining.ready(self.place.version, beside)
            if joined is None:
                return
            with translated_errors():
                base = DeltaTransaction(self.session, self.path, newest=self.place.version)
                if base.version != self.place.version:
                    joining.discard(joined)
                    return
                edit = joining.edit(base, joined)
            if edit is not None:
                edit.marker = f"{self.app_id}/files", base.version + 1
                self.commit(edit)

    def create(self, version: int, *, columns: Columns, rows: pa.Table, words: Words | None) -> None:
        """Makes the table with `columns` and `rows` (a column that they lack is NULL) without a Spark job, with the
        marker `version`. It says what `words` are. Raises NotDirect before anything is committed.
        """
        if self._direct is None or self.place.version >= 0 or self._partitions:
            raise NotDirect("the table is there, it has partitions, or direct commits are off")
        if self._is_local:
            # Somebody may have removed a folder that the store has made once. The write says what is wrong.
            with suppress(OSError):
                Path(self.path).mkdir(parents=True, exist_ok=True)
        with translated_errors():
            fields = struct(columns).jsonValue()["fields"]
        fields, said = first_words(fields, self._made_with, words)
        self.commit_newest(version, FirstRows(self._direct, fields, rows, said))

    def replace(self, version: int, *, frame: DataFrame) -> None:
        """Commits the rows and columns of `frame` as the table, there or not, with the marker `version`."""
        self.write(self.app_id, version, frame=frame, mode="overwrite", new_schema=True)

    def _statement(self, merge: MergePlan | RowsMergePlan) -> str:
        if isinstance(merge, RowsMergePlan):
            return rows_merge_text(merge, target=self.expression, source=VIEW)
        return merge_text(merge.cheapest(self.file_count), target=self.expression, source=VIEW)

    def execute(self, app_id: str, version: int, *, statement: str) -> None:
        """Commits one MERGE or UPDATE that carries the marker."""
        self.commit(Statement(statement, (app_id, version)))

    def write(self, app_id: str, version: int, *, frame: DataFrame, mode: str, new_schema: bool = False) -> None:
        """Commits one append or overwrite that carries the marker; creates the table when there is none."""
        if not new_schema:
            self.commit(Write((app_id, version), frame, self.path, mode))
            return
        columns = frame.schema.jsonValue()["fields"]
        self.require_names(column["name"] for column in columns)
        options = {"overwriteSchema": "true", **self._made_with}
        options |= statistics_properties(columns, present=options, partitions=self._partitions)
        self._state(columns)
        settings = NEITHER if any(map(is_floating, columns)) else {}
        self.commit(Write((app_id, version), frame, self.path, mode, options, settings, self._partitions))
        self._state(columns)

    def _state(self, columns: Sequence[Field]) -> None:
        """Before and after Spark writes the table anew with `columns`: an overwrite goes by the properties that there
        are, and leaves them. They have to fit the columns of both.
        """
        if self.place.version >= 0:
            app_id, version = f"{self.app_id}/statistics", self.place.version + 1
            self.commit_newest(version, StatedColumns({app_id: version}, columns, self._partitions), app_id=app_id)

    def is_mapped(self) -> bool:
        """Whether its data files have names of their own for its columns."""
        with translated_errors():
            base = DeltaTransaction(self.session, self.path, newest=self.place.version)
            return base.said().properties.get(MAPPING, "none").lower() != "none"

    def require_names(self, names: Iterable[str]) -> None:
        """Raises UnsupportedChange where the table is there and cannot have columns of these names, whatever the
        configuration asks for since it was made.
        """
        if self.place.version >= 0 and (said := refused_unmapped(names)) and not self.is_mapped():
            raise UnsupportedChange(
                f"{said}, which the lake table was made without",
                hint="`sluice rebuild` makes it anew as it is configured, or name another target",
            )

    def alter(self, what: str) -> None:
        """Changes what the table says of itself, without a marker. Raises ApplyError, UnsupportedChange."""
        self._before_commit()
        try:
            with translated_errors():
                self.session.sql(f"ALTER TABLE {self.expression} {what}")
        except UnsupportedChange as error:
            raise ApplyError(str(error), hint=error.hint) from error
        self.examine()

    def change_columns(self, markers: Mapping[str, int], change: Callable[[list[Any]], Sequence[Any]]) -> None:
        """Commits what `change` makes of the table's columns, in Delta's own spelling, with a version
        for each application id. No row is read or written.
        """
        app_id, version = next(iter(markers.items()))
        self.commit_newest(version, NewColumns(markers, change), app_id=app_id)

    def fill_columns(
        self, marker: Marker, change: Callable[[list[Any]], Sequence[Any]], values: Mapping[str, pa.Scalar]
    ) -> bool:
        """The same, and all rows get `values` in columns that are new, without a Spark job: `change` is what
        `change_columns` takes. Whether the table allows that; otherwise nothing is committed.
        """
        app_id, version = marker
        if self._direct is None:
            return False
        try:
            self.commit_newest(version, FilledColumns(self._direct, change, values), app_id=app_id)
        except NotDirect:
            return False
        return True

    def commit(self, change: Change) -> None:
        """Commits `change` once: the only place where anything is committed. It counts only when its marker was read
        back, whatever Spark and Delta say of it.

        Raises CommitConflict only when the commit did not land: what was written for it is then deleted.
        """
        self._tracked = {}
        try:
            made = self._run_and_read_back(change)
        except CommitConflict:
            if isinstance(change, Edit):
                change.refused = True
                if self._folder is not None:
                    self._folder.discard(change.orphans)
            raise
        if isinstance(change, Edit) and self._direct is not None:
            self._direct.landed(change, made, self._tracked)
        if isinstance(change, ColumnChange) and self._direct is not None:
            self._direct.columns_landed(made)

    def _run_and_read_back(self, change: Change) -> int:
        """Runs `change`, which is then in the table. Returns the Delta version that it made, -1 if it is not known."""
        app_id, version = change.marker
        self._refuse_second_commit(app_id, version)
        self._before_commit()
        faults.point("apply.commit.before")
        failure: ServiceError | None = None
        made: int | None = None
        try:
            with translated_errors():
                made = self._run(change)
        except ServiceError as error:
            # The commit may have landed all the same; the marker decides.
            failure = error
        faults.point("apply.commit.after")
        if made != self.place.version + 1 or not self._advance_to_own(made, app_id, version):
            self.examine()
            landed = self.place.marker if app_id == self.app_id else self._log.marker(app_id)
            if landed != version:
                raise failure or ApplyError(f"a commit of {app_id} at {version} did not leave its marker")
        if app_id == self.app_id:
            self._based_on = version
        return -1 if made is None else made

    def _refuse_second_commit(self, app_id: str, version: int) -> None:
        """Raises WriterFenced when `version` of `app_id` is there already, and CommitConflict when the
        table is not the one that the window follows: an attempt that seemed to have failed, or an applier
        that was replaced, has committed a part of it meanwhile.
        """
        recorded = self.place.marker if app_id == self.app_id else self.marker(app_id)
        if recorded is not None and recorded >= version:
            raise WriterFenced(
                f"the lake table records {app_id} at {recorded}, at or past {version} which was about to be applied",
                hint="another applier works on this lake; run one per pipeline",
            )
        if self.place.marker != self._based_on:
            raise CommitConflict(
                f"a commit of this pipeline that left {shown(self.place.marker)} came first",
                hint="the applier then applies what the lake does not have yet",
            )

    def _advance_to_own(self, made: int, app_id: str, marker: int) -> bool:
        """Reads the commit that made the version after the last one that was examined. Whether it is
        the one that carries our `marker` of `app_id`: then there is nothing else to look for.
        """
        with translated_errors():
            commit = self._log.commit(made)
            if commit.markers.get(app_id) != marker:
                return False
            self._tracked = commit.tracked
            self._sync([commit])
        self.place = ExaminedVersion(made, commit.markers.get(self.app_id, self.place.marker), seen=True)
        return True

    def _run(self, change: Change) -> int | None:
        conf = self.session.conf
        app_id, version = change.marker
        entry = self._entry_sha256(version) if app_id == self.app_id else ""
        if app_id == schema_app_id(self.app_id):
            entry = self.columns_sha256
        entry = "" if entry == ABSENT else entry
        settings = {**change.settings, USER_METADATA: tag(self.app_id, after=self.place.version, entry=entry)}
        try:
            if self.place.version < 0:
                self._log.clear()
            for name, value in settings.items():
                conf.set(name, value)
            return change.run(self.session)
        finally:
            for name in settings:
                conf.unset(name)

    def _advance(self, version: int) -> ExaminedVersion:
        before = self.place
        if version < before.version:
            raise UnsupportedChange(gone(before, version))
        self._require_markers_kept(version)
        commits = [self._log.commit(number) for number in range(before.version + 1, version + 1)]
        marker, last = before.marker, None
        for commit in commits:
            if not commit.is_of(self.app_id):
                self._refuse_change(commit)
            elif self.app_id in commit.markers:
                refuse_late(commit, self.app_id, read=self._log.commit)
                marker, last = commit.markers[self.app_id], commit
        # Earlier ones may be of entries that are pruned.
        entry = self._entry_sha256(marker) if last and marker is not None else ""
        if before.seen and before.marker is not None and entry == ABSENT:
            # It follows what this process had seen: another applier has the lake, and this one ends.
            entry = ""
        if last and marker is not None and (said := of_another_entry(last, marker, entry)):
            raise UnsupportedChange(said)
        self._refuse_other_shape(commits)
        recorded = self._log.marker(self.app_id) if version >= 0 else None
        if recorded != marker:
            raise UnsupportedChange(
                f"the lake table's marker is {shown(recorded)}, the last commit left "
                f"{shown(marker)}: it is not the table that it was"
            )
        if commits:
            self._sync(commits)
        self.place = ExaminedVersion(version, marker, seen=True)
        return self.place

    def _require_markers_kept(self, version: int) -> None:
        """Raises UnsupportedChange where Delta forgets markers by their age: a change of columns whose marker is gone
        would be made a second time.
        """
        if version >= 0 and self._log.forgets_markers():
            raise UnsupportedChange(
                f"somebody else set {FORGETS} of the lake table, by which it forgets how far it has come",
                hint=f"ALTER TABLE ... UNSET TBLPROPERTIES ('{FORGETS}'), then resync the table",
            )

    def _refuse_other_shape(self, commits: Sequence[Commit]) -> None:
        """Raises UnsupportedChange where the newest change of columns among `commits` led to others than the manifest
        has in that version: rows need not have followed, so that no marker tells.
        """
        app_id = schema_app_id(self.app_id)
        shaped = next((one for one in reversed(commits) if app_id in one.markers), None)
        if shaped is None:
            return
        version = shaped.markers[app_id]
        found = self._shape_sha256(version)
        if found == ABSENT and self.place.seen and self.place.marker is not None:
            found = ""  # as above: of another applier
        if said := of_another_shape(shaped, version, found):
            raise UnsupportedChange(said)

    def _sync(self, commits: Sequence[Commit]) -> None:
        if self._is_local:
            sync_commits(Path(self.path), commits)

    def _refuse_change(self, commit: Commit) -> None:
        if changes_data(commit) or self.changes_columns(commit):
            raise UnsupportedChange(f"somebody else changed the lake table: {commit.description()}")

    def _own(self, version: int, marker: int) -> ExaminedVersion:
        """Where to start when no report says how far an earlier process looked: at the place from
        which our newest commit was made.
        """
        for number in range(version, -1, -1):
            commit = self._log.commit(number)
            if commit.markers.get(self.app_id) == marker:
                after = commit.tag.get(AFTER)
                return ExaminedVersion(after if isinstance(after, int) and -1 <= after < number else number - 1)
        raise UnsupportedChange(f"no commit in the lake table's log left its marker {marker}")
