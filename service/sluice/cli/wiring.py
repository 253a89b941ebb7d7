"""From settings to the plain values that the packages below take. Nothing else in Sluice reads
settings.

Packages are imported where they are needed: `sluice config show` and `sluice version` must work
where only the base packages are installed.
"""

import json
import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from pydantic import SecretStr

from sluice.cli.policies import NOT_FOR_THE_APPLIER, catalog_names, policies, targets_of
from sluice.errors import UsageError
from sluice.reloading import Signature
from sluice.settings import Settings
from sluice.settings.display import fingerprint
from sluice.settings.reload import fixed

if TYPE_CHECKING:
    from sluice.health.reporter import Reporter
    from sluice.ingest.options import IngestOptions
    from sluice.source.sessions import SourceOptions
    from sluice.store.base import ObjectStore

IDLE_LEASE_SECONDS = 120.0
"""Of an applier that rests, where a renewal costs money."""
_LEFT_BEHIND_SECONDS = 30.0
"""Beyond a lease: what a start takes before it meets the lease of a process that was killed."""
_MEBI = 1024**2
READERS = {"sluice_lake", "duckdb"}
"""What commands that read the lake need."""


@dataclass(frozen=True, slots=True)
class Reread:
    """How an applier notices that the configuration or a secret was changed, and reads them again."""

    files: tuple[str, ...]
    seen: Signature
    command: list[str]


def source_options(settings: Settings, *, reread_dsn: Callable[[], str] | None = None) -> "SourceOptions":
    """How to connect. `reread_dsn` reads source.dsn again, for a process that makes connections for a
    long time.
    """
    from sluice.source.credentials import Credentials
    from sluice.source.sessions import SourceOptions

    return SourceOptions(
        dsn=settings.source.dsn.get_secret_value(),
        slot=settings.source.slot,
        publication=settings.source.publication,
        application_name=f"sluice_{settings.pipeline}",
        binary=settings.source.binary,
        allow_insecure=settings.source.allow_insecure,
        allow_untested=settings.source.allow_untested,
        credentials=Credentials(reread=reread_dsn, command=settings.source.password_command),
    )


def operator_options(settings: Settings, *, dsn: str) -> "SourceOptions":
    """How to connect with an operator's own rights; without a `dsn` of theirs, as the pipeline does."""
    from sluice.source.credentials import Credentials

    options = replace(source_options(settings), application_name=f"sluice_{settings.pipeline}_operator")
    return replace(options, dsn=dsn, credentials=Credentials()) if dsn else options


def open_spool(settings: Settings, *, reread: Callable[[], dict[str, str]] | None = None) -> "ObjectStore":
    """The pipeline's own prefix in the spool. `reread` reads spool.options again, for a process that
    needs it for a long time.
    """
    from sluice.store.opening import open_store

    options = plain(settings.spool.options)
    return open_store(settings.spool.uri, prefix=f"{settings.pipeline}/", options=options, reread=reread)


def ingest_options(settings: Settings, *, instance: str, source: "SourceOptions | None" = None) -> "IngestOptions":
    """How one ingest process works: with `source`, if it has made that already."""
    from sluice.ingest.assemble.assembler import AssemblerLimits
    from sluice.ingest.encode.builder import BuilderLimits
    from sluice.ingest.options import FlushPolicy, IngestOptions
    from sluice.ingest.receive.stream import StreamLimits
    from sluice.ingest.snapshot.chunk_round import SnapshotLimits
    from sluice.ingest.snapshot.load_gate import LoadLimits

    return IngestOptions(
        pipeline=settings.pipeline,
        source=source or source_options(settings),
        tables=settings.source.tables or (),
        policies=policies(settings),
        streaming=settings.source.streaming,
        two_phase=settings.source.two_phase,
        messages=settings.source.messages,
        message_prefixes=settings.source.message_prefixes,
        origin=settings.source.origin,
        builder=BuilderLimits(
            max_bytes=settings.spool.max_bytes,
            max_rows=settings.spool.max_rows,
            body_bytes=settings.spool.transaction_memory,
            transaction_bytes=settings.limits.transaction,
            staged_bytes=settings.limits.staged,
        ),
        open_limits=AssemblerLimits(
            open_streams=settings.limits.open_streams, aborted_intervals=settings.limits.aborted_intervals
        ),
        # The stream closes an entry when its oldest row is this old; what comes out of it in
        # smaller pieces is closed by the flush policy.
        stream=StreamLimits(max_delay_s=settings.spool.max_delay),
        flush=FlushPolicy(
            max_delay_s=settings.spool.max_delay,
            min_interval_s=settings.spool.entry_interval,
            progress_interval_s=settings.spool.advance_interval,
        ),
        snapshot=SnapshotLimits(
            connections=settings.source.snapshot_connections,
            chunk_bytes=settings.source.snapshot_chunk,
            rows_per_second=settings.source.snapshot_rows_per_second,
            load=LoadLimits(
                stream_lag=settings.source.snapshot_max_stream_lag,
                replica_lag_s=settings.source.snapshot_max_replica_lag,
                active_sessions=settings.source.snapshot_max_active_sessions,
                hold_s=settings.source.snapshot_hold,
            ),
        ),
        request_interval_s=30.0 if settings.spool.is_remote else 1.0,
        slot_wait_s=settings.source.slot_wait,
        stop_s=settings.stop_timeout,
        instance=instance,
    )


def limits_to_see(settings: Settings) -> tuple[str, ...]:
    """The limits on the source's load that are set and need `pg_read_all_stats`."""
    names = ("snapshot_max_replica_lag", "snapshot_max_active_sessions")
    return tuple(f"source.{name}" for name in names if getattr(settings.source, name) is not None)


def left_behind_seconds(settings: Settings) -> float:
    """For so long the lease of an applier that was killed may keep the next one from the lake."""
    return (IDLE_LEASE_SECONDS if settings.spool.is_remote else 30.0) + _LEFT_BEHIND_SECONDS


def apply_options(
    settings: Settings,
    *,
    log_format: str,
    log_level: str = "info",
    once: bool = False,
    rebuild: Sequence[str] = (),
    reread: "Reread | None" = None,
) -> str:
    """How one applier process works, as the JSON that `sluice_spark.options` reads. Holds
    secrets: for a child's environment, never for a command line. Without `reread` the applier never
    looks at the configuration again.
    """
    tables: dict[str, dict[str, Any]] = {
        name: table.model_dump(mode="python", exclude_none=True, exclude=NOT_FOR_THE_APPLIER)
        for name, table in settings.tables.items()
    }
    for name, table in settings.tables.items():
        if table.targets is not None or table.layout():
            tables[name]["targets"] = [target.encode() for target in targets_of(settings, name)]
    options: dict[str, Any] = {
        "pipeline": settings.pipeline,
        "spool_uri": settings.spool.uri,
        "spool_options": plain(settings.spool.options),
        "lake_uri": settings.lake.uri,
        "lake_options": plain(settings.lake_options),
        "replaces": settings.lake.replaces,
        "catalog": _catalog(settings),
        "mode": settings.lake.mode,
        "metadata_columns": settings.lake.metadata_columns,
        "log_retention_seconds": settings.lake.log_retention,
        "vacuum_seconds": settings.lake.vacuum_after,
        "boundary_retention_seconds": settings.lake.boundary_retention,
        "maintenance_share": settings.apply.maintenance_share,
        "tables": tables,
        "retention_seconds": None if math.isinf(settings.spool.retention) else settings.spool.retention,
        "consumer_seconds": settings.spool.consumer_hold,
        "spark_master": settings.apply.spark_master,
        "spark_conf": plain(settings.apply.conf),
        "driver_memory": f"{settings.apply.driver_memory // _MEBI}m",
        "poll_seconds": settings.apply.poll,
        "idle_poll_seconds": settings.idle_poll,
        "report_seconds": 15.0 if settings.spool.is_remote else 1.0,
        "idle_lease_seconds": IDLE_LEASE_SECONDS if settings.spool.is_remote else 0.0,
        "prune_seconds": 900.0 if settings.spool.is_remote else 60.0,
        "freshness_seconds": settings.apply.freshness,
        "complete_seconds": settings.apply.complete_every,
        "boundary_seconds": 5.0 if settings.spool.is_remote or not settings.lake.uri.startswith("file:") else 0.1,
        "max_window_bytes": settings.apply.max_window,
        "max_memory_bytes": settings.apply.max_memory,
        "workers": settings.apply.workers,
        "way": settings.apply.way,
        "key_cache_bytes": settings.apply.key_cache,
        "once": once,
        "rebuild": tuple(rebuild),
        "stop_seconds": settings.stop_timeout,
        "log_format": log_format,
        "log_level": log_level,
        "fixed_settings": fixed(settings),
        "config_files": reread.files if reread is not None else (),
        "config_seen": reread.seen if reread is not None else (),
        "reread_command": reread.command if reread is not None else (),
        "listen": "" if settings.telemetry.apply_listen == "off" else settings.telemetry.apply_listen,
        "token_path": settings.telemetry.token_path,
        "tls_files": settings.telemetry.tls_files,
        "config_hash": fingerprint(settings),
        "traces": settings.telemetry.traces,
        "traces_headers": plain(settings.telemetry.traces_headers),
        "lineage": settings.telemetry.lineage,
        "lineage_headers": plain(settings.telemetry.lineage_headers),
        "lineage_namespace": settings.telemetry.lineage_namespace,
        "lineage_seconds": settings.telemetry.lineage_every,
        "lineage_source": _server(settings) if settings.telemetry.lineage else "",
    }
    return json.dumps(options)


def replay_options(
    settings: Settings,
    *,
    first_seq: int,
    last_seq: int,
    last_lsn: int,
    lake_uri: str,
    others: Sequence[str],
    log_format: str,
    log_level: str,
) -> str:
    """How tables are made in another lake, in the same form: from the manifest's entries `first_seq` through
    `last_seq`, of whose transactions those count that ended through `last_lsn`. The lake gets none of the tables
    `others` (schema.table). Holds secrets, as that does.
    """
    options = json.loads(apply_options(settings, log_format=log_format, log_level=log_level, once=True))
    none: dict[str, Any] = {name: {"targets": []} for name in others}
    own = {
        "lake_uri": lake_uri,
        "replaces": (),
        "tables": {**options["tables"], **none},
        "first_seq": first_seq,
        "last_seq": last_seq,
        "last_lsn": last_lsn,
        # Its files are those of the replay, and nobody removes any.
        "maintenance_share": 0.0,
        "listen": "",
        # What it does is not what the pipeline does: nobody hears of it.
        "traces": "",
        "lineage": "",
        "catalog": {},
    }
    return json.dumps({**options, **own})


def _server(settings: Settings) -> str:
    from sluice.source.sessions import server_of

    return server_of(settings.source.dsn.get_secret_value())


def _catalog(settings: Settings) -> dict[str, Any]:
    """As `sluice_spark.catalog.options` reads it."""
    names = catalog_names(settings)
    if names is None:
        return {}
    catalog = settings.catalog
    return {
        "kind": catalog.kind,
        "names": asdict(names),
        "uri": catalog.uri,
        "token": catalog.token.get_secret_value(),
        "create_schemas": catalog.create_schemas,
        "timeout_seconds": catalog.timeout,
    }


def applier_command() -> list[str]:
    """The applier's process. Ingest never imports Spark: the two sides meet in the manifest only."""
    return [sys.executable, "-m", "sluice_spark"]


def fleet_applier_command() -> list[str]:
    """The applier of a fleet. It takes the options of its pipelines from standard input."""
    return [sys.executable, "-m", "sluice_spark.fleet"]


def lake_check_command() -> list[str]:
    """What looks at the lake for `check`. It takes the applier's options."""
    return [sys.executable, "-m", "sluice_spark.preflight"]


def lake_reader_command() -> list[str]:
    """What reads the lake for `verify`. It takes the applier's options."""
    return [sys.executable, "-m", "sluice_spark.verify"]


def jars_command(*, to: str | None, s3: bool) -> list[str]:
    """What fetches Spark's jars."""
    return [
        sys.executable,
        "-m",
        "sluice_spark.jars",
        "fetch",
        *(["--s3"] if s3 else []),
        *(["--to", to] if to else []),
    ]


def applier_environment(options: str, environ: dict[str, str]) -> dict[str, str]:
    """`environ` with the applier's options. Other settings stay out: the options hold them all."""
    return {**environ, "SLUICE_APPLY_OPTIONS": options}


def applier_log_format(settings: Settings, *, asked: str | None) -> str:
    """The applier writes to the same stderr, so that `auto` is decided once."""
    chosen = asked or settings.telemetry.log_format
    return chosen if chosen != "auto" else "console" if sys.stderr.isatty() else "json"


def reporter(
    settings: Settings,
    *,
    reread_dsn: Callable[[], str] | None = None,
    reread_options: Callable[[], dict[str, str]] | None = None,
) -> "Reporter":
    """Takes reports of this pipeline, the server asked as well."""
    from sluice.health.reporter import Reporter
    from sluice.health.tables import LakeTables

    return Reporter(
        pipeline=settings.pipeline,
        store=open_spool(settings, reread=reread_options),
        spool_uri=settings.spool.uri,
        lake_uri=settings.lake.uri,
        source=source_options(settings, reread_dsn=reread_dsn),
        lake_tables=LakeTables(lambda name: targets_of(settings, name), names=catalog_names(settings)),
    )


def require(*packages: str) -> None:
    """Raises UsageError unless the packages that a command needs are installed."""
    from importlib.util import find_spec

    missing = [package for package in packages if find_spec(package) is None]
    if missing:
        extra = "query" if set(missing) & READERS else "spark" if "pyspark" in missing else "service"
        raise UsageError(
            f"this command needs {', '.join(missing)}, which this installation lacks",
            hint=f"pip install 'sluice-cdc[{extra}]'",
        )


def plain(options: dict[str, SecretStr]) -> dict[str, str]:
    """The values themselves, for whoever uses them."""
    return {name: value.get_secret_value() for name, value in options.items()}
