"""What is committed besides edits of files, as values: changes of columns, statements and writes of Spark."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol

from pyspark.sql import DataFrame, SparkSession

from sluice_spark.lake.describing import Said, Words, worded
from sluice_spark.lake.direct.transaction import DeltaTransaction
from sluice_spark.lake.layout import Field, is_floating

APP_ID = "spark.databricks.delta.write.txnAppId"
VERSION = "spark.databricks.delta.write.txnVersion"
Marker = tuple[str, int]
_NO_SETTINGS: Mapping[str, str] = {}


class Change(Protocol):
    """What is committed in one commit: an edit, or one of those below. The commit carries `marker` (application id,
    version), and is made with `settings` in the session.
    """

    @property
    def marker(self) -> Marker: ...

    @property
    def settings(self) -> Mapping[str, str]: ...

    def run(self, session: SparkSession) -> int | None:
        """Commits it once. Returns the Delta version that it made, None if that is not known. Errors of Spark pass."""


@dataclass(frozen=True, slots=True)
class ColumnChange:
    """`fields` in place of the columns of the version that `base` read, with a version for each application id in
    `markers`. `stated` are those of which Spark collects statistics (None: all that have any), and `said` is what the
    table says of itself (None: as before). No row is read or written.
    """

    base: DeltaTransaction = field(repr=False, compare=False)
    fields: Sequence[Field]
    markers: Mapping[str, int]
    stated: Sequence[Field] | None = None
    said: Said | None = None
    settings: ClassVar[Mapping[str, str]] = _NO_SETTINGS

    @property
    def marker(self) -> Marker:
        """See Change."""
        return next(iter(self.markers.items()))

    def run(self, _: SparkSession) -> int:
        """See Change."""
        return self.base.change_columns(self.fields, markers=self.markers, stated=self.stated, said=self.said)


@dataclass(frozen=True, slots=True)
class NewColumns:
    """Makes of the columns of each version what `reshape` makes of them."""

    markers: Mapping[str, int]
    reshape: Callable[[list[Any]], Sequence[Any]]

    def edit(self, base: DeltaTransaction) -> ColumnChange:
        """See Maker."""
        return ColumnChange(base, self.reshape(base.fields()), self.markers)


@dataclass(frozen=True, slots=True)
class StatedColumns:
    """Lets Spark collect the statistics that fit both the columns of a version and `columns`: `partitions` among them
    have none.
    """

    markers: Mapping[str, int]
    columns: Sequence[Field]
    partitions: Sequence[str] = ()

    def edit(self, base: DeltaTransaction) -> ColumnChange | None:
        """See Maker."""
        fields = base.fields()
        types = {column["name"]: column["type"] for column in self.columns}
        both: list[Field] = [
            one for one in fields if types.get(one["name"]) == one["type"] and one["name"] not in self.partitions
        ]
        both += [column for column in self.columns if is_floating(column)]
        return None if base.states(both) else ColumnChange(base, fields, self.markers, both)


@dataclass(frozen=True, slots=True)
class DescribedColumns:
    """Lets a table and its columns say what `words` are; nothing where they do."""

    markers: Mapping[str, int]
    words: Words

    def edit(self, base: DeltaTransaction) -> ColumnChange | None:
        """See Maker."""
        before, said = base.fields(), base.said()
        fields, now = worded(before, said, self.words)
        return None if (fields, now) == (before, said) else ColumnChange(base, fields, self.markers, said=now)


Reshape = NewColumns | StatedColumns | DescribedColumns


@dataclass(frozen=True, slots=True)
class Statement:
    """One MERGE or UPDATE. Spark takes the marker from the session."""

    text: str
    marker: Marker

    @property
    def settings(self) -> dict[str, str]:
        """See Change."""
        app_id, version = self.marker
        return {APP_ID: app_id, VERSION: str(version)}

    def run(self, session: SparkSession) -> None:
        """See Change."""
        session.sql(self.text)


@dataclass(frozen=True, slots=True)
class Write:
    """An append or overwrite (`mode`) with the rows of `frame`; makes the table at `path` when there is none."""

    marker: Marker
    frame: DataFrame = field(repr=False)
    path: str
    mode: str
    options: Mapping[str, str] = field(default_factory=dict)
    settings: Mapping[str, str] = field(default_factory=dict)
    partitions: Sequence[str] = ()

    def run(self, _: SparkSession) -> None:
        """See Change."""
        app_id, version = self.marker
        options = {**self.options, "txnAppId": app_id, "txnVersion": str(version)}
        writer = self.frame.write.format("delta").mode(self.mode).options(**options)
        (writer.partitionBy(*self.partitions) if self.partitions else writer).save(self.path)
