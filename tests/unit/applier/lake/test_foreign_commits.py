"""How a commit of a Delta log is judged: by its actions, never by its own description."""

import json

import hypothesis.strategies as st
import pytest
from hypothesis import given

from sluice.errors import UnsupportedChange
from sluice_spark.lake.examined_version import ExaminedVersion, contradiction
from sluice_spark.lake.foreign_commits import AFTER, TAG, Commit, changes_data, newest_own, read_commit, shape, tag

SECRET = "row-value-918273"
INFO = {
    "operation": "DELETE",
    "timestamp": 1795316201895,
    "engineInfo": "Apache-Spark/4.2.0 Delta-Lake/4.4.0",
    "userName": "bob",
    "operationParameters": {"predicate": f"id = '{SECRET}'"},
}
ADD = {"path": f"part-{SECRET}.parquet", "size": 7, "stats": SECRET}


def commit(*actions: dict[str, object], **info: object) -> Commit:
    return read_commit(
        3, [json.dumps(action).encode() for action in ({"commitInfo": {**INFO, **info}}, *actions)], name="3.json"
    )


@pytest.mark.parametrize(
    ("operation", "actions", "changes"),
    [
        ("WRITE", [{"add": ADD}], True),
        ("WRITE", [{"add": {**ADD, "dataChange": True}}], True),
        ("WRITE", [{"add": {**ADD, "dataChange": False}}], True),
        ("", [{"add": {**ADD, "dataChange": False}}], True),
        ("OPTIMIZE", [{"add": {**ADD, "dataChange": False}}, {"remove": {"path": "b", "dataChange": False}}], False),
        ("OPTIMIZE", [{"add": {**ADD, "dataChange": False}}, {"remove": {"path": "b", "dataChange": True}}], True),
        ("REORG", [{"add": {**ADD, "dataChange": False}}], False),
        ("DELETE", [{"remove": {"path": "b"}}], True),
        ("UPDATE", [{"cdc": {"path": "c", "dataChange": False}}], True),
        ("RESTORE", [], True),
        ("DELETE", [], False),
        ("VACUUM END", [], False),
        ("SET TBLPROPERTIES", [{"metaData": {"schemaString": "{}"}}], False),
        ("STREAMING UPDATE", [{"txn": {"appId": "other", "version": 4}}], False),
    ],
)
def test_a_commit_changes_rows_unless_it_provably_does_not(
    operation: str, actions: list[dict[str, object]], changes: bool
) -> None:
    assert changes_data(commit(*actions, operation=operation)) is changes


def test_the_description_of_a_commit_is_who_when_and_what_and_no_value() -> None:
    shown = commit({"add": ADD}).description()
    assert shown == "DELETE at 2026-11-22T02:56:41+00:00 made version 3 (Apache-Spark/4.2.0 Delta-Lake/4.4.0, user bob)"
    assert SECRET not in shown
    hostile = commit({"add": ADD}, operation="X" * 500 + "\n", userName="a\x1b[2Jb\n").description()
    assert hostile.isprintable()
    microseconds = commit({"add": ADD}, timestamp=1795316201895 * 1000).description()
    assert microseconds.startswith("DELETE at a time not recorded made version 3")
    assert len(hostile) < 300


def test_a_commit_is_ours_by_its_marker_or_its_tag() -> None:
    ours = "sluice/shop/1/1/m"
    assert commit({"txn": {"appId": ours, "version": 9}}).is_of(ours)
    assert commit(userMetadata=tag(ours, after=2)).is_of(ours)
    for text in ("", "[]", "{", '"sluice"', tag("sluice/shop/1/2/m", after=2), "null"):
        assert not commit(userMetadata=text).is_of(ours)


@given(
    st.lists(
        st.binary(max_size=40)
        | st.sampled_from([b"", b'{"add":1}', b'{"txn":{}}', b"[]", b'{"metaData":{"schemaString":"{"}}', b"\0" * 9])
    )
)
def test_a_damaged_commit_is_named_and_nothing_else_is_raised(lines: list[bytes]) -> None:
    with pytest.raises(UnsupportedChange, match=r"3\.json"):
        read_commit(3, [*lines, b'{"add":'], name="3.json")
    with pytest.raises(UnsupportedChange, match=r"3\.json"):
        read_commit(3, [line for line in lines if not line.strip()], name="3.json")


def test_columns_differ_by_name_type_order_and_identity_but_not_by_comment() -> None:
    def schema(name: str = "a", kind: str = "long", **metadata: object) -> object:
        return shape(
            json.dumps(
                {"type": "struct", "fields": [{"name": name, "type": kind, "nullable": True, "metadata": metadata}]}
            )
        )

    assert schema(comment="x") == schema()
    assert schema(name="b") != schema()
    assert schema(kind="integer") != schema()
    assert schema(**{"delta.columnMapping.physicalName": "c"}) != schema()


@pytest.mark.parametrize(
    ("reported", "found", "said"),
    [
        (ExaminedVersion(5, 10), ExaminedVersion(5, 10), ""),
        (ExaminedVersion(5, 10), ExaminedVersion(7, 12), ""),
        (ExaminedVersion(5, None), ExaminedVersion(7, 12), ""),
        (ExaminedVersion(5, 10), ExaminedVersion(-1), "is gone"),
        (ExaminedVersion(5, 10), ExaminedVersion(4, 10), "went from version 5 to 4"),
        (ExaminedVersion(5, 10), ExaminedVersion(5, 9), "the applier reported 10"),
        (ExaminedVersion(5, 10), ExaminedVersion(9, None), "marker is missing"),
    ],
)
def test_a_report_that_claims_more_than_the_lake_records_contradicts_it(
    reported: ExaminedVersion, found: ExaminedVersion, said: str
) -> None:
    assert (said in contradiction(reported, found)) if said else contradiction(reported, found) == ""


def _own(version: int, *, after: int | None = None, marker: str = "sluice/p/7/1/m") -> Commit:
    number = version - 1 if after is None else after
    return Commit(version, "WRITE", changes=True, markers={marker: version}, tag={TAG: marker, AFTER: number})


def _deleted(version: int) -> Commit:
    return Commit(version, "DELETE", changes=True)


def _joined(version: int) -> Commit:
    return Commit(version, "OPTIMIZE", moves=True)


LOGS: dict[str, tuple[list[Commit], tuple[int | None, bool]]] = {
    "ours alone": ([_own(1), _own(2)], (2, False)),
    "of an earlier generation": ([_own(1), _own(2, marker="sluice/p/7/0/m/snapshot")], (2, False)),
    "files in another order": ([_own(1), _joined(2)], (1, False)),
    "a foreign change": ([_own(1), _deleted(2)], (1, True)),
    "behind which files were joined": ([_own(1), _deleted(2), _joined(3)], (1, True)),
    "that came between a look and our commit": ([_own(1), _deleted(2), _own(3, after=1)], (1, True)),
    "before a snapshot that knew of it": ([_own(1), _deleted(2), _own(3)], (3, False)),
    "behind a log that ends before": ([_deleted(5), _joined(6)], (None, True)),
    "on top of what is not known": ([_own(6, after=3)], (None, False)),
    "other columns": ([_own(1), Commit(2, "CHANGE COLUMN", columns=["x"])], (1, True)),
}


@pytest.mark.parametrize("name", LOGS)
def test_the_last_version_that_is_ours_is_found_behind_what_others_did(name: str) -> None:
    commits, expected = LOGS[name]
    read = {one.version: one for one in commits}.get
    assert newest_own(commits[-1].version if commits else -1, prefix="sluice/", read=read) == expected
