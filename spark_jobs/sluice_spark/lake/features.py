"""Which features a Delta table asks of its readers and writers, read from its log without Spark.

Must not guess: a log that has no protocol action where one must be is said to be unreadable. (Delta
protocol: Protocol Evolution, Table Features, Checkpoints.)
"""

import contextlib
import io
import json
import re
from collections.abc import Iterator
from typing import Any

import pyarrow.parquet as pq

from sluice.errors import ObjectMissing
from sluice.store.base import ObjectStore
from sluice_spark.lake.foreign_commits import COMMIT

READER, WRITER = 3, 7
"""The highest protocol versions; from there on features are named one by one."""
KNOWN_FEATURES = frozenset(
    {
        "adaptiveMetadata-preview",
        "allowColumnDefaults",
        "appendOnly",
        "catalogManaged",
        "changeDataFeed",
        "checkConstraints",
        "checkpointProtection",
        "clustering",
        "columnMapping",
        "coordinatedCommits-preview",
        "deletionVectors",
        "domainMetadata",
        "generatedColumns",
        "geospatial",
        "geospatial-dev",
        "icebergCompatV1",
        "icebergCompatV2",
        "icebergCompatV3",
        "identityColumns",
        "inCommitTimestamp",
        "invariants",
        "materializePartitionColumns",
        "rowTracking",
        "timestampNtz",
        "typeWidening",
        "typeWidening-preview",
        "v2Checkpoint",
        "vacuumProtocolCheck",
        "variantShredding",
        "variantShredding-preview",
        "variantType",
        "variantType-preview",
    }
)
"""All that Delta 4.4.0 supports; a test compares with the jar."""

_CHECKPOINT = re.compile(r"(\d{20})\.checkpoint\.(?:\d{10}\.\d{10}\.|[0-9a-f-]{36}\.)?(parquet|json)")


def unknown_features(protocol: dict[str, Any]) -> list[str]:
    """What `protocol` asks for and this version of Delta does not know."""
    found = [
        name
        for kind in ("readerFeatures", "writerFeatures")
        for name in protocol.get(kind) or ()
        if name not in KNOWN_FEATURES
    ]
    too_high = [
        f"{name} {protocol.get(name)}"
        for name, most in (("minReaderVersion", READER), ("minWriterVersion", WRITER))
        if protocol.get(name, 0) > most
    ]
    return [*too_high, *sorted(set(found))]


def read_protocol(store: ObjectStore, folder: str) -> dict[str, Any] | None:
    """The newest protocol action of the table in `folder` (with its slash), None where there is no
    table. Raises StoreError, ValueError.
    """
    log = f"{folder}_delta_log/"
    with contextlib.suppress(ObjectMissing, ValueError):
        start = int(json.loads(store.get(f"{log}_last_checkpoint"))["version"])
        return _newest(store, [key for key in store.list(log, after=f"{log}{start:020d}") if key.startswith(log)], log)
    names = list(store.list(log))
    return _newest(store, names, log) if names else None


def _newest(store: ObjectStore, keys: list[str], log: str) -> dict[str, Any]:
    names = [key.removeprefix(log) for key in keys]
    commits = sorted((name for name in names if COMMIT.fullmatch(name)), reverse=True)
    if commits and f"{commits[0][:20]}.crc" in names:
        summary = json.loads(store.get(f"{log}{commits[0][:20]}.crc")).get("protocol")
        if summary:
            return dict(summary)
    checkpoint = max((match[1] for name in names if (match := _CHECKPOINT.fullmatch(name))), default="")
    for name in commits:
        if name[:20] <= checkpoint:
            break
        for action in _actions(store.get(log + name)):
            return action
    for name in names:
        if name.startswith(f"{checkpoint}.checkpoint.") and checkpoint:
            for action in _checkpointed(store.get(log + name), name):
                return action
    raise ValueError(f"no protocol in {log}")


def _actions(content: bytes) -> Iterator[dict[str, Any]]:
    for line in content.splitlines():
        if line.startswith(b'{"protocol"'):
            yield dict(json.loads(line)["protocol"])


def _checkpointed(content: bytes, name: str) -> Iterator[dict[str, Any]]:
    if name.endswith(".json"):
        yield from _actions(content)
        return
    file = pq.ParquetFile(io.BytesIO(content))
    if "protocol" in file.schema_arrow.names:
        yield from (dict(value) for value in file.read(columns=["protocol"]).column("protocol").to_pylist() if value)
