"""`format("sluice")`: the typed changes of one table of a pipeline, or those of all, read from its spool by Spark.

Owns that a restart from Spark's checkpoint reads each change once: an offset is the number and the hash of a manifest
entry, with what tells its manifest, table and generation from every other, and one range of entries is always planned
alike.
"""

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any
from uuid import uuid4

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxFiles, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from sluice.contract import consumer
from sluice.contract.consumer import Consumer
from sluice.errors import ObjectMissing, UnsupportedChange, UsageError
from sluice.manifest.reader import identity
from sluice.store.base import ObjectStore
from sluice_spark.lake.sql import spark_ddl
from sluice_spark.source import log, rows
from sluice_spark.source.rows import Part
from sluice_spark.spool import StorePrefix

ENTRIES_AT_ONCE = 1000
SAY_SECONDS = 60.0
"""Between two records of a consumer that has nothing to read."""
_STORE = "store."
_OPTIONS = ("spool", "pipeline", "table", "startingposition", "maxentriespertrigger", "consumer")
_SNAPSHOT, _LATEST = "snapshot", "latest"


@dataclass(frozen=True, slots=True)
class Wanted:
    """What the options of a query ask for."""

    spool: StorePrefix
    table: str
    from_latest: bool
    most: int
    consumer: str = ""

    @staticmethod
    def of(options: Mapping[str, str]) -> "Wanted":
        """Raises UsageError, which names the option."""
        given = {name.lower(): value for name, value in options.items()}
        store = {name.removeprefix(_STORE): value for name, value in given.items() if name.startswith(_STORE)}
        unknown = sorted(name for name in given if name not in _OPTIONS and not name.startswith(_STORE))
        if unknown:
            raise UsageError(f"format('sluice') has no option {unknown[0]!r}; it has {', '.join(_OPTIONS)}, {_STORE}*")
        missing = [name for name in _OPTIONS[:3] if not given.get(name)]
        if missing:
            raise UsageError(f"format('sluice') needs the option {missing[0]!r}")
        start = given.get("startingposition", _SNAPSHOT)
        if start not in (_SNAPSHOT, _LATEST):
            raise UsageError(f"startingPosition is {_SNAPSHOT} or {_LATEST}, not {start!r}")
        most = given.get("maxentriespertrigger", str(ENTRIES_AT_ONCE))
        if not most.isascii() or not most.isdecimal() or not int(most):
            raise UsageError(f"maxEntriesPerTrigger is a number from 1 on, not {most!r}")
        spool = StorePrefix(given["spool"], f"{given['pipeline']}/", tuple(sorted(store.items())))
        return Wanted(spool, given["table"], start == _LATEST, int(most), given.get("consumer", ""))


class SluiceDataSource(DataSource):
    """Changes from the spool of a pipeline. Options: `spool` and `pipeline` (spool.uri and pipeline of the
    configuration), `table` (schema.table, or * for all in one form), `startingPosition` (`snapshot`, or `latest` for
    what comes from now on), `maxEntriesPerTrigger`, `consumer` (a name, under which pruning waits for this stream), and
    those of the object store with `store.` in front.
    """

    @classmethod
    def name(cls) -> str:
        return "sluice"

    def schema(self) -> str:
        """The columns of the table as they are now, and those of the change."""
        wanted = Wanted.of(self.options)
        one = log.subject(log.newest(wanted.spool), wanted.table)
        if isinstance(one, log.Followed):
            return spark_ddl(rows.columns_of(one.table.schemas[one.version]))
        return spark_ddl(rows.columns_of_any())

    def reader(self, schema: StructType) -> DataSourceReader:
        return Reader(Wanted.of(self.options), schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        return StreamReader(Wanted.of(self.options), schema)


def _require_whole(one: log.Subject) -> None:
    if not one.is_whole:
        raise UsageError(f"the snapshot of {one.name} is not complete yet; a stream waits for it")


def _place(offset: Mapping[str, Any]) -> log.Place:
    return log.Place(offset["seq"], offset["sha256"])


class Partition(InputPartition):
    """One segment."""

    def __init__(self, part: Part) -> None:
        self.part = part


def _batches(partition: InputPartition, schema: StructType, wanted: Wanted) -> Iterator[pa.RecordBatch]:
    assert isinstance(partition, Partition)
    declared = to_arrow_schema(schema, timezone="UTC")
    read = rows.of_any if wanted.table == log.ALL else rows.typed
    for table in read(partition.part):
        yield from table.select(declared.names).cast(declared).to_batches()


class Reader(DataSourceReader):
    """All that there is of the table now: its snapshot, and the changes since."""

    def __init__(self, wanted: Wanted, schema: StructType) -> None:
        self._wanted, self._schema = wanted, schema

    def partitions(self) -> Sequence[InputPartition]:
        spool, state = self._wanted.spool, log.newest(self._wanted.spool)
        one = log.subject(state, self._wanted.table)
        _require_whole(one)
        store, end = spool.open(), log.end_of(state)
        begin = end if self._wanted.from_latest else log.place_at(store, one.first_seq)
        return [Partition(part) for part in log.parts(store, one, spool, after=begin, last=end)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return _batches(partition, self._schema, self._wanted)


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """The same, and then what comes. For one query."""

    def __init__(self, wanted: Wanted, schema: StructType) -> None:
        self._wanted, self._schema = wanted, schema
        one = log.subject(log.newest(wanted.spool), wanted.table)
        self._version = one.version if isinstance(one, log.Followed) else 0
        """The shape of this query, whatever the table gets while it runs."""
        self._query, self._said_at = uuid4().hex, float("-inf")
        self._last_seq: int | None = None
        """Of a query that ends with what is there now."""

    def _subject(self, start: Mapping[str, Any] | None = None) -> log.Subject:
        """As it is now. Raises UnsupportedChange when `start` is a place in something else."""
        state = log.newest(self._wanted.spool)
        one = log.subject(state, self._wanted.table)
        if isinstance(one, log.Followed):
            one = log.Followed(one.table, self._version)
        if start is not None and start["of"] != self._of(one):
            raise UnsupportedChange(
                f"the checkpoint of this query is of another manifest, table or generation than {one.name} now: the "
                "table was read again as a whole, or another one has its name; begin again with a new checkpoint"
            )
        if start is not None:
            log.require_known(state, _place(start))
        return one

    def _of(self, one: log.Subject) -> str:
        return f"{identity(self._wanted.spool.open())}/{one.of}"

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        one = self._subject()
        if self._wanted.from_latest:
            _require_whole(one)
        spool = self._wanted.spool
        begin = log.end_of(log.newest(spool)) if self._wanted.from_latest else log.place_at(spool.open(), one.first_seq)
        self._hold(begin.seq)
        return {"seq": begin.seq, "sha256": begin.sha256, "of": self._of(one)}

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        # Without it Spark runs a single batch, which may be the one that failed before.
        self._last_seq = log.newest(self._wanted.spool).seq

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802 - Spark's name
        one = self._subject(start)
        last = log.newest(self._wanted.spool).seq if self._last_seq is None else self._last_seq
        most = last if isinstance(limit, ReadAllAvailable) else self._wanted.most
        store = self._wanted.spool.open()
        if time.monotonic() - self._said_at >= SAY_SECONDS:
            self._hold(start["seq"])
        reached = log.further(store, one, after=_place(start), last_seq=last, most=most)
        return {**start, "seq": reached.seq, "sha256": reached.sha256}

    def commit(self, end: dict[str, Any]) -> None:
        self._hold(end["seq"])

    def _hold(self, seq: int) -> None:
        """Says how far this consumer is: pruning keeps what is behind. Nothing for a query that is none. Raises
        UsageError when another query has taken the name since.
        """
        name = self._wanted.consumer
        if name:
            store, at = self._wanted.spool.open(), datetime.now(UTC).isoformat(timespec="seconds")
            if math.isfinite(self._said_at):
                self._require_own(store, name)
            store.put(consumer.key(name), Consumer(name, seq, at, self._query).encode())
            self._said_at = time.monotonic()

    def _require_own(self, store: ObjectStore, name: str) -> None:
        with suppress(ObjectMissing):
            if Consumer.decode(store.get(consumer.key(name))).query != self._query:
                raise UsageError(
                    f"another stream began to run as the consumer {name!r}, and pruning waits for that one alone; give "
                    "each query, and each load() of a query, a name of its own, then start this one again"
                )

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
        # Spark knows no limit by entries; what it gives back is compared with no number of rows.
        return ReadMaxFiles(self._wanted.most)

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        one, spool = self._subject(start), self._wanted.spool
        found = log.parts(spool.open(), one, spool, after=_place(start), last=_place(end))
        return [Partition(part) for part in found]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return _batches(partition, self._schema, self._wanted)
