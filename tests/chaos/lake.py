"""Delta's own log, read as the JSON it is: exactly once is what the transaction markers in it say.
(Delta protocol: Transaction Identifiers.)
"""

import json
from collections.abc import Iterable
from pathlib import Path


def assert_markers_grow(folder: Path, tables: Iterable[str]) -> None:
    """Of each application id each version was committed once, and a later one never before an
    earlier one.
    """
    for table in tables:
        last: dict[str, int] = {}
        log = sorted((folder / "public" / table / "_delta_log").glob("*.json"))
        assert log, f"the lake has no table {table}"
        for commit in log:
            for action in map(json.loads, commit.read_text().splitlines()):
                if (marker := action.get("txn")) is not None:
                    before = last.get(marker["appId"], -1)
                    assert marker["version"] > before, (
                        f"{table}: commit {commit.stem} carries {marker['appId']} at {marker['version']} after {before}"
                    )
                    last[marker["appId"]] = marker["version"]
        assert last, f"no commit to {table} carries a marker"
