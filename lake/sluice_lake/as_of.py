"""All tables of a lake at one boundary, for the engine of the caller's choice.

Invariant: every table is handed out at the version that the boundary states, after a look that it is the table that
was meant: it has the transaction identifier that the applier left there. What is not there any more is an error by
name. Engines are imported when they are asked for.
"""

import json
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from sluice_lake.boundary import Boundary, Table
from sluice_lake.errors import BoundaryExpired, LibraryMissing, VersionMissing

if TYPE_CHECKING:
    import duckdb

AT_ONCE = 8
"""Tables that are opened side by side."""
_SPARK_VIEWS = "sluice.lake.views"
"""The setting of a session that has the temporary views which were made there, with their lakes, as JSON. Python may
have several objects for one session.
"""


class AsOf:
    """All tables of the lake at `uri` as of `boundary`. Tables are called `schema.table`, or by their own name alone:
    that is the one in `public`, or else the only one of that name.

    Every method that reads a table raises UnknownTable, TableLeftOut, VersionMissing when the lake does not have it
    as the boundary states it, and BoundaryExpired when the boundary is not offered any more.
    """

    def __init__(
        self, boundary: Boundary, uri: str, options: Mapping[str, str], *, gone: Callable[[], BoundaryExpired | None]
    ) -> None:
        self.boundary = boundary
        self._uri = uri
        self._options = dict(options)
        self._gone = gone
        self._open: dict[str, DeltaTable] = {}
        self._unread: BoundaryExpired | VersionMissing | None = None
        self._lock = threading.Lock()

    @property
    def _lake(self) -> str:
        """What tells this lake from every other."""
        return f"{self._uri} {self.boundary.pipeline}"

    @property
    def tables(self) -> tuple[Table, ...]:
        """The tables of the boundary."""
        return self.boundary.tables

    def require_readable(self) -> None:
        """Raises BoundaryExpired when the boundary is not offered any more, VersionMissing when a view of a table could
        not be read to its end. For whoever sees an engine fail: engines say in their own words what failed, or nothing.
        """
        gone = self._gone() or self._unread
        if gone is not None:
            raise gone

    def uri_of(self, name: str) -> str:
        """The address of a table."""
        return f"{self._uri}/{self.boundary.named(name).path}"

    def delta(self, name: str) -> DeltaTable:
        """The table as one of `deltalake`, loaded at its version. Use its `scan`, which knows deletion vectors."""
        table = self.boundary.named(name)
        with self._lock:
            known = self._open.get(table.name)
        if known is not None:
            return known
        opened = self._opened(table)
        with self._lock:
            return self._open.setdefault(table.name, opened)

    def scan(
        self, name: str, *, columns: Sequence[str] | None = None, where: str | None = None
    ) -> pa.RecordBatchReader:
        """The rows as a stream of Arrow batches: of some `columns`, and those of which the SQL condition `where` is
        true. Its order means nothing.
        """
        found = self.delta(name).scan(list(columns) if columns is not None else None, where)
        return pa.RecordBatchReader.from_stream(found)

    def arrow(self, name: str, *, columns: Sequence[str] | None = None, where: str | None = None) -> pa.Table:
        """The rows as a table of Arrow, in memory. As `scan`."""
        try:
            return self.scan(name, columns=columns, where=where).read_all()
        except (OSError, pa.ArrowException, DeltaError) as error:
            raise self._why(self.boundary.named(name), error) from error

    def batches(self, name: str) -> pa.RecordBatchReader:
        """As `scan`, for an engine that reads at its own time: `require_readable` knows what failed then."""
        rows = self.scan(name)

        def each() -> Iterator[pa.RecordBatch]:
            try:
                yield from rows
            except (OSError, pa.ArrowException, DeltaError) as error:
                self._unread = self._why(self.boundary.named(name), error)
                raise self._unread from error

        return pa.RecordBatchReader.from_batches(rows.schema, each())

    def polars(self, name: str, *, columns: Sequence[str] | None = None, where: str | None = None) -> Any:
        """The rows as a DataFrame of Polars. Raises LibraryMissing."""
        try:
            import polars as pl
        except ImportError as error:
            raise LibraryMissing("Polars is not installed", hint="pip install polars") from error
        return pl.from_arrow(self.arrow(name, columns=columns, where=where))

    def duckdb(
        self, connection: "duckdb.DuckDBPyConnection | None" = None, *, tables: Iterable[str] | None = None
    ) -> "duckdb.DuckDBPyConnection":
        """Makes a view `schema.table` of each table, or of `tables`, in `connection` or one that is made, and one of
        the table's own name where that names one. Rows are read when they are asked for. Views of this lake that were
        made there before are gone: those of a table that is left out now would show an earlier boundary. Raises
        LibraryMissing.
        """
        from sluice_lake.views_in_duckdb import register

        names = self._names(tables)
        self._open_all(names)
        return register(self, names, connection, lake=self._lake)

    def spark(self, session: Any, *, tables: Iterable[str] | None = None) -> dict[str, Any]:
        """DataFrames of each table, or of `tables`, by `schema.table`, for a SparkSession that has Delta. Each is a
        temporary view as well, of the table's own name where that names one, else `schema_table`; views of this lake
        that were made there before are gone. The session's own settings say how it reaches the lake's store. Raises
        UnknownTable when two views would have one name.
        """
        names, frames = self._names(tables), {}
        self._open_all(names)
        views = self.spark_views([self.boundary.named(name) for name in names])
        made: dict[str, str] = json.loads(session.conf.get(_SPARK_VIEWS, "{}"))
        for view in [view for view, lake in made.items() if lake == self._lake]:
            session.catalog.dropTempView(view)
            del made[view]
        session.conf.set(_SPARK_VIEWS, json.dumps({**made, **dict.fromkeys(views, self._lake)}))
        for view, table in views.items():
            path = self.uri_of(table.name)
            path = path.replace("s3://", "s3a://", 1) if path.startswith("s3://") else path
            frame = session.read.format("delta").option("versionAsOf", table.version).load(path)
            frame.createOrReplaceTempView("`" + view.replace("`", "``") + "`")
            frames[table.name] = frame
        return frames

    def spark_views(self, tables: Iterable[Table]) -> dict[str, Table]:
        """`tables` by the names of their temporary views in Spark. Raises UnknownTable when Spark takes two for one."""
        chosen = list(tables)
        short = self.short_names(chosen)
        return self.boundary.views(
            ((short.get(one.name) or f"{one.schema}_{self.boundary.name_in_schema(one)}", one) for one in chosen),
            engine="Spark",
        )

    def short_names(self, tables: Iterable[Table]) -> dict[str, str]:
        """Their names without the schema, by `schema.table`, of those of `tables` that such a name means, also to an
        engine that knows no case.
        """
        alike: dict[str, list[tuple[str, Table]]] = {}
        for table in tables:
            if name := self.short_name(table):
                alike.setdefault(name.casefold(), []).append((name, table))
        found = {}
        for same in alike.values():
            meant = [one for one in same if one[1].schema == "public"] or same
            if len(meant) == 1:
                found[meant[0][1].name] = meant[0][0]
        return found

    def short_name(self, table: Table) -> str:
        """The name of `table` without its schema where that names it, else empty."""
        name = table.own_name
        return name if self.boundary.called(name) == [table] and not self.boundary.left_out_as(name) else ""

    def _names(self, tables: Iterable[str] | None) -> list[str]:
        chosen = self.boundary.tables if tables is None else [self.boundary.named(name) for name in tables]
        return list(dict.fromkeys(table.name for table in chosen))

    def _open_all(self, names: Sequence[str]) -> None:
        with ThreadPoolExecutor(AT_ONCE, thread_name_prefix="lake") as pool:
            list(pool.map(self.delta, names))

    def _opened(self, table: Table) -> DeltaTable:
        try:
            opened = DeltaTable(f"{self._uri}/{table.path}", version=table.version, storage_options=self._options)
            found = opened.transaction_version(table.marker)
        except (DeltaError, OSError, ValueError) as error:
            raise self._why(table, error) from error
        if found != table.marker_version:
            raise self._gone() or VersionMissing(
                f"version {table.version} of the lake table {table.name} is not that of the boundary {self.boundary}: "
                "another table took its place",
                hint="ask for a newer boundary",
            )
        return opened

    def _why(self, table: Table, error: Exception) -> BoundaryExpired | VersionMissing:
        return self._gone() or VersionMissing(
            f"version {table.version} of the lake table {table.name} cannot be read ({type(error).__name__})",
            hint="somebody removed files of the table (VACUUM with a shorter retention than lake.boundary_retention), "
            "or its store does not answer",
        )
