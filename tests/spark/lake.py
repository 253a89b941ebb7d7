"""Reading Delta with a second engine. It scans, because its count() ignores deletion vectors."""

from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable, QueryBuilder

from sluice.manifest.reader import identity
from sluice.store.base import ObjectStore


def rows_in(path: Path, *, metadata: bool = False, version: int | None = None) -> list[dict[str, Any]]:
    """All rows of `version` (None: the newest); marked values in the place of their column, and
    without the metadata columns unless asked for.
    """
    table = pa.table(
        QueryBuilder().register("lake", DeltaTable(path, version=version)).execute("select * from lake").read_all()
    )
    rows = table.to_pylist()
    for row in rows:
        row.update(dict(row.get("_sluice_special") or {}))
    return (
        rows
        if metadata
        else [{name: value for name, value in row.items() if not name.startswith("_sluice")} for row in rows]
    )


def marker(path: Path, store: ObjectStore, *, generation: int = 1, suffix: str = "") -> int | None:
    """What the table records for table 16385 of pipeline `shop` and the manifest in `store`."""
    name = f"sluice/shop/16385/{generation}/{identity(store)}{suffix}"
    found: int | None = DeltaTable(path).transaction_version(name)
    return found


def version(path: Path) -> int:
    return int(DeltaTable(path).version())
