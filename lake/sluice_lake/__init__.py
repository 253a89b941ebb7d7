"""Reads a lake that Sluice keeps: all tables as of one transaction at the source.

    from sluice_lake import Lake

    lake = Lake("s3://bucket/lake")
    lake.wait_for("16/B374D848", timeout=10)      # what was committed before this position is readable now
    now = lake.as_of()                            # or as_of(lsn=...), as_of(time=...)
    now.duckdb().sql("SELECT count(*) FROM orders JOIN customers USING (customer_id)").show()

Everything in `now` is of one boundary: a position in the source's log at which a version of every table is known.
"""

from sluice_lake.as_of import AsOf
from sluice_lake.boundary import Boundary, Table
from sluice_lake.errors import (
    BoundaryExpired,
    BoundaryNotReached,
    FormatTooNew,
    LakeError,
    LakeUnavailable,
    LibraryMissing,
    NoBoundary,
    TableLeftOut,
    UnknownTable,
    UnusableArgument,
    VersionMissing,
    WaitTimedOut,
)
from sluice_lake.lake import Lake

__all__ = [
    "AsOf",
    "Boundary",
    "BoundaryExpired",
    "BoundaryNotReached",
    "FormatTooNew",
    "Lake",
    "LakeError",
    "LakeUnavailable",
    "LibraryMissing",
    "NoBoundary",
    "Table",
    "TableLeftOut",
    "UnknownTable",
    "UnusableArgument",
    "VersionMissing",
    "WaitTimedOut",
]
