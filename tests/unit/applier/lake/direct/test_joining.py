"""Rows that go while their files are joined are removed from the new file, and no other ones."""

from concurrent.futures import Future

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.store.memory import MemoryStore
from sluice_spark.lake.direct.data_files import Written
from sluice_spark.lake.direct.joining import AtOnce, Joined, Joining, Part
from sluice_spark.lake.direct.live_files import LiveFile, LiveFiles
from sluice_spark.lake.direct.table_folder import TableFolder
from sluice_spark.lake.direct.vectors import Positions
from sluice_spark.lake.layout import TableLayout

LAYOUT = TableLayout((), {})
Rows = set[int]


def _positions(rows: Rows) -> Positions:
    return np.array(sorted(rows), dtype=np.int64)


@st.composite
def files(draw: st.DrawFn) -> list[tuple[int, Rows, Rows | None]]:
    """Rows of each file, those removed when it was read, and those removed later (None: the file is gone)."""
    found = []
    for _ in range(draw(st.integers(1, 4))):
        rows = draw(st.integers(0, 8))
        before = draw(st.sets(st.sampled_from(range(rows)))) if rows else set()
        more = draw(st.sets(st.sampled_from(range(rows)))) if rows else set()
        found.append((rows, before, draw(st.sampled_from([None, before | more, before]))))
    return found


@given(files())
def test_the_new_file_loses_the_rows_that_its_parts_lost_meanwhile(found: list[tuple[int, Rows, Rows | None]]) -> None:
    parts = [Part(str(place), rows, _positions(before)) for place, (rows, before, _) in enumerate(found)]
    now = {str(place): _positions(after) for place, (_, _, after) in enumerate(found) if after is not None}
    removed = Joined(parts, LAYOUT, 0.0).removed(now)
    # Row by row: where each one lies in the new file, and whether it is still there.
    inside = [(place, row) for place, (rows, before, _) in enumerate(found) for row in range(rows) if row not in before]
    gone = [number for number, (place, row) in enumerate(inside) if (after := found[place][2]) is None or row in after]
    assert removed is not None
    assert removed.tolist() == gone


def test_a_row_that_came_back_gives_the_join_up() -> None:
    part = Part("a", 4, _positions({1, 2}))
    assert Joined([part], LAYOUT, 0.0).removed({"a": _positions({1, 3})}) is None
    assert Joined([part], LAYOUT, 0.0).removed({"a": _positions({1, 2})}) is not None


def test_what_is_done_at_once_is_done_and_its_error_is_for_who_asks() -> None:
    def fails() -> None:
        raise ValueError("no")

    done: Future[int] = AtOnce().submit(lambda: 7)
    assert (done.done(), done.result()) == (True, 7)
    with pytest.raises(ValueError, match="no"):
        AtOnce().submit(fails).result()


def test_what_is_joined_for_a_table_that_was_forgotten_meanwhile_leaves_no_file() -> None:
    store = MemoryStore("forgotten")
    folder = TableFolder(store, "public/t/")
    joining = Joining(folder, LiveFiles(), removed=lambda _: _positions(set()), writer=lambda _: pytest.fail("written"))
    under_way: Future[Joined | None] = Future()
    under_way.set_running_or_notify_cancel()
    joining._under_way = under_way
    joining.close()
    folder.put("joined.parquet", b"rows")
    file = LiveFile.of({"path": "joined.parquet", "size": 4, "stats": '{"numRecords": 1}'})
    under_way.set_result(Joined([Part("a", 1, _positions(set()))], LAYOUT, 0.0, Written([file], 1, 4)))
    assert list(store.list("")) == []
    assert joining.ready(7, None) is None
