"""The configuration is edited while the applier runs."""

from pathlib import Path

from sluice.contract.applied import AppliedLog
from sluice.manifest.newest_record import newest_log
from tests.support.extent import slow
from tests.support.sources import Database
from tests.support.surfaces import Pipe


def reported(pipe: Pipe) -> AppliedLog | None:
    return newest_log(pipe.store).read() if newest_log(pipe.store).number() else None


@slow
def test_an_applier_takes_an_edited_file_as_a_whole_or_says_why_not(database: Database, tmp_path: Path) -> None:
    database.execute("CREATE TABLE a (id int PRIMARY KEY)", "INSERT INTO a VALUES (1)")
    pipe = Pipe(database, tmp_path, extra="apply: {workers: 1, driver_memory: 1GiB, freshness: 5s}")
    assert pipe("run", "--until-caught-up").returncode == 0
    with pipe.start("apply"):
        pipe.wait(lambda: (log := reported(pipe)) and [row.state for row in log.tables.values()] == ["live"], 120)
        text = pipe.config.read_text(encoding="utf-8")
        pipe.config.write_text(text.replace("workers: 1", "workers: 2").replace("5s", "1s"), encoding="utf-8")
        log = pipe.wait(lambda: (log := reported(pipe)) and log.configuration_refused and log)
        assert "apply.workers cannot change while a process runs" in log.configuration_refused
        pipe.config.write_text(text.replace("freshness: 5s", "freshness: 1s"), encoding="utf-8")
        pipe.wait(lambda: (log := reported(pipe)) and not log.configuration_refused)
        assert [event["event"] for event in pipe.events()].count("the configuration is in force") == 1
