"""What of the settings may change while a process runs. Pure.

Invariant: two trees are compared setting by setting, secrets included, so that nothing is left as it
was without being named.
"""

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from pydantic import SecretStr

from sluice.settings.model import Settings
from sluice.settings.tree import keys
from sluice.store.rotation import is_key

MAY_CHANGE = (
    ("source", "snapshot_max_stream_lag"), ("source", "snapshot_max_replica_lag"),
    ("source", "snapshot_max_active_sessions"), ("source", "snapshot_hold"),
    ("source", "dsn"), ("source", "tables"), ("tables",), ("limits",), ("apply", "freshness"),
    ("apply", "maintenance_share"), ("spool", "retention"), ("lake", "vacuum_after"), ("telemetry", "log_level"),
)  # fmt: skip
"""Settings, or sections of them, that a running process takes from an edited file; of source.dsn only
what `sluice.source.credentials` lets change. Of the options of a store it takes the keys.
"""


def fixed(settings: Settings) -> dict[str, str]:
    """A digest of the value of every setting that a running process keeps, by its name."""
    tree = settings.model_dump(mode="python")
    return {
        key.name: hashlib.sha256(json.dumps(_at(tree, key.path), sort_keys=True, default=_plain).encode()).hexdigest()
        for key in keys()
        if not any(key.path[: len(path)] == path for path in MAY_CHANGE)
    }


def differing(before: Mapping[str, str], after: Mapping[str, str]) -> tuple[str, ...]:
    """The names of settings that changed and may not while a process runs."""
    return tuple(sorted(name for name in before.keys() | after.keys() if before.get(name) != after.get(name)))


def _at(tree: Any, path: tuple[str, ...]) -> Any:
    for part in path:
        tree = tree[part]
    return {name: value for name, value in tree.items() if not is_key(name)} if path[-1] == "options" else tree


def _plain(value: Any) -> Any:
    return value.get_secret_value() if isinstance(value, SecretStr) else str(value)
