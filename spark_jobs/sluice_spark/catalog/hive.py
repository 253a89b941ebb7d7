"""A Hive metastore, from 2.3 to 4.0, over its Thrift interface.

Spark's own jars have the interface's classes, so nothing is installed for it. Only calls are made that all of these
versions answer: `getTable` of the client in those jars is not among them, for 4.0 has no `get_table` any more. An entry
has the form in which Spark and Trino find Delta tables: the provider is a property, and the location stands in the
parameters of the serde as well. The metastore is asked not to count the table's files, which it would list.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeVar
from urllib.parse import urlsplit

from py4j.protocol import Py4JError, Py4JJavaError

from sluice.printable import one_line
from sluice_spark.catalog.client import Catalog, CatalogAway, CatalogRefused
from sluice_spark.catalog.entries import (
    DELTA,
    INPUT,
    OUTPUT,
    PIPELINE,
    PROVIDER,
    SERDE,
    TABLE,
    Entry,
    Found,
)

T = TypeVar("T")
OWNER = "sluice"
_API = "org.apache.hadoop.hive.metastore.api."
_MISSING, _INVALID = f"{_API}NoSuchObjectException", f"{_API}InvalidOperationException"
_LONGEST_REASON = 200


class _Incompatible(CatalogRefused):
    """An entry cannot become another one in one step."""


class HiveCatalog(Catalog):
    """The metastore at `uri` (thrift://HOST:PORT), asked through the JVM `jvm`."""

    def __init__(self, jvm: Any, *, uri: str, timeout_seconds: float, create_schemas: bool) -> None:
        self._jvm = jvm
        self._api = jvm.org.apache.hadoop.hive.metastore.api
        self._uri = uri
        self._milliseconds = int(timeout_seconds * 1000)
        super().__init__(create_schemas=create_schemas)
        self._socket: Any = None
        self._client: Any = None

    def find(self, name: str) -> Found | None:
        found = self._get(name, missing=None)
        if found is None:
            return None
        properties = dict(found.getParameters() or {})
        storage = found.getSd()
        path = dict(storage.getSerdeInfo().getParameters() or {}).get("path")
        columns = tuple(
            (str(one.getName()), str(one.getType()), str(one.getComment() or "")) for one in storage.getCols()
        )
        return Found(
            location=str(path or storage.getLocation()),
            is_delta=str(properties.get(PROVIDER, "")).lower() == DELTA,
            columns=columns,
            pipeline=str(properties.get(PIPELINE, "")),
            table=str(properties.get(TABLE, "")),
        )

    def replace(self, entry: Entry) -> None:
        try:
            self._alter(entry)
        except _Incompatible:
            # It compares types place by place, and a column that goes moves those after it. Without columns there is
            # nothing to compare; who looks in between finds the table.
            self._alter(replace(entry, columns=()))
            self._alter(entry)

    def close(self) -> None:
        socket, self._socket, self._client = self._socket, None, None
        if socket is not None:
            try:
                socket.close()
            except Py4JError:
                return

    def _alter(self, entry: Entry) -> None:
        schema, name = entry.parts
        table, context = self._table(entry, self._get(entry.name)), self._context()
        self._ask(lambda client: client.alter_table_with_environment_context(schema, name, table, context))

    def _get(self, name: str, *, missing: Any = ...) -> Any:
        request = self._api.GetTableRequest(*name.split("."))
        return self._ask(lambda client: client.get_table_req(request).getTable(), missing=missing)

    def _has_schema(self, schema: str) -> bool:
        return self._ask(lambda client: client.get_database(schema), missing=None) is not None

    def _create_schema(self, schema: str) -> None:
        made = self._api.Database(schema, "", None, None)
        self._ask(lambda client: client.create_database(made))

    def _create_entry(self, entry: Entry) -> None:
        schema, name = entry.parts
        made, context = self._api.Table(), self._context()
        made.setDbName(schema)
        made.setTableName(name)
        made.setOwner(OWNER)
        table = self._table(entry, made)
        self._ask(lambda client: client.create_table_with_environment_context(table, context))

    def _ask(self, do: Callable[[Any], T], *, missing: Any = ...) -> Any:
        """What `do` gives; `missing`, where it is given, when the metastore has no such object."""
        try:
            return do(self._connected())
        except Py4JJavaError as error:
            failed = error.java_exception
            name = str(failed.getClass().getName())
            if name == _MISSING and missing is not ...:
                return missing
            if name.startswith(_API):
                said = one_line(str(failed.getMessage() or ""))[:_LONGEST_REASON]
                refused = _Incompatible if name == _INVALID else CatalogRefused
                raise refused(f"the metastore refuses ({name.rpartition('.')[2]}): {said}") from None
            self.close()
            raise CatalogAway(f"the metastore at {self._uri} does not answer ({name.rpartition('.')[2]})") from None
        except Py4JError as error:
            self.close()
            raise CatalogAway(f"the JVM that asks the metastore does not answer ({type(error).__name__})") from None

    def _connected(self) -> Any:
        if self._client is None:
            thrift, parts = self._jvm.org.apache.thrift, urlsplit(self._uri)
            settings = thrift.TConfiguration()
            self._socket = thrift.transport.TSocket(
                settings, parts.hostname, parts.port, self._milliseconds, self._milliseconds
            )
            self._socket.open()
            protocol = thrift.protocol.TBinaryProtocol(self._socket)
            self._client = getattr(self._api, "ThriftHiveMetastore$Client")(protocol)
        return self._client

    def _table(self, entry: Entry, table: Any) -> Any:
        """`table`, which is new or stands there, as `entry` wants it. What people wrote to it stays."""
        api = self._api
        columns = self._jvm.java.util.ArrayList()
        for listed_name, kind, comment in entry.listed:
            columns.add(api.FieldSchema(listed_name, kind, comment or None))
        serde = api.SerDeInfo()
        serde.setSerializationLib(SERDE)
        serde.setParameters(self._map(entry.serde_parameters))
        storage = api.StorageDescriptor()
        storage.setCols(columns)
        storage.setLocation(entry.location)
        storage.setInputFormat(INPUT)
        storage.setOutputFormat(OUTPUT)
        storage.setSerdeInfo(serde)
        table.setTableType("EXTERNAL_TABLE")
        table.setPartitionKeys(self._jvm.java.util.ArrayList())
        table.setSd(storage)
        table.setParameters(self._map(entry.properties_beside(dict(table.getParameters() or {}))))
        return table

    def _context(self) -> Any:
        context = self._api.EnvironmentContext()
        context.setProperties(self._map({"DO_NOT_UPDATE_STATS": "true"}))
        return context

    def _map(self, values: dict[str, str]) -> Any:
        made = self._jvm.java.util.HashMap()
        for name, value in values.items():
            made.put(name, value)
        return made
