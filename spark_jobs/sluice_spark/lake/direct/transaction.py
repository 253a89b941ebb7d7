"""Delta's optimistic transaction, driven from Python.

Conflict detection, check sums and the log store stay Delta's own. A commit writes no checkpoint, which is a
job of Spark: `sluice_spark.lake.log_upkeep` writes it, beside the commits that follow. Must not look at
rows, and must not make Delta rebuild a table's state where the version's checksum says the same. JVM errors
pass: the caller translates them. (Delta protocol: Optimistic Concurrency Control, Transaction
Identifiers.)
"""

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from functools import cache, cached_property
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from sluice_spark.lake.commit_way import NotDirect
from sluice_spark.lake.delta_calls import module
from sluice_spark.lake.describing import Said, Words, first_words
from sluice_spark.lake.layout import (
    Field,
    TableLayout,
    read_layout,
    require_partitions_kept,
    statistics_properties,
    with_names,
)

_FEATURES_NAMED = 7
_WRITE_ARGUMENTS = 9
_TRACKING, _PRESERVED = "delta.enableRowTracking", "delta.rowTracking.preserved"
_LOOK_AFTER = 50
"""Commits behind the checkpoint that Delta knows of, at each multiple of which the log is listed: it does not
hear of a checkpoint that is written beside it, and would carry every commit since its own for ever.
"""
_STATED_DOMAINS = """
public class StatedDomains extends org.apache.spark.sql.delta.Snapshot {
    public StatedDomains(org.apache.spark.sql.delta.Snapshot of) {
        super(of.path(), of.version(), of.logSegment(), of.deltaLog(), of.checksumOpt());
    }

    public scala.collection.immutable.Seq domainMetadata() {
        return (scala.collection.immutable.Seq)
            ((org.apache.spark.sql.delta.VersionChecksum) checksumOpt().get()).domainMetadata().get();
    }
}
"""
"""A version of a table that takes its domains from its checksum. One of them is the highest id of a row, for which
Delta 4.4 rebuilds the state of the table before each commit, in a job of Spark; later ones do the same as this.
"""


class _Names:
    """Classes of Delta and Spark: a look through a package's name costs a millisecond, a kept one
    nothing.
    """

    def __init__(self, gateway: Any) -> None:
        self._gateway, self._jvm = gateway, gateway.jvm
        jvm = gateway.jvm
        delta, sql = jvm.org.apache.spark.sql.delta, jvm.org.apache.spark.sql
        self.none = module(jvm.scala, "None")
        self.some = jvm.scala.Some
        self.list = jvm.java.util.ArrayList
        self.map = jvm.java.util.HashMap
        self.utils = jvm.org.apache.spark.api.python.PythonUtils
        self.convert = module(jvm.scala.jdk.javaapi, "CollectionConverters").asJava
        self.log = delta.DeltaLog
        self.tracking = module(delta, "RowTracking")
        self.operations = delta.DeltaOperations
        self.marker = delta.actions.SetTransaction
        self.action = module(delta.actions, "Action").fromJson
        self.checkpoint_hook = module(delta.hooks, "CheckpointHook")
        self.append, self.overwrite = sql.SaveMode.Append, sql.SaveMode.Overwrite
        self.sessions = module(sql, "SparkSession")
        self.data_type = module(sql.types, "DataType").fromJson
        self.metrics = module(sql.execution.metric, "SQLMetrics")
        self.all_rows = module(sql.catalyst.expressions, "Literal").TrueLiteral()

    def seq(self, items: Sequence[Any]) -> Any:
        made = self.list()
        for item in items:
            made.add(item)
        return self.utils.toSeq(made)

    def to_commit_on(self, snapshot: Any) -> Any:
        """`snapshot`, for a commit to a table that may track its rows: see _STATED_DOMAINS."""
        checksum = snapshot.checksumOpt()
        if not checksum.isDefined() or not checksum.get().domainMetadata().isDefined():
            return snapshot
        if not self.tracking.isSupported(snapshot.protocol()):
            return snapshot
        given = self._gateway.new_array(self._jvm.java.lang.Object, 1)
        given[0] = snapshot
        return self._stated_domains.newInstance(given)

    @cached_property
    def _stated_domains(self) -> Any:
        """Its constructor."""
        compiler = self._jvm.org.codehaus.janino.SimpleCompiler()
        compiler.setParentClassLoader(self.tracking.getClass().getClassLoader())
        compiler.cook(_STATED_DOMAINS)
        (made,) = compiler.getClassLoader().loadClass("StatedDomains").getConstructors()
        return made


@cache
def _names(gateway: Any) -> _Names:
    return _Names(gateway)


class DeltaTransaction:
    """One attempt at a commit to the table at `path`, based on its `version`. For one thread, which has
    to use one private session.
    """

    def __init__(self, session: SparkSession, path: str, *, newest: int = -1) -> None:
        """`newest` is the version that the caller has just found to be the newest one: when Delta has it
        in memory, the log is not listed again. Otherwise it is based on the newest one that Delta finds.
        """
        self._session = session
        self._java: Any = session._jsparkSession
        self._names = names = _names(session.sparkContext._gateway)
        names.sessions.setActiveSession(self._java)
        log = names.log.forTable(self._java, path)
        self._snapshot = log.unsafeVolatileSnapshot()
        known = newest >= 0 and int(self._snapshot.version()) == newest
        if known and (behind := int(self._snapshot.logSegment().deltas().size())):
            known = behind % _LOOK_AFTER > 0
        if not known:
            self._snapshot = log.update(*(False, names.none, names.none))
        self._transaction = log.startTransaction(names.none, names.some(names.to_commit_on(self._snapshot)))
        self._transaction.postCommitHooks().subtractOne(names.checkpoint_hook)
        self.version = int(self._snapshot.version())
        self.table_id = str(self._snapshot.metadata().id())

    def layout(self) -> TableLayout:
        """Columns and properties, of a table that is made those that it will have. Raises NotDirect."""
        metadata, protocol = self._transaction.metadata(), self._transaction.protocol()
        named = int(protocol.minWriterVersion()) >= _FEATURES_NAMED
        return read_layout(
            str(metadata.schemaString()),
            properties=dict(self._names.convert(metadata.configuration())),
            partitions=list(self._names.convert(metadata.partitionColumns())),
            features=list(self._names.convert(protocol.writerFeatureNames())) if named else [],
        )

    def states(self, columns: Sequence[Field]) -> bool:
        """Whether Spark collects statistics of these columns and no others."""
        before = self._transaction.metadata()
        return bool(self._metadata(str(before.schemaString()), stated=columns).equals(before))

    def fields(self) -> list[dict[str, Any]]:
        """The columns of this version in Delta's own spelling."""
        fields: list[dict[str, Any]] = json.loads(str(self._snapshot.metadata().schemaString()))["fields"]
        return fields

    def said(self) -> Said:
        """What the table says of itself."""
        metadata = self._snapshot.metadata()
        return Said(str(metadata.description() or ""), dict(self._names.convert(metadata.configuration())))

    def files(self) -> Iterator[dict[str, Any]]:
        """The actions that added the files of this version."""
        checksum = self._snapshot.checksumOpt()
        if checksum.isDefined() and checksum.get().allFiles().isDefined():
            found = checksum.get().allFiles().get()
            lines = [str(found.apply(place).json()) for place in range(found.size())]
        else:
            # Without null fields, as Delta itself writes them.
            frame = DataFrame(self._snapshot.allFiles().toDF(), self._session)
            lines = [row[0] for row in frame.selectExpr("to_json(named_struct('add', struct(*)))").collect()]
        for line in lines:
            yield json.loads(line)["add"]

    def commit(
        self,
        actions: Sequence[Mapping[str, Any]],
        *,
        marker: tuple[str, int],
        operation: str,
        metrics: Mapping[str, int],
        reads: bool,
    ) -> int:
        """Commits `actions`, with the marker (application id, version). `operation` is "append",
        "overwrite", "merge" or "optimize", as the table's history shows it; with `reads` the actions
        follow from the rows of the whole table. Returns the version.
        """
        names = self._names
        # A marker that somebody else sets meanwhile is a conflict.
        self._transaction.readTxn().addOne(marker[0])
        made = [names.marker(*marker, names.some(int(time.time() * 1000)))]
        if reads:
            self._transaction.trackReadPredicates(names.seq([names.all_rows]), *(False, True))
        made += [names.action(json.dumps(action, ensure_ascii=False)) for action in actions]
        self._register(metrics)
        tags = names.map()
        if _property(self._transaction.metadata(), _TRACKING) == "true":
            tags.put(_PRESERVED, "true")
        done = self._transaction.commit(names.seq(made), self._operation(operation), names.utils.toScalaMap(tags))
        return int(done)

    def change_columns(
        self,
        fields: Sequence[Field],
        *,
        markers: Mapping[str, int],
        stated: Sequence[Field] | None = None,
        said: Said | None = None,
    ) -> int:
        """Commits `fields` as the table's columns, with the markers. Those without an id of the
        column mapping are new ones, and get one from Delta. `stated` are those of which Spark collects
        statistics (None: all that have any), and `said` is what the table says of itself (None: as before). Returns the
        version.
        """
        names, before = self._names, self._snapshot.metadata()
        made = []
        for app_id, version in markers.items():
            self._transaction.readTxn().addOne(app_id)
            made.append(names.marker(app_id, version, names.some(int(time.time() * 1000))))
        schema = names.data_type(json.dumps({"type": "struct", "fields": list(fields)}))
        after = self._metadata(str(schema.json()), stated=stated, said=said)
        if not after.equals(before):
            self._transaction.updateMetadata(*(after, False))
        return int(self._transaction.commit(names.seq(made), names.operations.UpdateSchema(before.schema(), schema)))

    def set_columns(self, fields: Sequence[Field]) -> None:
        """From now on the commit gives the table the columns `fields`. Those without an id of the column mapping are
        new ones, and get one from Delta.
        """
        after = self._metadata(json.dumps({"type": "struct", "fields": list(fields)}))
        self._transaction.updateMetadata(*(after, False))

    def make_table(self, fields: Sequence[Field], *, said: Said) -> None:
        """From now on the commit makes the table, with the columns `fields`, to which Delta gives names and ids of the
        column mapping; it says of itself what is `said`. Only where there is none.
        """
        schema = json.dumps({"type": "struct", "fields": list(fields)})
        self._transaction.updateMetadataForNewTable(self._metadata(schema, said=said))

    def take_columns(self, other: "DeltaTransaction", *, properties: Mapping[str, str], words: Words | None) -> None:
        """From now on the commit gives the table the columns that `other` read, under their names in data files.
        A table that is there keeps its properties, one that is not is made with `properties` and says `words`. Raises
        NotDirect when the files of `other` would be read under other names, or with features that the table does not
        have.
        """
        fields: list[Field] = list(other.fields())
        if self.version < 0:
            fields, said = first_words(fields, properties, words)
            self.make_table(fields, said=said)
        else:
            schema = str(other._snapshot.metadata().schemaString())
            self._transaction.updateMetadataForTableOverwrite(self._metadata(schema))
        mine, theirs = self._transaction.metadata(), other._snapshot.metadata()
        if json.loads(str(mine.schemaString()))["fields"] != fields or _mapping(mine) != _mapping(theirs):
            raise NotDirect("the columns have other names in its data files")
        features = set(self._names.convert(self._transaction.protocol().writerFeatureNames()))
        if not features >= set(self._names.convert(other._snapshot.protocol().writerFeatureNames())):
            raise NotDirect("the lake table lacks a feature of new tables")

    def _metadata(
        self,
        schema: str,
        *,
        stated: Sequence[Field] | None = None,
        said: Said | None = None,
    ) -> Any:
        """Delta's metadata with other columns, statistics of `stated` (None: of all columns), and what is `said` (None:
        as before).
        """
        names, before = self._names, self._transaction.metadata()
        present = {**(said.properties if said is not None else names.convert(before.configuration()))}
        fields = json.loads(schema)["fields"]
        if _is_mapped(present):
            named = [with_names(field) for field in fields]
            schema = schema if named == fields else json.dumps({"type": "struct", "fields": named})
            fields = named
        partitions = list(names.convert(before.partitionColumns()))
        require_partitions_kept(partitions, str(before.schemaString()), fields)
        present |= statistics_properties(fields if stated is None else stated, present=present, partitions=partitions)
        configuration = names.map()
        for name, value in present.items():
            configuration.put(name, value)
        description = before.description() if said is None else said.comment or None
        copied = (before.id(), before.name(), description, before.format(), schema)
        after = (before.partitionColumns(), names.utils.toScalaMap(configuration), before.createdTime())
        return before.copy(*copied, *after)

    def retention_seconds(self) -> float:
        """How long files stay that no version of the table needs, by its own properties."""
        return float(self._names.log.tombstoneRetentionMillis(self._snapshot.metadata())) / 1000

    def _operation(self, name: str) -> Any:
        none, operations = self._names.none, self._names.operations
        if name == "merge":
            empty = self._names.seq([])
            return operations.Merge(none, none, none, none, empty, empty, empty)
        if name == "optimize":
            empty = self._names.seq([])
            return operations.Optimize(empty, empty, *(True, none, False))
        mode = self._names.append if name == "append" else self._names.overwrite
        return operations.Write(mode, *[none] * (_WRITE_ARGUMENTS - 1))

    def _register(self, values: Mapping[str, int]) -> None:
        context = self._session.sparkContext._jsc.sc()
        made = self._names.map()
        for name, value in values.items():
            metric = self._names.metrics.createMetric(context, name)
            metric.set(int(value))
            made.put(name, metric)
        self._transaction.registerSQLMetrics(self._java, self._names.utils.toScalaMap(made))


def _is_mapped(properties: Mapping[str, str]) -> bool:
    return properties.get("delta.columnMapping.mode", "").lower() == "name"


def _mapping(metadata: Any) -> str:
    """How the columns of a table are found in its data files."""
    return _property(metadata, "delta.columnMapping.mode") or "none"


def _property(metadata: Any, name: str) -> str:
    """A property of a table in lower case, empty where it has none of that name."""
    value = metadata.configuration().get(name)
    return str(value.get()).lower() if value.isDefined() else ""
