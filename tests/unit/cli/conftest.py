"""The command line within the test's process, and a configuration without any server."""

from pathlib import Path

import pytest

from sluice.contract.entries import Table
from sluice.contract.table_state import State
from sluice.manifest.values import PipelineState
from sluice.manifest.writer import ManifestLog
from sluice.store.base import ObjectStore
from sluice.store.opening import open_store
from tests.support.command_line import Sluice, command_line
from tests.support.manifests import opened

CANARY = "canary-7f3a"


@pytest.fixture
def sluice(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Sluice:
    return command_line(monkeypatch, capsys)


@pytest.fixture
def configured(tmp_path: Path) -> Path:
    (tmp_path / "sluice.yaml").write_text(
        f"""\
version: 1
pipeline: shop
source: {{dsn: "postgresql://u:{CANARY}@127.0.0.1:1/d?connect_timeout=2"}}
spool: {{uri: "file://{tmp_path}/spool", options: {{aws_secret_access_key: {CANARY}}}}}
lake: {{uri: "file://{tmp_path}/lake"}}
apply: {{conf: {{spark.x: {CANARY}}}, driver_memory: 1GiB}}
tables: {{public.events: {{targets: [{{kind: changelog}}]}}}}
telemetry: {{listen: "127.0.0.1:0"}}
""",
        encoding="utf-8",
    )
    return tmp_path


def begun(folder: Path) -> tuple[ObjectStore, ManifestLog]:
    """The spool of the configured pipeline, whose manifest has begun at 100."""
    store = open_store((folder / "spool").as_uri(), prefix="shop/", options={})
    return store, ManifestLog.open(store, opened(start_lsn=100), PipelineState(), through_lsn=100)


def table(table_id: str, name: str, state: str = "live") -> Table:
    return Table(table_id=table_id, schema_name="public", table_name=name, state=State(state), generation=1)
