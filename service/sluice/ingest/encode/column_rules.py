"""Column rules applied to rows, before anything of them is written. Pure.

Invariant: every row that is encoded comes through here, as the stream sent it or as a COPY read it; the
values of a column that is excluded are not looked at.
"""

from dataclasses import replace

from sluice.contract.schema import TableSchema
from sluice.errors import DecodeError
from sluice.protocol.tuples import RowColumns


def stored_rows(rows: RowColumns, schema: TableSchema) -> RowColumns:
    """The columns of `schema` that are stored, of rows as the stream sends them. Raises DecodeError for rows of
    another shape.
    """
    sent = len(schema.columns) + len(schema.excluded)
    if len(rows.new) != sent:
        raise DecodeError(
            f"{schema.qualified_name}: rows have {len(rows.new)} columns, schema version {schema.version} has {sent}"
        )
    if not schema.excluded:
        return rows
    gone = {one.place for one in schema.excluded}
    kept = [place for place in range(sent) if place not in gone]
    old = None if rows.old is None else tuple(rows.old[place] for place in kept)
    return replace(rows, new=tuple(rows.new[place] for place in kept), old=old)
