"""Which boundary a reader gets, however boundaries come, expire and are missing meanwhile."""

import sys
import threading
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import hypothesis.strategies as st
import pytest
from hypothesis import given

from sluice.contract import boundary as stated
from sluice_lake import (
    BoundaryExpired,
    BoundaryNotReached,
    FormatTooNew,
    Lake,
    LakeError,
    NoBoundary,
    TableLeftOut,
    UnknownTable,
    UnusableArgument,
    WaitTimedOut,
)
from tests.support.commands import ended
from tests.support.offered import BEGAN, publish


def _remove(folder: Path, number: int) -> None:
    (folder / stated.key("shop", number)).unlink()


@given(
    steps=st.lists(st.integers(0, 3), min_size=1, max_size=40),
    first=st.sampled_from([1, 998, 1999]),
    asked=st.integers(-2, 130),
)
def test_the_boundary_of_an_lsn_is_the_last_one_that_is_not_later(
    tmp_path_factory: pytest.TempPathFactory, steps: list[int], first: int, asked: int
) -> None:
    folder = tmp_path_factory.mktemp("lake")
    lsns, lsn = [], 10
    for number, step in enumerate(steps, first):
        lsn += step
        lsns.append(lsn)
        publish(folder, number, lsn, at=float(lsn))
    lake = Lake(str(folder))
    assert [one.number for one in lake.boundaries()] == list(range(first, first + len(steps)))
    if asked > lsns[-1]:
        with pytest.raises(BoundaryNotReached):
            lake.as_of(lsn=asked)
    elif asked < lsns[0]:
        with pytest.raises(BoundaryExpired):
            lake.as_of(lsn=asked)
    else:
        expected = max(place for place, one in enumerate(lsns) if one <= asked)
        assert lake.as_of(lsn=asked).boundary.number == first + expected
        at = datetime.fromtimestamp(BEGAN + asked, UTC)
        assert lake.as_of(time=at).boundary.number == first + expected


def test_a_time_that_the_stream_has_not_come_to_is_refused_though_the_boundary_is_younger(tmp_path: Path) -> None:
    publish(tmp_path, 1, 10)
    publish(tmp_path, 2, 20, at=60.0)
    newest = Lake(str(tmp_path)).newest()
    for missing in (newest.published_at, newest.reached + timedelta(microseconds=1)):
        with pytest.raises(BoundaryNotReached, match="not yet through"):
            Lake(str(tmp_path)).as_of(time=missing)
    assert Lake(str(tmp_path)).as_of(time=newest.reached).boundary.number == 2


def test_a_log_that_began_again_is_not_searched_for_positions_of_the_one_before(tmp_path: Path) -> None:
    publish(tmp_path, 1, 500, manifest="before")
    publish(tmp_path, 2, 30)
    publish(tmp_path, 3, 40)
    lake = Lake(str(tmp_path))
    assert lake.as_of().boundary.number == 3
    assert lake.as_of(lsn=35).boundary.number == 2
    with pytest.raises(BoundaryExpired):
        lake.as_of(lsn=20)
    with pytest.raises(BoundaryNotReached):
        lake.as_of(lsn=500)


def test_who_waits_is_answered_as_soon_as_a_boundary_has_the_position_and_the_tables(tmp_path: Path) -> None:
    publish(tmp_path, 1, 10)
    lake = Lake(str(tmp_path))
    assert lake.wait_for("0/A", timeout=0.0).number == 1
    began = time.monotonic()
    with pytest.raises(WaitTimedOut, match=r"0/B within 0\.2 s"):
        lake.wait_for(11, timeout=0.2)
    assert 0.2 <= time.monotonic() - began < 5.0
    publish(tmp_path, 2, 11, left_out={"public.u": "stale"})
    with pytest.raises(TableLeftOut, match=r"public\.u is stale"):
        lake.wait_for(11, timeout=0.1, tables=["public.u"])
    with pytest.raises(TableLeftOut):
        lake.wait_for(11, timeout=0.1, tables=["u"])
    threading.Timer(0.3, lambda: publish(tmp_path, 3, 12, tables=("public.t", "public.u"))).start()
    assert lake.wait_for(11, timeout=30.0, tables=["u"]).number == 3


def test_who_waits_takes_no_boundary_of_an_earlier_manifest_for_an_answer(tmp_path: Path) -> None:
    publish(tmp_path, 1, 500, manifest="before")
    lake = Lake(str(tmp_path))
    assert lake.wait_for(20, timeout=0.0).number == 1
    with pytest.raises(WaitTimedOut, match="of an earlier spool"):
        lake.wait_for(20, timeout=0.1, manifest=lambda: "now")
    threading.Timer(0.2, lambda: publish(tmp_path, 2, 30, manifest="now")).start()
    assert lake.wait_for(20, timeout=30.0, manifest=lambda: "now").number == 2


def test_boundaries_that_skip_numbers_or_vanish_are_found_while_waiting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sluice_lake.lake.LISTED_AGAIN_SECONDS", 0.1)
    publish(tmp_path, 1, 10)
    lake = Lake(str(tmp_path))

    def go_on() -> None:
        publish(tmp_path, 1000, 11)
        _remove(tmp_path, 1)

    threading.Timer(0.2, go_on).start()
    assert lake.wait_for(11, timeout=30.0).number == 1000


def test_a_reader_that_names_no_pipeline_is_not_given_one_of_several(tmp_path: Path) -> None:
    with pytest.raises(NoBoundary, match="no pipeline yet"):
        Lake(str(tmp_path)).as_of()
    publish(tmp_path, 1, 10)
    assert Lake(str(tmp_path)).pipeline == "shop"
    publish(tmp_path, 7, 20, pipeline="billing")
    with pytest.raises(UnusableArgument, match="billing, shop"):
        Lake(str(tmp_path)).as_of()
    with pytest.raises(UnusableArgument, match="billing, shop"):
        Lake(str(tmp_path)).wait_for(20, timeout=0.0)
    assert Lake(str(tmp_path), pipeline="billing").as_of().boundary.number == 7
    with pytest.raises(NoBoundary, match="of pipeline other"):
        Lake(str(tmp_path), pipeline="other").as_of()


def test_the_first_boundary_of_a_lake_is_waited_for_with_and_without_the_name_of_its_pipeline(tmp_path: Path) -> None:
    for lake in (Lake(str(tmp_path)), Lake(str(tmp_path), pipeline="shop")):
        with pytest.raises(WaitTimedOut, match="no boundary yet"):
            lake.wait_for(10, timeout=0.0)
    threading.Timer(0.2, lambda: publish(tmp_path, 1, 10)).start()
    assert Lake(str(tmp_path)).wait_for(10, timeout=30.0).number == 1


def test_a_boundary_that_is_damaged_or_newer_is_refused_and_never_passed_by(tmp_path: Path) -> None:
    publish(tmp_path, 1, 10)
    path = tmp_path / stated.key("shop", 2)
    for content, error in ((b"{", LakeError), (b'{"format_version": 2}', FormatTooNew), (b"[]", LakeError)):
        path.write_bytes(content)
        with pytest.raises(error):
            Lake(str(tmp_path)).as_of()


@pytest.mark.parametrize(
    ("name", "found"),
    [("t", "public.t"), ("x.t", "x.t"), ("u", "x.u"), ('"a.b"."c"', None), ("v", None), ("public.u", None)],
)
def test_a_name_means_one_table_or_none(tmp_path: Path, name: str, found: str | None) -> None:
    publish(tmp_path, 1, 10, tables=("public.t", "x.t", "x.u", "x.v", "y.v"))
    boundary = Lake(str(tmp_path)).newest()
    if found is None:
        with pytest.raises(UnknownTable):
            boundary.named(name)
    else:
        assert boundary.named(name).name == found


def test_what_a_reader_asks_in_another_form_is_refused(tmp_path: Path) -> None:
    publish(tmp_path, 1, 10)
    lake = Lake(str(tmp_path))
    with pytest.raises(UnusableArgument, match="not an LSN"):
        lake.as_of(lsn="ten")
    with pytest.raises(UnusableArgument, match="no time zone"):
        lake.as_of(time=datetime(2026, 1, 1))  # noqa: DTZ001 - that is the point
    with pytest.raises(UnusableArgument, match="one of"):
        lake.as_of(lsn=10, time=datetime.now(UTC))
    with pytest.raises(UnusableArgument, match="no directory"):
        Lake(str(tmp_path / "nowhere"))
    with pytest.raises(BoundaryNotReached):
        lake.as_of(time=datetime.fromtimestamp(BEGAN, UTC) + timedelta(seconds=2))


def test_the_package_alone_imports_no_engine_and_nothing_of_the_service() -> None:
    engines = ("sluice", "sluice_spark", "pyspark", "duckdb", "polars")
    program = f"import sys, sluice_lake; print([name for name in {engines} if name in sys.modules])"
    done = ended(sys.executable, "-c", program)
    assert done.stdout.strip() == "[]", done.stderr


def test_a_lake_table_with_a_name_of_its_own_is_found_by_it_where_no_other_table_has_it(tmp_path: Path) -> None:
    tables = ("public.orders", "public.orders/history", "public.copy", "public.lines/copy", "shop.orders/copy")
    publish(tmp_path, 1, 10, tables=tables, left_out={"public.late": "snapshot"})
    boundary = Lake(str(tmp_path), pipeline="shop").boundaries()[-1]

    def found(name: str) -> str:
        return boundary.named(name).name

    assert found("orders") == "public.orders"
    assert found("history") == found("public.history") == found("public.orders/history") == "public.orders/history"
    assert found("copy") == found("public.copy") == "public.copy"
    assert found("lines/copy") == "public.lines/copy"
    assert found("shop.copy") == "shop.orders/copy"
    names = {table.name: boundary.name_in_schema(table) for table in boundary.tables}
    assert names["public.orders/history"] == "history"
    assert names["public.lines/copy"] == "lines/copy"
