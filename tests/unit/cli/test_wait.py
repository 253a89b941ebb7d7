"""`sluice wait` on a machine where nothing has been applied yet: the applier makes the directory of the lake with the
first table.
"""

import threading
from pathlib import Path

from sluice.manifest.reader import identity
from tests.support.command_line import Sluice
from tests.support.offered import publish
from tests.unit.cli.conftest import begun

POSITION = ("wait", "--lsn", "0/A")


def test_a_lake_without_a_directory_is_waited_for_and_missing_only_in_time(configured: Path, sluice: Sluice) -> None:
    ended = sluice(*POSITION, "--timeout", "300ms", cwd=configured)
    assert (ended.returncode, ended.stdout) == (75, "")
    assert "there is no directory" in ended.stderr


def test_a_lake_that_comes_meanwhile_is_read(configured: Path, sluice: Sluice) -> None:
    store, _ = begun(configured)
    timer = threading.Timer(0.5, publish, (configured / "lake", 1, 10), {"manifest": identity(store)})
    timer.start()
    try:
        ended = sluice(*POSITION, "--timeout", "20s", cwd=configured)
    finally:
        timer.join()
    assert ended.returncode == 0, ended.stderr
    assert "the lake can be read as of 0/A" in ended.stdout


def test_the_time_that_was_given_is_named_also_where_part_of_it_passed_without_a_lake(
    configured: Path, sluice: Sluice
) -> None:
    timer = threading.Timer(0.5, (configured / "lake").mkdir)
    timer.start()
    try:
        ended = sluice(*POSITION, "--timeout", "2s", cwd=configured)
    finally:
        timer.join()
    assert ended.returncode == 75
    assert "within 2 s: it is at no boundary yet" in ended.stderr
