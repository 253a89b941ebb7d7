"""The settings tree: one frozen model per section, every default with its reason.

Invariants: a tree that exists is valid. Secrets have a type that never prints them. The command line reads the
tree and hands each package plain values. Must not read files or the environment.
"""

from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, Field, SecretStr, field_validator, model_validator

from sluice.contract import lake_kinds, lake_names
from sluice.contract.table_policy import Contract, OnChange, OnRename, OnWiden
from sluice.settings.addresses import (
    lake_uri,
    listen_address,
    optional_listen_address,
    optional_web_address,
    web_address,
)
from sluice.settings.section import (
    LONGEST_FRESHNESS,
    ApplyWay,
    Section,
    SelectionPattern,
    TablePattern,
)
from sluice.settings.spool import LimitSettings, SpoolSettings
from sluice.settings.tables import TableSettings
from sluice.settings.targets import Kind
from sluice.settings.values import Duration, Size

PIPELINE_NAME = r"^[a-z0-9_]{1,50}$"
"""`sluice_` and this must stay a legal slot name: 63 bytes of a-z, 0-9 and _."""
_SLOT_NAME = r"^[a-z0-9_]{1,63}$"
_KIBI, _MEBI = 1024, 1024**2

Streaming = Literal["off", "on", "parallel", "auto"]
Origin = Literal["any", "none"]


def _lake_path(template: str) -> str:
    if problem := lake_names.misspelled(template):
        raise ValueError(problem)
    return template


LakePath = Annotated[str, AfterValidator(_lake_path)]
PipelineName = Annotated[str, Field(pattern=PIPELINE_NAME)]


class SourceSettings(Section):
    """The PostgreSQL side."""

    dsn: SecretStr = Field(
        min_length=1,
        description="libpq connection string of one database, TLS options included. Better kept out of the file: "
        "SLUICE_SOURCE__DSN. It is read again for each connection, and may then hold other credentials",
    )
    password_command: tuple[str, ...] = Field(
        (),
        description="program and arguments, run without a shell for each connection; the one line that it prints is "
        "the password, as with the token of a cloud's IAM. It may take 30s. No secret belongs in its arguments",
    )
    slot: str = Field("sluice_", pattern=_SLOT_NAME, description="replication slot; left out: sluice_<pipeline>")
    publication: str = Field(
        "sluice_", min_length=1, max_length=63, description="publication; left out: sluice_<pipeline>"
    )
    tables: tuple[SelectionPattern, ...] | None = Field(
        None,
        min_length=1,
        description="tables to carry, as schema.table with * and ?; left out: all that the publication has. One that "
        'begins with ! leaves its tables out, as in "!public.logs"',
    )
    accept_missing: tuple[Literal["truncate", "delete"], ...] = Field(
        (),
        description="kinds of change that the publication leaves out on purpose, of truncate and delete: the lake "
        "keeps the rows that the source removes so. Left out: a publication must send every kind",
    )
    streaming: Streaming = Field(
        "auto",
        description="large transactions sent before they commit, so that neither side has to hold them: parallel "
        "(PostgreSQL 16), on, off; auto takes "
        "the best that the server has",
    )
    two_phase: bool = Field(
        default=False,
        description="receive prepared transactions at PREPARE (PostgreSQL 15) and publish them at COMMIT "
        "PREPARED; false: all of it happens at COMMIT "
        "PREPARED. The slot has the same flag; `sluice setup` changes it",
    )
    messages: bool = Field(
        default=False, description="keep logical messages (pg_logical_emit_message) in the lake table _sluice/messages"
    )
    message_prefixes: tuple[str, ...] = Field(
        (),
        description="which messages to keep, as patterns of their prefix with * and ?; left out: all. Only with "
        "messages: true",
    )
    binary: bool = Field(
        default=False,
        description="values in the binary form of their types, where every published column can be read exactly "
        "from it (no arrays, intervals, ranges, "
        "numeric without precision); refused otherwise, by column",
    )
    allow_insecure: bool = Field(
        default=False,
        description="let dsn ask for less than sslmode=verify-full of a host that is not this machine: whoever "
        "sits in between can then read the password "
        "and change rows. Every start warns",
    )
    allow_untested: bool = Field(
        default=False, description="let `check` pass a major of PostgreSQL that this release was not tested with"
    )
    slot_wait: Duration | None = Field(
        None,
        ge=0,
        le=86400,
        description="how long a start waits for a slot that is in use; left out: until the server has ended a "
        "connection that we lost (its "
        "wal_sender_timeout and 30s more), and 30s for one that answers or confirms",
    )
    snapshot_connections: int = Field(
        2, ge=1, le=32, description="connections that read initial rows at the same time, from one snapshot"
    )
    snapshot_chunk: Size = Field(
        256 * _MEBI,
        ge=8 * _KIBI,
        description="how much of a table is read as one chunk, which is what a lost connection or a crash costs",
    )
    snapshot_rows_per_second: int = Field(
        0,
        ge=0,
        le=1_000_000_000,
        description="the most initial rows that are read in a second, by all connections together; 0: no limit",
    )
    snapshot_max_stream_lag: Size | None = Field(
        None,
        ge=1 * _MEBI,
        description="initial rows wait while the pipeline has not confirmed more than this of the server's WAL; left "
        "out: no limit. Above what the server writes in spool.progress_interval",
    )
    snapshot_max_replica_lag: Duration | None = Field(
        None,
        ge=0.1,
        description="initial rows wait while a standby that streams from the source is behind by more; left out: no "
        "limit. Needs pg_read_all_stats",
    )
    snapshot_max_active_sessions: int | None = Field(
        None,
        ge=1,
        description="initial rows wait while more sessions of others, of all databases, run a statement; left out: no "
        "limit. Needs pg_read_all_stats",
    )
    snapshot_hold: Duration = Field(
        600.0,
        ge=0,
        description="how long such a wait may hold a snapshot, and VACUUM with it; then what is left is read from "
        "another snapshot, and tables whose chunks cannot be joined begin again. The server itself ends a snapshot, "
        "and its lock on a table, 10 s later when ingest stands still (on a Unix socket not while rows are sent)",
    )
    origin: Origin = Field(
        "any", description="`none` leaves out changes that replication brought to the source, which cuts loops"
    )

    @field_validator("password_command")
    @classmethod
    def _has_a_program(cls, command: tuple[str, ...]) -> tuple[str, ...]:
        if command and not command[0]:
            raise ValueError("the first item of a command is its program")
        return command

    @model_validator(mode="after")
    def _prefixes_of_messages(self) -> Self:
        if self.message_prefixes and not self.messages:
            raise ValueError("message_prefixes chooses among messages, which are not kept; set messages: true")
        return self


class LakeSettings(Section):
    """Where the Delta tables are."""

    uri: Annotated[str, AfterValidator(lake_uri)] = Field(
        description="below it the lake tables stand, by default at <uri>/<schema>/<table>"
    )
    options: dict[str, SecretStr] = Field(
        default_factory=dict,
        description="as spool.options, for the lake; left out: the spool's, when the schemes agree",
    )
    path: LakePath = Field(
        lake_names.DEFAULT_TEMPLATE,
        description="where below lake.uri a lake table stands: letters, digits, _, - and / with {pipeline}, "
        "{database}, {schema}, {table} and {target}, which is the name of the target, or of the table for one without "
        "a name. A lake table that is there already stays where it is",
    )
    lower: bool = Field(default=False, description="make all letters of these paths small")
    replaces: tuple[PipelineName, ...] = Field(
        (), description="names of earlier pipelines whose lake tables this one replaces; any other's are refused"
    )
    mode: Kind = Field(
        lake_kinds.DEFAULT,
        description=", ".join(f"{kind.name} {kind.what}" for kind in lake_kinds.KINDS.values()),
    )
    on_change: OnChange = Field(
        "resync",
        description="what becomes of a table that changed in a way that cannot be followed: resync takes a new "
        "snapshot by itself, with growing pauses for a table that changes again and again; stop leaves it stale "
        "until `sluice resync`",
    )
    on_widen: OnWiden = Field(
        "resync",
        description="what a rewrite of the table means that gave a column a wider type (int to bigint, real to double "
        "precision, numeric with more digits, date to timestamp): resync treats it as on_change says, because a USING "
        "expression that computed other values leaves no trace; follow takes your word that there was none, and the "
        "lake table's column gets the type without a new snapshot",
    )
    on_rename: OnRename = Field(
        "keep",
        description="where the lake table of a table that was renamed stands: keep leaves it at the path of its first "
        "name; move takes a new snapshot at the path of the new name, and leaves the old lake table as it is",
    )
    contract: Contract = Field(
        "evolve",
        description="what a change of a table's columns or key does: evolve follows it, or takes a new snapshot where "
        "on_change says so; ignore_new does the same and leaves out columns that are added, until evolve brings them "
        "by a new snapshot; stop leaves the table stale until `sluice resync` accepts the new columns",
    )
    metadata_columns: bool = Field(default=True, description="add _sluice_lsn and _sluice_ts to mirror tables")
    log_retention: Duration = Field(
        3600.0,
        ge=600,
        le=365 * 86400,
        description="how long the log of a lake table keeps versions that a checkpoint has replaced: time travel, "
        "and streams that read a lake table, reach back so far. Each look at a table lists its log",
    )
    vacuum_after: Duration = Field(
        7 * 86400.0,
        ge=3600,
        le=10 * 365 * 86400,
        description="how long a data file stays that no version of a lake table needs any more, or never had, before "
        "VACUUM removes it; never shorter than lake.log_retention or the table's own "
        "delta.deletedFileRetentionDuration. Nothing may read a lake table at one version for longer",
    )
    boundary_retention: Duration = Field(
        3600.0,
        ge=60,
        le=7 * 86400,
        description="how long all tables can be read as of one boundary after the next one was published. Logs and "
        "files that an offered boundary needs stay, whatever log_retention and vacuum_after say; each boundary is a "
        "small object in the lake",
    )


class ApplySettings(Section):
    """The Spark side."""

    spark_master: str = Field(
        "local[*]", min_length=1, description="Spark master: local[*], spark://..., yarn, k8s://..."
    )
    driver_memory: Size = Field(2048 * _MEBI, ge=512 * _MEBI, description="heap of the Spark driver")
    workers: int = Field(2, ge=1, le=64, description="tables applied at the same time")
    poll: Duration = Field(
        0.25, ge=0.05, le=3600, description="wait between looks at the manifest after one that found an entry"
    )
    idle_poll: Duration | None = Field(
        None,
        ge=0.05,
        le=3600,
        description="the longest wait between looks at the manifest; a wait is a twentieth of the time in which "
        "nothing changed. Left out: apply.poll on a local disk, 30s on an object store; never less than apply.poll. "
        "An ingest on the same machine rings for each entry, and no look is waited for",
    )
    freshness: Duration = Field(
        2.0,
        ge=0,
        le=LONGEST_FRESHNESS,
        description="how long a change in the spool waits at most until its table is taken; a table is taken at once "
        "when its last window began that long ago",
    )
    complete_every: Duration = Field(
        5.0,
        ge=0,
        le=3600,
        description="least time between two LSNs at which a version of every table is stated (apply/complete); each "
        "may cost a busy table one more window",
    )
    max_window: Size = Field(
        128 * _MEBI, ge=1 * _MEBI, description="bytes of segments that one apply of one table takes"
    )
    max_memory: Size = Field(
        256 * _MEBI,
        ge=16 * _MEBI,
        description="bytes of decoded changes that one worker folds at once; what is larger goes over local disk "
        "(TMPDIR)",
    )
    way: ApplyWay = Field(
        "auto",
        description="how windows are committed: direct, distributed or merge; auto chooses for each table and window",
    )
    key_cache: Size = Field(
        256 * _MEBI,
        ge=0,
        description="memory for the key columns of data files that direct commits search; what is left out lies on "
        "local disk (TMPDIR)",
    )
    maintenance_share: float = Field(
        0.05,
        ge=0,
        le=1,
        description="share of one worker's time that may go into the maintenance of lake tables: joining files, "
        "purging removed rows, VACUUM; 0 switches it off",
    )
    conf: dict[str, SecretStr] = Field(
        default_factory=dict, description="further Spark configuration; values are secrets"
    )


class TelemetrySettings(Section):
    """Logs, metrics, health."""

    listen: Annotated[str, AfterValidator(listen_address)] = Field(
        "127.0.0.1:9187",
        description="address of the status page, /metrics, /livez, /readyz, /startupz, /status and /history",
    )
    apply_listen: Annotated[str, AfterValidator(optional_listen_address)] = Field(
        "127.0.0.1:9188",
        description="address of the applier's /metrics, /livez, /readyz, /startupz and /wait; off: none. Port 0 takes "
        "any free one",
    )
    token_path: str = Field(
        "",
        description="file with a token that requests for /metrics, /status, /history and the page must carry, as "
        "bearer token or as password; read for each request. The probes need none, and then answer without details",
    )
    runbook_url: Annotated[str, AfterValidator(optional_web_address)] = Field(
        "",
        description="where docs/runbooks is served: the status page then links to the runbook of each problem, by "
        "this, a slash, the name of the page and .md",
    )
    pipelines: dict[PipelineName, Annotated[str, AfterValidator(web_address)]] = Field(
        default_factory=dict,
        description="other pipelines that the status page lists: the address of the status page of each, by name, as "
        "`billing: http://127.0.0.1:9189`. Ingest asks its /readyz every 15 s",
    )
    log_format: Literal["auto", "console", "json"] = Field(
        "auto", description="auto is console on a terminal, json otherwise"
    )
    log_level: Literal["debug", "info", "warning", "error"] = Field(
        "info", description="least severe log line to write"
    )
    max_tables: int = Field(
        500, ge=0, le=10_000, description="tables with metric series of their own; the rest is counted as _other"
    )
    tls_cert_path: str = Field(
        "",
        description="file with the certificate of the endpoints, and its chain, as PEM: they then speak TLS. The three "
        "files are read again when they change",
    )
    tls_key_path: str = Field("", description="file with the key of that certificate, as PEM without a password")
    tls_client_ca_path: str = Field(
        "",
        description="file with the authorities, as PEM, of which requests for /metrics, /status, /history and the page "
        "must show a client certificate. The probes need none, and then answer without details",
    )

    @model_validator(mode="after")
    def _whole_tls(self) -> Self:
        if bool(self.tls_cert_path) != bool(self.tls_key_path):
            raise ValueError("tls_cert_path and tls_key_path belong together")
        if self.tls_client_ca_path and not self.tls_cert_path:
            raise ValueError("tls_client_ca_path needs tls_cert_path and tls_key_path")
        return self

    @property
    def tls_files(self) -> tuple[str, str, str]:
        """Certificate, key, and authorities of clients."""
        return self.tls_cert_path, self.tls_key_path, self.tls_client_ca_path


class Settings(Section):
    """One pipeline: one slot, one publication, one database, one spool prefix, one lake prefix."""

    version: Literal[1] = Field(1, description="version of this format")
    pipeline: str = Field(pattern=PIPELINE_NAME, description="name of the pipeline: a-z, 0-9 and _, at most 50")
    source: SourceSettings
    spool: SpoolSettings
    lake: LakeSettings
    limits: LimitSettings = Field(default_factory=lambda: LimitSettings.model_validate({}))
    apply: ApplySettings = Field(default_factory=lambda: ApplySettings.model_validate({}))
    telemetry: TelemetrySettings = Field(default_factory=lambda: TelemetrySettings.model_validate({}))
    stop_timeout: Duration = Field(
        20.0,
        ge=2,
        le=3600,
        description="all that a stop (SIGTERM, Ctrl-C) may take, from the signal on: three fifths to finish what "
        "was received, the rest to stop without it; what "
        "was not published comes again at the next start. Below the grace period of whatever stops the process",
    )
    tables: dict[TablePattern, TableSettings] = Field(default_factory=dict, description="overrides by schema.table")

    @model_validator(mode="before")
    @classmethod
    def _derived_names(cls, tree: Any) -> Any:
        """Slot and publication are named after the pipeline unless they are given."""
        source = tree.get("source") if isinstance(tree, dict) else None
        if not isinstance(source, dict):
            return tree
        name = f"sluice_{tree.get('pipeline', '')}"
        return {**tree, "source": {"slot": name, "publication": name, **source}}

    @model_validator(mode="after")
    def _separate_places(self) -> Self:
        spool, lake = self.spool.uri + "/", self.lake.uri + "/"
        if spool == lake or lake.startswith(f"{spool}{self.pipeline}/"):
            raise ValueError("lake.uri must not lie in the spool: tables and spool files would share names")
        return self

    @property
    def idle_poll(self) -> float:
        """Seconds of `apply.idle_poll`, or what is right for the store."""
        if self.apply.idle_poll is not None:
            return self.apply.idle_poll
        return 30.0 if self.spool.is_remote else self.apply.poll

    @property
    def lake_options(self) -> dict[str, SecretStr]:
        """The lake's own object store options, or the spool's when none are given and both are on
        the same kind of store.
        """
        same_store = self.lake.uri.partition("://")[0] == self.spool.uri.partition("://")[0]
        return self.lake.options or (self.spool.options if same_store else {})
