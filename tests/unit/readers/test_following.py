"""Who keeps a cursor gets each boundary that is due once, whatever came, expired or began anew meanwhile."""

from pathlib import Path

import pytest

from sluice.contract import boundary as stated
from sluice_lake import Boundary, Lake, UnusableArgument
from sluice_lake.following import Following, cursor_of, described
from tests.support.offered import publish


def _numbers(found: list[Boundary]) -> list[int]:
    return [one.number for one in found]


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return Lake(tmp_path.as_uri(), pipeline="shop")


def _publish(folder: Path, *numbers: int) -> None:
    for number in numbers:
        publish(folder, number, number * 10)


def test_who_has_no_cursor_begins_with_the_newest_boundary(tmp_path: Path, lake: Lake) -> None:
    assert Following().due(lake, None) == []
    _publish(tmp_path, 1, 2, 3)
    assert _numbers(Following(every=2, each=True).due(lake, "")) == [3]


def test_the_newest_boundary_is_handed_out_once_and_with_each_those_before_it(tmp_path: Path, lake: Lake) -> None:
    newest, each = Following(), Following(each=True)
    _publish(tmp_path, 1, 2)
    (found,) = newest.due(lake, None)
    cursor = cursor_of(found)
    assert newest.due(lake, cursor) == each.due(lake, cursor) == []
    _publish(tmp_path, 3, 4, 5)
    assert _numbers(newest.due(lake, cursor)) == [5]
    assert _numbers(each.due(lake, cursor)) == [3, 4, 5]
    assert _numbers(Following(every=2, each=True).due(lake, cursor)) == [4]
    assert _numbers(Following(every=3).due(lake, cursor)) == [5]
    assert _numbers(Following(every=4).due(lake, cursor)) == []


def test_a_boundary_that_expired_is_passed_by(tmp_path: Path, lake: Lake) -> None:
    _publish(tmp_path, 1)
    cursor = cursor_of(lake.newest())
    _publish(tmp_path, 4, 5)
    (tmp_path / ".sluice").rename(tmp_path / "moved")
    _publish(tmp_path, 4, 5)
    assert _numbers(Following(each=True).due(lake, cursor)) == [4, 5]


def test_what_was_handed_out_is_not_read_again(tmp_path: Path, lake: Lake) -> None:
    """An hour of boundaries is thousands of objects, and somebody asks every few seconds."""
    _publish(tmp_path, 1, 2, 3)
    cursor = cursor_of(lake.newest())
    (tmp_path / stated.key("shop", 1)).write_bytes(b"not to be read")
    _publish(tmp_path, 4)
    assert _numbers(Following(each=True).due(lake, cursor)) == [4]


def test_the_numbers_of_another_manifest_say_nothing(tmp_path: Path, lake: Lake) -> None:
    publish(tmp_path, 7, 10)
    cursor = cursor_of(lake.newest())
    (tmp_path / ".sluice").rename(tmp_path / "moved")
    publish(tmp_path, 2, 5, manifest="another")
    assert _numbers(Following(every=9).due(lake, cursor)) == [2]


@pytest.mark.parametrize("each", [False, True])
def test_a_boundary_behind_a_restored_copy_is_due_though_its_number_was_handed_out(
    tmp_path: Path, lake: Lake, each: bool
) -> None:
    following = Following(each=each)
    _publish(tmp_path, 1, 2, 3)
    cursor = cursor_of(lake.newest())
    for number in (2, 3):
        (tmp_path / stated.key("shop", number)).unlink()
    publish(tmp_path, 2, 100)
    (found,) = following.due(lake, cursor)
    assert (found.number, found.lsn) == (2, 100)
    publish(tmp_path, 3, 110)
    assert _numbers(following.due(lake, cursor_of(found))) == [3]


@pytest.mark.parametrize("each", [False, True])
def test_a_boundary_behind_a_restored_copy_is_due_though_its_number_is_that_of_the_cursor_before_anybody_asks(
    tmp_path: Path, lake: Lake, each: bool
) -> None:
    _publish(tmp_path, 1, 2, 3)
    cursor = cursor_of(lake.newest())
    publish(tmp_path, 2, 90)
    publish(tmp_path, 3, 100)
    assert _numbers(Following(each=each).due(lake, cursor)) == [3]
    publish(tmp_path, 4, 110)
    assert _numbers(Following(each=each).due(lake, cursor)) == [4]


def test_boundaries_of_entries_that_were_lost_are_passed_by(tmp_path: Path, lake: Lake) -> None:
    """Their positions come again for other transactions, and `as_of` takes them for those."""
    _publish(tmp_path, 1, 2, 3)
    cursor = cursor_of(lake.boundaries()[0])
    for number, lsn in ((4, 5), (5, 100)):
        publish(tmp_path, number, lsn, first=4)
    found = Following(each=True).due(lake, cursor)
    assert _numbers(found) == [4, 5]
    assert [lake.as_of(lsn=one.lsn).boundary.number for one in found] == [4, 5]


def test_a_lake_of_several_pipelines_is_no_lake_without_boundaries(tmp_path: Path) -> None:
    for pipeline in ("billing", "shop"):
        publish(tmp_path, 1, 10, pipeline=pipeline)
    with pytest.raises(UnusableArgument, match="billing, shop"):
        Following().due(Lake(tmp_path.as_uri()), None)


@pytest.mark.parametrize("cursor", ["7", "{}", "null", "[1]", '{"manifest": "m", "number": "x"}'])
def test_a_cursor_of_somebody_else_and_a_step_of_none_are_refused(tmp_path: Path, lake: Lake, cursor: str) -> None:
    _publish(tmp_path, 1)
    with pytest.raises(UnusableArgument):
        Following().due(lake, cursor)
    with pytest.raises(UnusableArgument):
        Following(every=0)


def test_what_a_run_is_given_names_position_time_and_versions(tmp_path: Path, lake: Lake) -> None:
    publish(tmp_path, 1, 10, left_out={"public.u": "stale"})
    said = described(lake.newest())
    assert (said["lsn"], said["number"], said["pipeline"]) == ("0/A", 1, "shop")
    assert (said["versions"], said["left_out"]) == ({"public.t": 1}, {"public.u": "stale"})
