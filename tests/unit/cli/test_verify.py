"""`verify` before it compares anything: it never ends with 0 when there was nothing to compare."""

from pathlib import Path

from sluice.contract import keys
from sluice.contract.applied import AppliedLog, AppliedTable
from sluice.contract.reasons import Reason, ReasonCode
from sluice.contract.table_state import State
from tests.support.command_line import Sluice
from tests.unit.cli.conftest import begun, table


def test_a_pipeline_without_tables_is_not_called_equal(sluice: Sluice, configured: Path) -> None:
    ended = sluice("verify", cwd=configured)
    assert ended.returncode == 2
    assert "no table yet" in ended.stderr


def test_a_table_that_is_not_carried_is_refused_with_the_nearest_name(sluice: Sluice, configured: Path) -> None:
    _, log = begun(configured)
    log.append(table("1", "orders", state=State.SNAPSHOT))
    ended = sluice("verify", "public.order", cwd=configured)
    assert ended.returncode == 2
    assert "nearest: public.orders" in ended.stderr


def test_the_lake_table_that_is_stale_is_named_when_its_source_table_is_to_be_repaired(
    sluice: Sluice, configured: Path
) -> None:
    file = configured / "sluice.yaml"
    targets = "public.orders: {targets: [{kind: mirror}, {kind: history, name: orders_h}]}"
    file.write_text(file.read_text().replace("tables: {", f"tables: {{{targets}, "))
    store, log = begun(configured)
    log.append(table("1", "orders", state=State.LIVE))
    why = Reason(ReasonCode.LAKE_DIFFERS, {"what": "changed"})
    row = AppliedTable("1", "public", "orders", "public/orders_h", "history", 1, State.STALE, why, target="orders_h")
    at = "2026-11-01T00:00:00.000+00:00"
    store.create(keys.apply_log(1), AppliedLog(1, "one", at, {keys.target_key("1", "orders_h"): row}).encode())
    ended = sluice("verify", "--repair", "public.orders", cwd=configured)
    assert ended.returncode == 2
    assert "public.orders/orders_h is stale and cannot be repaired" in ended.stderr
    assert "`sluice resync public.orders` reads the whole table again; or name only lake tables" in ended.stderr
