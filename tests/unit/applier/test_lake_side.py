"""Where a question to the lake is answered from."""

import json
import uuid
from types import SimpleNamespace
from typing import Any

import pytest

from sluice.contract.entries import Lost
from sluice.contract.lake_targets import LakeTarget
from sluice.contract.row_form import MOST_BITS, LakeAnswer, LakeQuestion
from sluice.errors import ApplyError, ManifestCorrupt
from sluice.manifest.reader import identity
from sluice.manifest.targets import lake_tables
from sluice.manifest.values import PipelineState, TableState
from sluice.manifest.writer import ManifestLog
from sluice.store.base import ObjectStore
from sluice.store.memory import MemoryStore
from sluice_spark.distributed.stages import Piece
from sluice_spark.lake.foreign_commits import commit_name
from sluice_spark.lake.opening import application_id
from sluice_spark.options import ApplyOptions
from sluice_spark.verify import position
from sluice_spark.verify.hashing import hash_texts
from sluice_spark.verify.lake_side import LakeSide, _probes, _signed
from sluice_spark.verify.position import Position, Positions
from sluice_spark.verify.scan import Sums
from sluice_spark.verify.version import Version, find_version
from tests.support.manifests import open_log, opened, put, snapshot, table

NO_SPARK: Any = None
NO_PROBES = LakeQuestion("7", 1, 1, 10, 1, 6, False, 0.0, ())


def question(**fields: Any) -> LakeQuestion:
    probes = tuple(_signed(hash_texts(_probes(NO_PROBES), NO_PROBES.seed)))
    return LakeQuestion(
        **{
            "table_id": "7",
            "generation": 1,
            "schema_version": 1,
            "lsn": 10,
            "seed": 1,
            "bits": 6,
            "as_hex": False,
            "wait_seconds": 0.0,
            "probes": probes,
            **fields,
        }
    )


def joined(store: ObjectStore | None = None) -> PipelineState:
    """A table whose rows are there."""
    log = open_log(store or MemoryStore(uuid.uuid4().hex), through_lsn=10)
    put(log, table(), through_lsn=10)
    put(log, snapshot(), through_lsn=10)
    return log.state


@pytest.fixture
def side(monkeypatch: pytest.MonkeyPatch) -> tuple[LakeSide, list[Position]]:
    """Of a lake table that has a newer version at each look."""
    store = MemoryStore(uuid.uuid4().hex)
    joined(store)
    side = LakeSide(ApplyOptions("p", "file:///spool", "file:///lake"), store, NO_SPARK)
    read: list[Position] = []

    def find(self: Positions, state: Any, question: LakeQuestion) -> Any:
        return object()

    def answered(self: LakeSide, question: LakeQuestion, pipeline: Any, state: Any, known: Position) -> LakeAnswer:
        read.append(known)
        return LakeAnswer()

    monkeypatch.setattr(Positions, "find", find)
    monkeypatch.setattr(LakeSide, "_answered", answered)
    return side, read


def test_the_rows_of_a_comparison_are_those_of_its_sums_and_another_one_looks_at_the_lake_again(
    side: tuple[LakeSide, list[Position]],
) -> None:
    """Also of the same position: that in front of a gap stays, and files of an older version may be gone."""
    lake, read = side
    for asked in (question(), question(ranges=(1,)), question(), question(ranges=(1,))):
        lake.answer(asked)
    assert read[0] is read[1]
    assert read[2] is read[3]
    assert read[1] is not read[2]


def test_a_lake_table_that_the_new_name_of_its_source_table_does_not_have_is_named(
    side: tuple[LakeSide, list[Position]],
) -> None:
    with pytest.raises(ApplyError, match=r"called public\.t7 by now"):
        side[0].answer(question(target="history"))


class _Frame:
    """A lake table with these columns, for whoever does not read it."""

    def __init__(self, *columns: str) -> None:
        self.columns = columns
        self.calls: list[tuple[Any, ...]] = []

    def __getattr__(self, name: str) -> Any:
        def called(*given: Any, **_: Any) -> _Frame:
            self.calls.append((name, *given))
            return self

        return called


@pytest.mark.parametrize(
    ("held", "kind"), [("_sluice_valid_from", "history"), ("_sluice_deleted_at", "mirror with soft deletes")]
)
def test_a_lake_table_of_another_kind_than_is_configured_is_not_compared(held: str, kind: str) -> None:
    """The configuration was edited, or its source table renamed, and the applier that runs goes on as before: every
    version of a row would be taken for one of its rows.
    """
    session: Any = SimpleNamespace(read=_Frame("c1", "c2", held))
    positions = Positions(ApplyOptions("p", "file:///spool", "file:///lake"), MemoryStore("spool"), session)
    (state,) = lake_tables(joined(), lambda _: (LakeTarget(),)).values()
    version = Version(3, 10, 3, newest=True)
    with pytest.raises(ApplyError, match=rf"the lake table is a {kind}, and the configuration asks for a mirror"):
        positions.rows(state, version, ["c1"], lambda frame: frame)


def test_a_table_of_any_size_is_answered_by_so_many_tasks_as_spark_takes_answers_of(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(position, "sql", SimpleNamespace(expr=lambda _: _Frame()))
    frame = _Frame("c1", "c2")
    session: Any = SimpleNamespace(read=frame)
    positions = Positions(ApplyOptions("p", "file:///spool", "file:///lake"), MemoryStore("spool"), session)
    (state,) = lake_tables(joined(), lambda _: (LakeTarget(),)).values()
    positions.rows(state, Version(3, 10, 3, newest=True), ["c1"], lambda frame: frame)
    assert frame.calls[-1] == ("coalesce", position.MOST_TASKS)
    sums = Sums(MOST_BITS)
    assert position.MOST_TASKS * len(Piece.of("sums", sums).payload) < 2**30 * 0.9, "spark.driver.maxResultSize"


@pytest.mark.parametrize("pruned", [9, 10])
def test_what_was_pruned_while_a_comparison_needed_it_is_no_damage(
    pruned: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing holds the spool back for one. Another attempt finds a newer version."""

    def gone(*_: Any, **__: Any) -> Any:
        raise ManifestCorrupt("a segment is missing")

    monkeypatch.setattr(position, "find_version", lambda *_, **__: Version(3, 5, 9, newest=False))
    monkeypatch.setattr(position, "segments_until", gone)
    monkeypatch.setattr(position, "objects_pruned_through", lambda _: pruned)
    positions = Positions(ApplyOptions("p", "file:///spool", "file:///lake"), MemoryStore("spool"), NO_SPARK)
    (state,) = joined().tables.values()
    with pytest.raises(ApplyError if pruned > 9 else ManifestCorrupt):
        positions.find(state, question())


def test_a_gap_is_not_closed_by_a_lake_table_that_somebody_else_has_changed() -> None:
    """What was put into it by hand would not be read again for the other lake tables of its source table."""
    spool, lake = MemoryStore(uuid.uuid4().hex), MemoryStore(uuid.uuid4().hex)
    before = joined(spool)
    log = ManifestLog.open(spool, opened(lost=Lost("slot lost", ("7",))), before, through_lsn=20)
    app_id = application_id("p", before.tables["7"], manifest=identity(spool))
    ours = {"txn": {"appId": app_id, "version": 2}}, {"add": {"path": "a", "size": 1, "dataChange": True}}
    tidied = {"commitInfo": {"operation": "OPTIMIZE"}}, {"add": {"path": "b", "size": 1, "dataChange": False}}
    theirs = {"commitInfo": {"operation": "WRITE"}}, {"add": {"path": "c", "size": 1, "dataChange": True}}
    for number, actions in enumerate((ours, tidied, theirs)):
        lines = "\n".join(map(json.dumps, actions))
        lake.create(f"public/t7/_delta_log/{commit_name(number)}", lines.encode())

    def found(state: TableState) -> Version:
        return find_version(spool, lake, state, pipeline="p", lsn=10, before=None, marker_now=lambda: (-1, None))

    assert found(before.tables["7"]).number == 2, "what somebody else changed is a difference"
    with pytest.raises(ApplyError, match="somebody else changed the lake table in front of the gap: WRITE"):
        found(log.state.tables["7"])
    lake.delete(f"public/t7/_delta_log/{commit_name(2)}")
    assert found(log.state.tables["7"]).number == 1
