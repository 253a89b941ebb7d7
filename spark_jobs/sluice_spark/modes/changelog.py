"""The lake table holds every change, appended in the form the segments have.

Owns that no part of a change is lost: unsent values, old rows and marked values have their own
columns where the table can have them. The only mode for tables whose rows cannot be identified.
"""

from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal

import pyarrow as pa
import pyarrow.compute as pc

from sluice.contract import envelope
from sluice_spark.fold.fold import in_order
from sluice_spark.lake.columns import METADATA_TYPES
from sluice_spark.lake.plan import CommitPlan
from sluice_spark.lake.rows_to_commit import HeldRows
from sluice_spark.read.column_defaults import arrow_type


def with_origins(rows: pa.Table, origins: Mapping[int, tuple[str, int]]) -> pa.Table:
    """`rows` with where their transactions came from; `origins` is by commit end LSN, and what is
    not in it began at the source.
    """
    known = pc.index_in(rows[envelope.LSN], value_set=pa.array(list(origins), pa.int64()))
    names = pa.array([name for name, _ in origins.values()], pa.string())
    positions = pa.array(
        [Decimal(position) if position else None for _, position in origins.values()],
        arrow_type(METADATA_TYPES[envelope.ORIGIN_LSN]),
    )
    return rows.append_column(envelope.ORIGIN, names.take(known)).append_column(
        envelope.ORIGIN_LSN, positions.take(known)
    )


def plan(portions: Iterable[pa.Table], pieces: HeldRows, *, columns: Sequence[tuple[str, str]]) -> CommitPlan:
    """Hands every row of `portions` to `pieces`, to be appended. A mirror whose rows are all new
    uses it as well.
    """
    for rows in portions:
        pieces.add(in_order(rows).select([name for name, _ in columns]))
    return CommitPlan("append", tuple(columns))
