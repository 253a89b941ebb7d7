"""Tables and rows for tests of the spool: wire messages in, one Arrow batch out."""

from collections.abc import Sequence

import numpy as np

from sluice.contract.schema import ColumnSchema, TableSchema
from sluice.contract.types import lake_type
from sluice.ingest.encode.rows import EncodedRows, encode_rows
from sluice.protocol.frames import join
from sluice.protocol.tuples import RowColumns, walk_rows
from tests.support.pgoutput_bytes import Tuple, insert, xlogdata

OID = 16_400


def table(
    *columns: tuple[str, int, int],
    key: Sequence[str] = (),
    identity: Sequence[str] | None = None,
    replica_identity: str = "d",
) -> TableSchema:
    """public.t with (name, type oid, typmod) columns; the identity is the key, or every column with `f`."""
    if identity is None:
        identity = [name for name, _, _ in columns] if replica_identity == "f" else key
    return TableSchema(
        "7",
        1,
        "public",
        "t",
        replica_identity,
        tuple(
            ColumnSchema(
                name, number, oid, typmod, "", lake_type(oid, typmod), key=name in key, identity=name in identity
            )
            for number, (name, oid, typmod) in enumerate(columns, 1)
        ),
    )


def walked(schema: TableSchema, messages: Sequence[bytes]) -> RowColumns:
    frames = join([xlogdata(message) for message in messages])
    return walk_rows(frames, np.arange(len(messages)), len(schema.columns), in_stream=False)


def encoded(schema: TableSchema, *messages: bytes, lsn: int | None = 1_000) -> EncodedRows:
    """The messages as rows 0, 1, ... of transaction 9."""
    count = len(messages)
    known = None if lsn is None else np.full(count, lsn)
    return encode_rows(
        walked(schema, messages),
        schema,
        ordinal=np.arange(count),
        xid=np.full(count, 9),
        lsn=known,
        commit_time_us=known,
    )


def inserted(schema: TableSchema, *rows: Tuple, lsn: int | None = 1_000) -> EncodedRows:
    return encoded(schema, *(insert(OID, row) for row in rows), lsn=lsn)


def column_of(
    type_oid: int, values: Sequence[bytes | None], *, typmod: int = -1
) -> tuple[list[object], list[str | None]]:
    """What a column of this type makes of `values`: the typed values, and the special texts beside them."""
    batch = inserted(table(("v", type_oid, typmod)), *([value] for value in values)).batch
    batch.validate(full=True)
    special = [None if marks is None else dict(marks)["v"] for marks in batch.column("_sluice_special").to_pylist()]
    return batch.column("v").to_pylist(), special


def array_out(elements: Sequence[str | None]) -> str:
    """A one-dimensional array as PostgreSQL prints it."""
    return "{" + ",".join(map(_element_out, elements)) + "}"


def _element_out(element: str | None) -> str:
    if element is None:
        return "NULL"
    if element == "" or element.upper() == "NULL" or any(c in '{},"\\' or c in " \t\n\r\v\f" for c in element):
        return '"' + element.replace("\\", "\\\\").replace('"', '\\"') + '"'
    return element
