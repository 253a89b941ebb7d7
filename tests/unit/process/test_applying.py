"""The applier of a fleet without its ingests: which pipelines it has after its folder was read again."""

import json

import pytest

from sluice.errors import UsageError
from sluice.process.fleet.applying import still_applied
from sluice.process.fleet.member import Folder, Member, document, require_members


def member(name: str, *, options: str = "{}") -> Member:
    return Member(name, f"/pipelines/{name}.yaml", (), 1.0, options, {})


def folder(*members: Member, **refused: str) -> Folder:
    return Folder({one.name: one for one in members}, {f"/pipelines/{name}.yaml": why for name, why in refused.items()})


OLD, NEW, WEST = member("east", options='{"old": 1}'), member("east", options='{"new": 1}'), member("west")


@pytest.mark.parametrize(
    ("now", "before", "applied"),
    [
        (folder(WEST, east="not valid"), folder(OLD), [OLD, WEST]),
        (folder(WEST), folder(OLD, WEST), [WEST]),
        (folder(NEW), folder(OLD), [NEW]),
    ],
    ids=["refused", "gone", "valid again"],
)
def test_a_pipeline_whose_file_is_refused_goes_on_with_what_it_had(
    now: Folder, before: Folder, applied: list[Member]
) -> None:
    assert still_applied(now, before).members == {one.name: one for one in applied}


def test_a_folder_without_a_valid_file_is_refused_with_the_reasons() -> None:
    with pytest.raises(UsageError, match=r"no pipeline to run; /pipelines/east\.yaml: not valid"):
        require_members(folder(east="not valid"))


def test_the_applier_reads_all_pipelines_as_one_line() -> None:
    line = document([member("east", options='{"a": "1\\n2"}'), member("west")])
    assert line.endswith(b"\n")
    assert line.count(b"\n") == 1
    assert json.loads(line) == {"east": {"a": "1\n2"}, "west": {}}
