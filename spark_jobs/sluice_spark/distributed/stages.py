"""How work reaches the executors and what comes back: pieces, each a few megabytes of Arrow or of a
pickled result, which Spark moves without looking at a row.

Owns that our own errors cross the border whole: an executor returns them as a piece, so that Spark
neither retries what cannot succeed nor writes their text anywhere, and the driver raises them. Any
other exception fails the task, and Spark's rules for retries hold. What executors lack is named.
"""

import pickle
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, NamedTuple, cast

import pyarrow as pa
from pyspark import Broadcast
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sql
from pyspark.sql.types import StructType
from pyspark.sql.udf import UserDefinedFunction
from pyspark.util import PythonEvalType

from sluice.contract import envelope
from sluice.errors import ApplyError, ServiceError
from sluice_spark.distributed.executors import explained
from sluice_spark.distributed.packages import packages
from sluice_spark.distributed.packages import require as require_packages

SCHEMA = "kind string, part int, payload binary"
_ARROW = pa.schema([("kind", pa.string()), ("part", pa.int32()), ("payload", pa.binary())])
_BATCH_BYTES = 8 * 1024 * 1024
_NO_CONSTANTS: Mapping[str, pa.Array] = MappingProxyType({})
_BATCH_PIECES = 256
_SETTINGS = {
    # A batch of pieces must stay small, whatever the number of its rows is.
    "spark.sql.execution.arrow.maxBytesPerBatch": "16MB",
}
_CODEC = pa.ipc.IpcWriteOptions(compression="lz4")

COUNT, ERROR, RESULT = "count", "error", "result"


class Piece(NamedTuple):
    """A part of a stage's output for the next stage's task `part`, or for the driver."""

    kind: str
    part: int
    payload: bytes

    @staticmethod
    def of(kind: str, value: object, *, part: int = 0) -> "Piece":
        """Any value of ours."""
        return Piece(kind, part, pickle.dumps(value))

    @property
    def value(self) -> Any:
        """What `of` was given, by a process of the same applier."""
        return pickle.loads(self.payload)  # noqa: S301 - written by our own executors

    @staticmethod
    def of_table(kind: str, table: pa.Table, *, part: int) -> "Piece":
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, table.schema, options=_CODEC) as writer:
            writer.write_table(table.combine_chunks())
        return Piece(kind, part, sink.getvalue().to_pybytes())

    @property
    def table(self) -> pa.Table:
        """What `of_table` was given."""
        return pa.ipc.open_stream(pa.BufferReader(self.payload)).read_all()


Work = Callable[[Any, Iterator[Any]], Iterator[Piece]]
"""(What the driver gave all tasks, this task's input) to its output."""


RowWork = Callable[[Any, Iterator[Any]], Iterator[pa.RecordBatch]]


@dataclass(frozen=True)
class _Task:
    """Runs in the executors' Python. `given` is what all tasks of the stage are given, `packages`
    what the driver runs.
    """

    work: Work
    given: "Broadcast[Any]"
    read: Callable[[Iterable[pa.RecordBatch]], Iterator[Any]]
    packages: Mapping[str, str]

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return _batched(self._pieces(batches))

    def _pieces(self, batches: Iterable[pa.RecordBatch]) -> Iterator[Piece]:
        try:
            require_packages(self.packages)
            yield from self.work(self.given.value, self.read(batches))
        except ServiceError as error:
            error.__cause__ = error.__context__ = None
            yield Piece.of(ERROR, error)


@dataclass(frozen=True)
class _RowTask:
    """The same for a stage that makes rows."""

    work: RowWork
    given: "Broadcast[Any]"
    read: Callable[[Iterable[pa.RecordBatch]], Iterator[Any]]
    packages: Mapping[str, str]

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        require_packages(self.packages)
        return self.work(self.given.value, self.read(batches))


def _batched(pieces: Iterator[Piece]) -> Iterator[pa.RecordBatch]:
    waiting: list[Piece] = []
    size = 0
    for piece in pieces:
        waiting.append(piece)
        size += len(piece.payload)
        if size >= _BATCH_BYTES or len(waiting) == _BATCH_PIECES:
            yield _batch(waiting)
            waiting, size = [], 0
    if waiting:
        yield _batch(waiting)


def _batch(pieces: list[Piece]) -> pa.RecordBatch:
    arrays = [pa.array([piece[place] for piece in pieces], field.type) for place, field in enumerate(_ARROW)]
    return pa.RecordBatch.from_arrays(arrays, schema=_ARROW)


def _numbers(batches: Iterable[pa.RecordBatch]) -> Iterator[int]:
    for batch in batches:
        yield from batch.column(0).to_pylist()


def _read_pieces(batches: Iterable[pa.RecordBatch]) -> Iterator[Piece]:
    """Raises the error that a task of the stage before returned."""
    for batch in batches:
        for place in range(batch.num_rows):
            piece = Piece(*(batch.column(number)[place].as_py() for number in range(len(_ARROW))))
            if piece.kind == ERROR:
                raise piece.value
            yield piece


def _rows(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield from batches


class Stages:
    """Builds jobs for one private session. What the executors are given is taken back from them at
    the end of the block.
    """

    def __init__(self, session: SparkSession) -> None:
        self.session = session
        self._given: list[Broadcast[Any]] = []

    @property
    def slots(self) -> int:
        """How many tasks run at a time, as far as Spark knows."""
        return max(1, int(self.session.sparkContext.defaultParallelism))

    def first(self, work: Work, given: object, *, tasks: int) -> DataFrame:
        """The pieces that `work` makes of each number below `tasks`, one task for each."""
        numbers = self.session.range(0, tasks, 1, tasks)
        return self._pieces(numbers, work, given, _numbers)

    def first_rows(self, work: RowWork, given: object, *, tasks: int, schema: StructType) -> DataFrame:
        """Rows instead of pieces. An error of ours fails the job like any other."""
        task = _RowTask(work, self._shared(given), _numbers, packages())
        return _mapped(self.session.range(0, tasks, 1, tasks), task, work.__name__, schema)

    def then_rows(
        self, pieces: DataFrame, work: RowWork, given: object, *, tasks: int, schema: StructType
    ) -> DataFrame:
        """Rows of those for part 0, of those for part 1, and so on. An error fails the job."""
        task = _RowTask(work, self._shared(given), _read_pieces, packages())
        return _mapped(pieces.repartitionById(tasks, "part"), task, work.__name__, schema)

    def then(self, pieces: DataFrame, work: Work, given: object, *, tasks: int) -> DataFrame:
        """The pieces that `work` makes of those for part 0, of those for part 1, and so on."""
        return self._pieces(pieces.repartitionById(tasks, "part"), work, given, _read_pieces)

    def of_rows(self, rows: DataFrame, work: Work, given: object) -> DataFrame:
        """The pieces that `work` makes of each partition of `rows`, which it gets as Arrow batches."""
        return self._pieces(rows, work, given, _rows)

    def collected(self, pieces: DataFrame) -> list[Piece]:
        """Runs the job; its results only. An error is the last one of them."""
        with settings(self.session, _SETTINGS), explained(self.session.sparkContext):
            found = [Piece(row[0], row[1], bytes(row[2])) for row in pieces.collect()]
        return sorted(found, key=lambda piece: piece.kind == ERROR)

    def close(self) -> None:
        """Takes back what the executors were given."""
        for given in self._given:
            given.destroy()
        self._given.clear()

    def _pieces(
        self, frame: DataFrame, work: Work, given: object, read: Callable[[Iterable[pa.RecordBatch]], Iterator[Any]]
    ) -> DataFrame:
        return _mapped(frame, _Task(work, self._shared(given), read, packages()), work.__name__, SCHEMA)

    def _shared(self, given: object) -> "Broadcast[Any]":
        shared = self.session.sparkContext.broadcast(given)
        self._given.append(shared)
        return shared


def _mapped(frame: DataFrame, task: Callable[..., Any], name: str, schema: StructType | str) -> DataFrame:
    # DataFrame.mapInArrow would ask for pandas, which it does not use.
    function = UserDefinedFunction(
        cast("Any", task), returnType=schema, name=name, evalType=PythonEvalType.SQL_MAP_ARROW_ITER_UDF
    )
    java: Any = frame._jdf
    columns: Any = function(*(frame[name] for name in frame.columns))
    return DataFrame(java.mapInArrow(columns._jc, *(False, None)), frame.sparkSession)


def results(pieces: Iterable[Piece]) -> list[Any]:
    """The values of the results. Raises the first error."""
    found = list(pieces)
    for piece in found:
        if piece.kind == ERROR:
            raise piece.value
    return [piece.value for piece in found if piece.kind == RESULT]


@contextmanager
def settings(session: SparkSession, values: dict[str, str]) -> Iterator[None]:
    """The session's settings inside the block."""
    before = {name: session.conf.get(name, None) for name in values}
    try:
        for name, value in values.items():
            session.conf.set(name, value)
        yield
    finally:
        for name, old in before.items():
            if old is None:
                session.conf.unset(name)
            else:
                session.conf.set(name, old)


def require(*, holds: bool, what: str) -> None:
    """A check of the executors' accounts. Raises ApplyError: nothing was committed, and the window is
    applied again.
    """
    if not holds:
        raise ApplyError(f"the executors' results do not add up: {what}", hint="please report it with the log")


def as_declared(
    rows: pa.Table, schema: pa.Schema, constants: Mapping[str, pa.Array] = _NO_CONSTANTS
) -> Iterator[pa.RecordBatch]:
    """`rows` with the columns `schema`, in batches. What they lack is one of the `constants`, else NULL."""
    columns: dict[str, Any] = {**constants, **{name: rows[name] for name in rows.column_names}}
    arrays = [
        columns[field.name].cast(field.type) if field.name in columns else pa.nulls(len(rows), field.type)
        for field in schema
    ]
    table = pa.Table.from_arrays(arrays, schema=schema)
    size = max(1, len(table) * _BATCH_BYTES // max(table.nbytes, _BATCH_BYTES))
    yield from table.to_batches(max_chunksize=size)


def stamped(frame: DataFrame, columns: Sequence[tuple[str, str]], *, lsn: int) -> DataFrame:
    """`frame` with the position of the snapshot in those of `columns` that have one."""
    for name in {envelope.LSN, envelope.FROM_LSN} & {name for name, _ in columns}:
        frame = frame.withColumn(name, sql.lit(lsn).cast("bigint"))
    return frame
