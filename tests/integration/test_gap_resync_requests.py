"""`sluice slot recreate` dies after the gap is recorded: what it left to do is done when it is given again."""

from sluice.contract import keys
from sluice.store.opening import open_store
from tests.integration.test_cli_pipeline import environment, sluice  # noqa: F401 - fixtures
from tests.support import commands
from tests.support.command_line import Sluice
from tests.support.sources import Database


def test_tables_that_cannot_be_compared_are_read_again_though_the_command_died(
    sluice: Sluice,  # noqa: F811 - the fixture
    environment: dict[str, str],  # noqa: F811 - the fixture
    database: Database,
) -> None:
    database.execute(
        "CREATE TABLE bag (v text)", "ALTER TABLE bag REPLICA IDENTITY FULL", "INSERT INTO bag VALUES ('a')"
    )
    assert sluice("run", "--until-caught-up").returncode == 0
    assert sluice("slot", "drop", "--confirm", database.slot).returncode == 0
    database.execute("INSERT INTO bag VALUES ('lost')")
    dying = {**environment, "SLUICE_FAULTS": "gap.recorded=crash@1"}
    died = commands.sluice("slot", "recreate", "--confirm", database.slot, env=dying)
    assert died.returncode not in (0, 2)
    sluice("slot", "recreate", "--confirm", database.slot)
    store = open_store(
        f"file://{environment['SLUICE_CONFIG'].removesuffix('/sluice.yaml')}/spool", prefix="shop/", options={}
    )
    assert [key for key in store.list(keys.CONTROL) if keys.is_control(key)], "bag is stale for ever"
