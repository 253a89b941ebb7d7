"""The end of a Delta log, read without Delta: where it says everything, and where Delta is asked."""

import json
from typing import Any

import pytest

from sluice.errors import UnsupportedChange
from sluice.store.memory import MemoryStore
from sluice_spark.lake.log_tail import LogTail
from tests.support.stores import WatchedStore

LOG = "public/items/_delta_log/"
CHECKSUM: dict[str, Any] = {
    "setTransactions": [{"appId": "ours", "version": 41}, {"appId": "theirs", "version": 7}],
    "protocol": {"minReaderVersion": 3, "minWriterVersion": 7, "writerFeatures": ["deletionVectors"]},
    "metadata": {"schemaString": json.dumps({"type": "struct", "fields": [{"name": "id"}, {"name": "value"}]})},
}
COMMIT = {"commitInfo": {"operation": "MERGE", "userMetadata": json.dumps({"sluice": "ours", "after": 2})}}


class DeltaAskedError(Exception):
    """Spark was needed."""


class NoSpark:
    @property
    def _jvm(self) -> Any:
        raise DeltaAskedError

    _jsparkSession = _jvm


def _table(name: str, *, checksum: object = CHECKSUM) -> WatchedStore:
    store = WatchedStore(name)
    for version in range(4):
        store.put(f"{LOG}{version:020d}.json", json.dumps(COMMIT).encode())
        store.put(f"{LOG}{version:020d}.crc", json.dumps(checksum if version == 3 else {}).encode())
    return store


def _tail(store: MemoryStore, *, since: int = -1) -> LogTail:
    return LogTail(NoSpark(), "/lake/public/items", store=store, folder="public/items/", since=since)  # type: ignore[arg-type, unused-ignore]


@pytest.mark.parametrize("since", [-1, 0, 2, 3])
def test_version_markers_columns_and_commits_come_from_the_end_of_the_log_without_spark(since: int) -> None:
    tail = _tail(_table(f"plain {since}"), since=since)
    assert tail.update() == 3
    assert (tail.marker("ours"), tail.marker("theirs"), tail.marker("nobody")) == (41, 7, None)
    assert tail.column_names() == ["id", "value"]
    assert tail.commit(3).tag == {"sluice": "ours", "after": 2}


def test_a_table_that_was_never_reported_and_is_not_there_has_no_version() -> None:
    assert _tail(MemoryStore("nothing")).update() == -1


def _without(name: str) -> dict[str, Any]:
    return {key: value for key, value in CHECKSUM.items() if key != name}


ODD: dict[str, object] = {
    "no markers": _without("setTransactions"),
    "no protocol": _without("protocol"),
    "no metadata": _without("metadata"),
    "no object": [1],
    "commits kept elsewhere": {**CHECKSUM, "protocol": {"writerFeatures": ["catalogManaged"]}},
    "a marker of another kind": {**CHECKSUM, "setTransactions": [{"appId": "ours", "version": "x"}]},
    "columns of another kind": {**CHECKSUM, "metadata": {"schemaString": "[]"}},
}


@pytest.mark.parametrize("odd", ODD)
def test_a_checksum_that_does_not_say_everything_is_left_to_delta(odd: str) -> None:
    with pytest.raises(DeltaAskedError):
        _tail(_table(odd, checksum=ODD[odd])).update()


@pytest.mark.parametrize(
    ("name", "act"),
    [
        ("the newest checksum is missing", lambda s: s.delete(f"{LOG}{3:020d}.crc")),
        ("the newest commit is missing", lambda s: s.delete(f"{LOG}{3:020d}.json")),
        ("the checksum is cut short", lambda s: s.put(f"{LOG}{3:020d}.crc", b'{"setTransactions"')),
        ("the log is empty", lambda s: [s.delete(key) for key in list(s.list(""))]),
    ],
)
def test_a_log_whose_end_is_not_whole_or_older_than_reported_is_left_to_delta(name: str, act: Any) -> None:
    store = _table(name)
    act(store)
    with pytest.raises(DeltaAskedError):
        _tail(store, since=2).update()
    with pytest.raises(DeltaAskedError):
        _tail(_table(f"{name}, reported"), since=9).update()


def test_a_commit_that_is_gone_or_torn_is_named() -> None:
    store = _table("torn")
    tail = _tail(store)
    tail.update()
    store.put(f"{LOG}{2:020d}.json", b"\0" * 100)
    store.delete(f"{LOG}{1:020d}.json")
    with pytest.raises(UnsupportedChange, match=r"0002\.json .* is empty or damaged"):
        tail.commit(2)
    with pytest.raises(UnsupportedChange, match=r"0001\.json .* was cleaned up"):
        tail.commit(1)


def test_a_log_without_a_new_commit_is_not_listed() -> None:
    """A listing costs what lies in the log."""
    store = _table("counted")
    tail = _tail(store)
    assert (tail.update(), store.listings) == (3, 1)
    assert (tail.update(), store.listings) == (3, 1)
    store.put(f"{LOG}{4:020d}.json", json.dumps(COMMIT).encode())
    store.put(f"{LOG}{4:020d}.crc", json.dumps(CHECKSUM).encode())
    assert (tail.update(), store.listings) == (4, 2)
