"""An edited file is noticed once it is finished, and taken as a whole or not at all."""

import os
from pathlib import Path

from sluice.errors import UsageError
from sluice.reloading import FileWatch, Reloading, signature


def test_a_change_is_noticed_once_when_it_is_finished(tmp_path: Path) -> None:
    file = tmp_path / "sluice.yaml"
    file.write_text("a")
    watch = FileWatch(str(file), seen=signature(str(file)))
    assert not watch.changed()
    file.write_text("half of")
    assert not watch.changed(), "it may still be written"
    file.write_text("half of it all")
    assert not watch.changed()
    assert watch.changed()
    assert not watch.changed()


def test_a_file_that_was_replaced_by_a_link_as_kubernetes_does_is_changed(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "sluice.yaml").write_text("same size " + name)
    (tmp_path / "data").symlink_to("one")
    path = str(tmp_path / "data" / "sluice.yaml")
    watch = FileWatch(path, seen=signature(path))
    (tmp_path / "next").symlink_to("two")
    (tmp_path / "next").replace(tmp_path / "data")
    assert [watch.changed() for _ in range(3)] == [False, True, False]


def test_a_change_between_reading_and_watching_is_not_missed_and_a_lost_file_is_a_change(tmp_path: Path) -> None:
    file = tmp_path / "sluice.yaml"
    file.write_text("a")
    seen = signature(str(file))
    file.write_text("ab")
    watch = FileWatch(str(file), seen=seen)
    assert [watch.changed() for _ in range(3)] == [False, True, False]
    file.unlink()
    assert [watch.changed() for _ in range(3)] == [False, True, False]


def test_what_cannot_be_read_or_taken_is_said_and_what_is_taken_ends_that(tmp_path: Path) -> None:
    unknown = UsageError("line 3: unknown key", hint="did you mean lake?")
    given: list[int | Exception] = [unknown, 7, ValueError("holds a secret"), 3]
    said: list[str] = []
    taken: list[int] = []

    def read() -> int:
        one = given.pop(0)
        if isinstance(one, Exception):
            raise one
        return one

    def take(number: int) -> None:
        if number > 5:
            raise UsageError(f"{number} cannot be taken")
        taken.append(number)

    watch = FileWatch(os.fspath(tmp_path / "none"), seen=())
    reloading = Reloading(watch, read=read, take=take, said=said.append)
    for _ in range(4):
        reloading.reload()
    unread = "it could not be read (ValueError)"
    assert said == ["line 3: unknown key; did you mean lake?", "7 cannot be taken", unread, ""]
    assert taken == [3]
