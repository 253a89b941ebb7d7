"""One Delta table as the applier sees it: its columns, its transaction markers, and the only way to commit to it.

Owns exactly-once: a commit carries (application id, version), is refused beforehand when the table already records that version or a greater one (Delta would
skip it without a word), and is believed only when the marker has been read back. Markers are set on the session right before the statement and
unset in every case, so they cannot leak into another one. (Delta protocol: Transaction Identifiers.)
"""

from collections.abc import Callable
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from service import faults
from service.errors import ApplyError, ServiceError, WriterFenced
from spark_jobs.failures import translated_errors
from spark_jobs.merge import quote

APP_ID = "spark.databricks.delta.write.txnAppId"
VERSION = "spark.databricks.delta.write.txnVersion"

TABLE_PROPERTIES = {
    # Any name that PostgreSQL allows works as a column name.
    "delta.columnMapping.mode": "name",
    "delta.enableDeletionVectors": "true",
    "delta.checkpointInterval": "50",
    # A timestamp column may be added later, and Delta then asks for the feature to be there already.
    "delta.feature.timestampNtz": "supported",
}


class LakeTable:
    """The Delta table at `path`, for one private session. Not thread-safe: one worker at a time."""

    def __init__(self, session: SparkSession, path: str, *, before_commit: Callable[[], None]) -> None:
        self.session = session
        self.path = path
        self._before_commit = before_commit

    @property
    def expression(self) -> str:
        """The table in SQL."""
        return f"delta.{quote(self.path)}"

    def exists(self) -> bool:
        with translated_errors():
            return bool(self._log().tableExists())

    def version(self) -> int:
        """The newest Delta version, -1 when there is no table."""
        with translated_errors():
            return int(self._snapshot().version())

    def file_count(self) -> int:
        """Files in the newest version."""
        with translated_errors():
            return int(self._snapshot().numOfFiles())

    def marker(self, app_id: str) -> int | None:
        """The transaction version that the table records for `app_id`."""
        with translated_errors():
            found = self._snapshot().transactions().get(app_id)
            return int(found.get()) if found.isDefined() else None

    def columns(self) -> list[tuple[str, str]]:
        """Names and Spark types, in order."""
        with translated_errors():
            return [(field.name, field.dataType.simpleString()) for field in self.session.read.format("delta").load(self.path).schema]

    def execute(self, app_id: str, version: int, *, statement: str) -> None:
        """Commits one MERGE or UPDATE that carries the marker."""

        def run() -> None:
            conf = self.session.conf
            conf.set(APP_ID, app_id)
            conf.set(VERSION, str(version))
            try:
                self.session.sql(statement)
            finally:
                conf.unset(APP_ID)
                conf.unset(VERSION)

        self._commit(app_id, version, run)

    def write(self, app_id: str, version: int, *, frame: DataFrame, mode: str, new_schema: bool = False) -> None:
        """Commits one append or overwrite that carries the marker; creates the table when there is none."""

        def run() -> None:
            writer = frame.write.format("delta").mode(mode).option("txnAppId", app_id).option("txnVersion", str(version))
            if new_schema:
                writer = writer.option("overwriteSchema", "true").options(**TABLE_PROPERTIES)
            writer.save(self.path)

        self._commit(app_id, version, run)

    def alter(self, statement: str) -> None:
        """Runs one ALTER TABLE, which carries no marker: its caller makes it harmless to repeat."""
        self._before_commit()
        with translated_errors():
            self.session.sql(statement)

    def _commit(self, app_id: str, version: int, run: Callable[[], None]) -> None:
        recorded = self.marker(app_id)
        if recorded is not None and recorded >= version:
            raise WriterFenced(
                f"the lake table records {app_id} at {recorded}, at or past {version} which was about to be applied",
                hint="another applier works on this lake; run one per pipeline",
            )
        self._before_commit()
        faults.point("apply.commit.before")
        try:
            with translated_errors():
                run()
        except ServiceError:
            # The commit may have landed all the same: the marker knows.
            if self.marker(app_id) != version:
                raise
        faults.point("apply.commit.after")
        if self.marker(app_id) != version:
            raise ApplyError(f"a commit of {app_id} at {version} did not leave its marker")

    def _log(self) -> Any:
        jvm: Any = self.session._jvm
        return jvm.org.apache.spark.sql.delta.DeltaLog.forTable(self.session._jsparkSession, self.path)

    def _snapshot(self) -> Any:
        jvm: Any = self.session._jvm
        nothing = getattr(jvm.scala, "None$").__getattr__("MODULE$")
        return self._log().update(*(False, nothing, nothing))
