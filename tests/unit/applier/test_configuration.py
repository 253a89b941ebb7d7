"""An applier that runs takes every setting that may change, or says that the file is not in force."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from sluice.cli import wiring
from sluice.settings import load
from sluice.settings.reload import MAY_CHANGE
from sluice_spark.configuration import Configuration
from sluice_spark.options import ApplyOptions

TREE = {
    "version": 1,
    "pipeline": "shop",
    "source": {"dsn": "host=nowhere"},
    "spool": {"uri": "file:///var/spool"},
    "lake": {"uri": "file:///var/lake"},
}
OTHER: dict[tuple[str, ...], Any] = {
    ("source", "snapshot_max_stream_lag"): "1GiB",
    ("source", "snapshot_max_replica_lag"): "9s",
    ("source", "snapshot_max_active_sessions"): 9,
    ("source", "snapshot_hold"): "9s",
    ("source", "dsn"): "host=nowhere password=two",
    ("source", "tables"): ["public.*", "!public.logs"],
    ("tables",): {"public.a": {"freshness": "9s", "vacuum_after": "9d", "maintenance": False, "way": "merge"}},
    ("limits",): {"staged": "7GiB"},
    ("apply", "freshness"): "9s",
    ("apply", "maintenance_share"): 0.5,
    ("spool", "retention"): "9d",
    ("lake", "vacuum_after"): "9d",
    ("telemetry", "log_level"): "debug",
}
"""Another value for each setting that may change."""


def options(folder: Path, changed: dict[tuple[str, ...], Any]) -> ApplyOptions:
    tree: dict[str, Any] = {name: dict(part) if isinstance(part, dict) else part for name, part in TREE.items()}
    for (*above, name), value in changed.items():
        part = tree
        for one in above:
            part = part.setdefault(one, {})
        part[name] = value
    file = folder / "sluice.yaml"
    file.write_text(yaml.safe_dump(tree), encoding="utf-8")
    settings = load(str(file), environ={}).settings
    return ApplyOptions.from_json(
        wiring.apply_options(settings, log_format="json", log_level=settings.telemetry.log_level)
    )


@pytest.mark.parametrize("path", MAY_CHANGE, ids=".".join)
def test_a_setting_that_may_change_is_in_force_once_its_file_is_taken(tmp_path: Path, path: tuple[str, ...]) -> None:
    before, read = options(tmp_path, {}), options(tmp_path, {path: OTHER[path]})
    configuration = Configuration(before, names=list, rotated=lambda: pytest.fail("no key changed"))
    configuration._take(read)
    taken = configuration.fresh()
    assert taken == read
    assert replace(before, config_hash=read.config_hash) != read or path[0] in ("source", "limits")
