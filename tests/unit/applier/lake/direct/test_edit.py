"""An edit is a value: what it does to a table and what history will say of it follow from its fields alone."""

import json
from typing import Any, cast

import pytest

from sluice_spark.lake.direct.data_files import Written
from sluice_spark.lake.direct.edit import Edit, with_vector
from sluice_spark.lake.direct.live_files import LiveFile
from sluice_spark.lake.direct.transaction import DeltaTransaction

BASE = cast("DeltaTransaction", object())


def _add(path: str, *, rows: int = 4) -> dict[str, Any]:
    stats = json.dumps({"numRecords": rows, "tightBounds": True}, separators=(",", ":"))
    return {"path": path, "size": 100, "partitionValues": {}, "stats": stats, "dataChange": True}


def _merge() -> Edit:
    """Two of seven net changes are new rows, three rows change, two go: one file is left without a row."""
    edit = Edit(BASE, "merge", reads=True, source=7, matched=5, deleted=2)
    edit.written = Written([LiveFile.of(_add("new", rows=5))], rows=5, bytes=100)
    vector = {"storageType": "u", "pathOrInlineDv": "a" * 20, "offset": 1, "sizeInBytes": 9, "cardinality": 1}
    edit.marked = [LiveFile.of(with_vector(_add("marked"), vector))]
    edit.removes = [_add("marked"), _add("emptied")]
    return edit


def test_a_file_that_gets_a_vector_is_removed_and_added_again_and_is_not_gone() -> None:
    edit = _merge()
    assert edit.gone == ["emptied"]
    assert [file.path for file in edit.adds] == ["new", "marked"]
    paths = [(kind, action["path"]) for one in edit.actions for kind, action in one.items()]
    assert paths == [("remove", "marked"), ("remove", "emptied"), ("add", "new"), ("add", "marked")]
    again = next(one["add"] for one in edit.actions if one.get("add", {}).get("path") == "marked")
    assert '"tightBounds":false' in again["stats"]


def test_history_counts_rows_that_came_changed_and_went() -> None:
    metrics = _merge().metrics
    rows = [metrics[f"numTargetRows{what}"] for what in ("Inserted", "Updated", "Deleted")]
    files = [metrics[f"numTarget{what}"] for what in ("FilesAdded", "FilesRemoved", "DeletionVectorsAdded")]
    assert (rows, files) == ([2, 3, 2], [1, 1, 1])


@pytest.mark.parametrize(("operation", "changes"), [("merge", True), ("overwrite", True), ("optimize", False)])
def test_only_an_edit_that_joins_files_changes_no_data(operation: str, changes: bool) -> None:
    edit = Edit(BASE, operation, reads=False, removes=[_add("old")])
    assert [one["remove"]["dataChange"] for one in edit.actions] == [changes]


def test_a_file_without_statistics_may_go() -> None:
    """Writers may leave them out, and a TRUNCATE on executors removes every file that there is."""
    bare = {name: value for name, value in _add("old").items() if name != "stats"}
    (one,) = Edit(BASE, "overwrite", reads=True, removes=[bare]).actions
    assert one["remove"].items() >= {"path": "old", "size": 100}.items()
    assert "stats" not in one["remove"]
