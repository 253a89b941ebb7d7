"""The options of one applier process, as plain values: made by the command line, carried as JSON.

Owns the form of that JSON. Unknown names are refused. Secrets (store options) are kept out of every
repr.
"""

import dataclasses
import json
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from sluice.contract import applied, lake_kinds
from sluice.contract.lake_targets import LakeTarget
from sluice.contract.replay import NOTES
from sluice.errors import UsageError
from sluice.manifest.ending import Ending
from sluice.manifest.pruning import CONSUMER_SECONDS
from sluice_spark import storage
from sluice_spark.spool import StorePrefix

AUTO = "auto"
WAYS = (AUTO, *applied.WAYS)
"""How windows are committed (`sluice.contract.applied`); auto chooses for each window."""
START_SECONDS = 30.0
"""What a start may take before it meets the lease of a process that was killed."""
SHORTEST_VACUUM_SECONDS = 3600.0
"""Another process may still read, or be about to commit, what is younger."""


@dataclass(frozen=True, slots=True)
class ApplyOptions:
    """Everything the applier needs to know. `tables` maps "schema.table" to overrides such as
    {"targets": [{"kind": "changelog"}]}. `replaces` are pipelines whose lake tables this one may replace.

    `catalog` is where lake tables get names (`sluice_spark.catalog.options`), empty for nowhere.
    `spool_options` and `lake_options` use the store's own names (aws_endpoint, aws_access_key_id,
    ...). `jars` is the directory of jars (empty: the default). The manifest is looked at every
    `poll_seconds`, or up to `idle_poll_seconds` while nothing comes. Reports lie `report_seconds` apart at least while
    windows end. A change waits `freshness_seconds` at most for its window, and boundaries lie
    `complete_seconds` apart at least, or `boundary_seconds` while they cost no table a window. `max_window_bytes`
    bounds the spool bytes one apply takes, `max_memory_bytes` the decoded changes that one apply folds at once,
    `key_cache_bytes` the key columns of data files kept in memory, `until_lsn` ends the process
    once every live table is complete through it, `once` once everything in the manifest at start is
    applied. What is applied stays in the spool for `retention_seconds`, None for ever, and what
    a consumer has not read for `consumer_seconds` after it said something.
    The lake tables `rebuild` (schema.table) are removed first, and made again from the spool.
    With a `last_seq` the spool belongs to another applier, and is read only: the lake gets what the manifest has
    through that entry, of whose transactions those count that ended through `last_lsn`. It needs what lies from entry
    `first_seq` on.
    The lease lasts `lease_seconds`, or `idle_lease_seconds` while the applier has nothing to do, where that is more;
    what may go of the spool is looked for every `prune_seconds`.
    `stop_seconds` is all that a stop may take, from the signal on. `listen` is where metrics and
    probes are served (empty: nowhere), with the token in `token_path` and the certificate, key and
    authorities of clients in `tls_files` where they are given, `config_hash` the settings' fingerprint that they show.
    Spans go to `traces` with `traces_headers` (empty: nowhere), and events of OpenLineage to `lineage` with
    `lineage_headers`, every `lineage_seconds`; there the job is in `lineage_namespace`, and `lineage_source` is
    HOST:PORT of the server.

    `maintenance_share` of one worker's time may go into the maintenance of lake tables (0: none), and
    files that no version needs are removed after `vacuum_seconds`. A boundary that the lake offers can be read for
    `boundary_retention_seconds` after the next one was published.

    `config_files` are what the options were made from, as they were when they had the signature
    `config_seen` (`sluice.reloading`); `reread_command` prints them again (empty: they stay).
    `fixed_settings` are digests of the settings that may not change meanwhile, by name.
    """

    pipeline: str
    spool_uri: str
    lake_uri: str
    spool_options: dict[str, str] = field(default_factory=dict, repr=False)
    lake_options: dict[str, str] = field(default_factory=dict, repr=False)
    catalog: dict[str, Any] = field(default_factory=dict, repr=False)
    replaces: tuple[str, ...] = ()
    mode: str = lake_kinds.DEFAULT
    metadata_columns: bool = True
    log_retention_seconds: float = 3600.0
    vacuum_seconds: float = 7 * 86400.0
    boundary_retention_seconds: float = 3600.0
    maintenance_share: float = 0.05
    tables: dict[str, dict[str, Any]] = field(default_factory=dict)
    spark_master: str = "local[*]"
    spark_conf: dict[str, str] = field(default_factory=dict)
    driver_memory: str = "2g"
    jars: str = ""
    poll_seconds: float = 0.25
    idle_poll_seconds: float = 0.0
    report_seconds: float = 1.0
    freshness_seconds: float = 2.0
    complete_seconds: float = 5.0
    boundary_seconds: float = 0.1
    max_window_bytes: int = 128 * 1024 * 1024
    max_memory_bytes: int = 256 * 1024 * 1024
    workers: int = 2
    way: str = AUTO
    key_cache_bytes: int = 256 * 1024 * 1024
    once: bool = False
    rebuild: tuple[str, ...] = ()
    until_lsn: int = 0
    first_seq: int = 0
    last_seq: int = 0
    last_lsn: int = 0
    lease_seconds: float = 30.0
    idle_lease_seconds: float = 0.0
    prune_seconds: float = 60.0
    stop_seconds: float = 20.0
    retention_seconds: float | None = None
    consumer_seconds: float = CONSUMER_SECONDS
    log_format: str = "console"
    listen: str = ""
    token_path: str = ""
    tls_files: tuple[str, str, str] = ("", "", "")
    config_hash: int | None = None
    traces: str = ""
    traces_headers: dict[str, str] = field(default_factory=dict, repr=False)
    lineage: str = ""
    lineage_headers: dict[str, str] = field(default_factory=dict, repr=False)
    lineage_namespace: str = "sluice"
    lineage_seconds: float = 300.0
    lineage_source: str = ""
    log_level: str = "info"
    config_files: tuple[str, ...] = ()
    config_seen: tuple[int, ...] = ()
    reread_command: tuple[str, ...] = ()
    fixed_settings: dict[str, str] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        _offered("lake.mode", self.mode, lake_kinds.KINDS)
        _offered("apply.way", self.way, WAYS)
        for table, here in self.tables.items():
            _offered(f"tables.{table}.way", here.get("way", self.way), WAYS)
            for target in self.targets_of(table):
                _offered(f"tables.{table}.targets.kind", target.kind, lake_kinds.KINDS)
        if min(self.workers, self.max_window_bytes, self.max_memory_bytes) < 1:
            raise UsageError("workers, max_window_bytes and max_memory_bytes must be at least 1")

    @property
    def secrets(self) -> list[str]:
        """What must never be seen in a log."""
        all_of = (self.spool_options, self.lake_options, self.spark_conf, self.traces_headers, self.lineage_headers)
        return [value for values in all_of for value in values.values()]

    @property
    def left_behind_seconds(self) -> float:
        """For so long the lease of a killed process may keep the next one from the lake, its start included."""
        return max(self.lease_seconds, self.idle_lease_seconds) + START_SECONDS

    @property
    def ending(self) -> Ending | None:
        """Behind which nothing of the manifest is known."""
        return Ending(self.last_seq, self.last_lsn) if self.last_seq else None

    @property
    def spool(self) -> StorePrefix:
        """The pipeline's prefix of the spool."""
        given = tuple(sorted(self.spool_options.items()))
        notes = replace(self.lake, prefix=NOTES) if self.last_seq else None
        return StorePrefix(self.spool_uri, f"{self.pipeline}/", given, notes)

    @property
    def lake(self) -> StorePrefix:
        """All that lies below the lake's address."""
        return StorePrefix(self.lake_uri, "", tuple(sorted(self.lake_options.items())))

    @property
    def scratch_path(self) -> str:
        """Where Spark sees what this process keeps below `apply/`."""
        if self.last_seq:
            return storage.join(self.lake_uri, NOTES.rstrip("/"))
        return storage.join(self.spool_uri, self.pipeline)

    def targets_of(self, qualified_name: str) -> tuple[LakeTarget, ...]:
        """The lake tables that are configured for a table, by name."""
        own = self.tables.get(qualified_name, {}).get("targets")
        return (LakeTarget(self.mode),) if own is None else tuple(LakeTarget.decode(target) for target in own)

    def way_of(self, qualified_name: str) -> str:
        """The way configured for a table."""
        return str(self.tables.get(qualified_name, {}).get("way", self.way))

    def distributes(self, qualified_name: str) -> bool:
        """Whether every window of a table goes to the executors."""
        return self.way_of(qualified_name) == applied.DISTRIBUTED

    def may_distribute(self, qualified_name: str) -> bool:
        """Whether windows of a table may go to the executors."""
        return self.way_of(qualified_name) in (AUTO, applied.DISTRIBUTED)

    def freshness_of(self, qualified_name: str, target: str = "") -> float:
        """The longest time that a change of a table waits for its window of the lake table `target`, in seconds."""
        own = self.tables.get(qualified_name, {})
        for one in own.get("targets", ()):
            if one.get("name", "") == target and one.get("freshness") is not None:
                return float(one["freshness"])
        return float(own.get("freshness", self.freshness_seconds))

    def maintains(self, qualified_name: str) -> bool:
        """Whether the lake table of a table is maintained."""
        return self.maintenance_share > 0 and bool(self.tables.get(qualified_name, {}).get("maintenance", True))

    def vacuum_after(self, qualified_name: str) -> float:
        """How long a file stays that no version of the table needs, in seconds: never shorter than versions
        are kept in its log, or boundaries are offered.
        """
        asked = float(self.tables.get(qualified_name, {}).get("vacuum_after", self.vacuum_seconds))
        return max(asked, self.log_retention_seconds, self.boundary_retention_seconds, SHORTEST_VACUUM_SECONDS)

    def to_json(self) -> str:
        return json.dumps(dataclasses.asdict(self))

    @staticmethod
    def from_json(text: str) -> "ApplyOptions":
        """Raises UsageError for text that is not these options."""
        try:
            value: dict[str, Any] = json.loads(text)
            unknown = sorted(set(value) - {item.name for item in dataclasses.fields(ApplyOptions)})
        except (ValueError, TypeError) as error:
            raise UsageError("the applier's options are not a JSON object") from error
        if unknown:
            raise UsageError(f"the applier's options have unknown names: {', '.join(unknown)}")
        try:
            return ApplyOptions(**value)
        except TypeError as error:
            raise UsageError("the applier's options lack pipeline, spool_uri or lake_uri") from error


def _offered(name: str, value: str, offered: Iterable[str]) -> None:
    if value not in offered:
        raise UsageError(
            f"{name} is {value!r}, which this version does not offer", hint=f"choose one of: {', '.join(offered)}"
        )
