"""The files that are kept from commit to commit are those of the version that they are said to be of."""

import json
from collections.abc import Iterator
from typing import Any, cast

import numpy as np
import pytest

from sluice_spark.lake.commit_way import NotDirect
from sluice_spark.lake.direct.live_files import LiveFile, LiveFiles
from sluice_spark.lake.direct.transaction import DeltaTransaction
from sluice_spark.lake.layout import TableLayout


class _Version:
    """A version of a table as a transaction shows it; counts how often its files are read."""

    def __init__(self, version: int, *adds: dict[str, Any], table_id: str = "one", refused: str = "") -> None:
        self.version, self.table_id = version, table_id
        self.read = 0
        self._adds, self._refused = adds, refused

    def layout(self) -> TableLayout:
        if self._refused:
            raise NotDirect(self._refused)
        return TableLayout((), {})

    def files(self) -> Iterator[dict[str, Any]]:
        self.read += 1
        yield from self._adds


def _follow(live: LiveFiles, version: _Version) -> list[str]:
    live.follow(cast("DeltaTransaction", version))
    assert live.version == version.version
    return sorted(live.by_path)


def _add(path: str, *, vector: str = "") -> dict[str, Any]:
    stats = {"numRecords": 3, "minValues": {"k": 1}, "maxValues": {"k": 9}}
    found: dict[str, Any] = {"path": path, "size": 100, "stats": json.dumps(stats)}
    return {**found, "deletionVector": {"pathOrInlineDv": vector}} if vector else found


def test_our_own_commit_needs_no_look_at_the_table() -> None:
    live = LiveFiles()
    assert _follow(live, _Version(4, _add("a"), _add("b"))) == ["a", "b"]
    live.landed(5, gone=["a"], files=[LiveFile.of(_add("c"))])
    ours = _Version(5, _add("not read"))
    assert _follow(live, ours) == ["b", "c"]
    assert ours.read == 0


def test_a_file_with_another_vector_takes_the_place_of_the_one_before() -> None:
    live = LiveFiles()
    _follow(live, _Version(4, _add("a")))
    removed = np.array([1])
    live.landed(5, gone=[], files=[LiveFile.of(_add("a", vector="v1"), removed=removed)])
    assert live.by_path["a"].removed is removed
    assert len(live.by_path) == 1


@pytest.mark.parametrize("landed", [6, -1, 4, None])
def test_after_a_commit_in_between_the_files_are_read_again(landed: int | None) -> None:
    live = LiveFiles()
    _follow(live, _Version(4, _add("a")))
    if landed is not None:
        live.landed(landed, gone=["a"], files=[LiveFile.of(_add("c"))])
    theirs = _Version(6, _add("c"), _add("theirs"))
    assert _follow(live, theirs) == ["c", "theirs"]
    assert theirs.read == 1


def test_our_own_change_of_columns_needs_their_names_alone() -> None:
    live = LiveFiles()
    _follow(live, _Version(4, _add("a")))
    live.columns_landed(5)
    ours = _Version(5, _add("not read"))
    assert _follow(live, ours) == ["a"]
    assert ours.read == 0
    assert live.layout == ours.layout()


@pytest.mark.parametrize(("known", "landed"), [(4, 6), (4, -1), (None, 0)])
def test_after_a_change_of_columns_of_another_version_the_files_are_read_again(known: int | None, landed: int) -> None:
    live = LiveFiles()
    if known is not None:
        _follow(live, _Version(known, _add("a")))
    live.columns_landed(landed)
    newest = _Version(max(landed, 5), _add("theirs"))
    assert _follow(live, newest) == ["theirs"]
    assert newest.read == 1


def test_another_table_at_the_same_version_is_another_table() -> None:
    live = LiveFiles()
    _follow(live, _Version(4, _add("a")))
    assert _follow(live, _Version(4, _add("b"), table_id="two")) == ["b"]


def test_removed_positions_are_kept_only_with_the_same_vector() -> None:
    live = LiveFiles()
    _follow(live, _Version(4, _add("same", vector="v1"), _add("other", vector="v1"), _add("none")))
    assert live.by_path["same"].removed is None
    for file in live:
        file.removed = np.array([2])
    _follow(live, _Version(6, _add("same", vector="v1"), _add("other", vector="v2"), _add("none")))
    same, other, none = (live.by_path[path].removed for path in ("same", "other", "none"))
    assert (same is not None and same.tolist(), other) == ([2], None)
    assert none is not None
    assert none.tolist() == []


def test_a_refused_look_leaves_nothing_that_is_taken_for_the_table() -> None:
    live = LiveFiles()
    _follow(live, _Version(4, _add("a")))
    with pytest.raises(NotDirect, match="partitioned"):
        live.follow(cast("DeltaTransaction", _Version(5, _add("b"), refused="the table is partitioned")))
    with pytest.raises(NotDirect, match="no statistics"):
        live.follow(cast("DeltaTransaction", _Version(6, _add("b"), {"path": "c", "size": 1})))
    again = _Version(6, _add("b"))
    assert _follow(live, again) == ["b"]
    assert again.read == 1


@pytest.mark.parametrize(
    "add",
    [
        _add("/elsewhere/a.parquet"),
        _add("s3://other/a.parquet"),
        {**_add("a.parquet"), "deletionVector": {"storageType": "p", "pathOrInlineDv": "/elsewhere/a.bin"}},
    ],
    ids=["file", "object", "vector"],
)
def test_a_file_outside_of_the_folder_is_left_to_spark(add: dict[str, Any]) -> None:
    with pytest.raises(NotDirect, match="outside"):
        LiveFile.of(add)
