"""`verify` before it compares anything: it never ends with 0 when there was nothing to compare."""

from pathlib import Path

from sluice.contract.table_state import State
from sluice.manifest.values import PipelineState
from sluice.manifest.writer import ManifestLog
from sluice.store.opening import open_store
from tests.unit.cli.conftest import Sluice, opened, table


def test_a_pipeline_without_tables_is_not_called_equal(sluice: Sluice, configured: Path) -> None:
    ended = sluice("verify", cwd=configured)
    assert ended.returncode == 2
    assert "no table yet" in ended.stderr


def test_a_table_that_is_not_carried_is_refused_with_the_nearest_name(sluice: Sluice, configured: Path) -> None:
    store = open_store((configured / "spool").as_uri(), prefix="shop/", options={})
    log = ManifestLog.open(store, opened(), PipelineState(), through_lsn=100)
    log.append(table("1", "orders", state=State.SNAPSHOT))
    ended = sluice("verify", "public.order", cwd=configured)
    assert ended.returncode == 2
    assert "nearest: public.orders" in ended.stderr
