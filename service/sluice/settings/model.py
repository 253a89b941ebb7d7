"""The settings tree: one frozen model per section, every default with its reason.

Invariants: a tree that exists is valid. Secrets have a type that never prints them. The command line reads the
tree and hands each package plain values. Must not read files or the environment.
"""

from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, Field, SecretStr, field_validator, model_validator

from sluice.contract import lake_kinds, lake_names
from sluice.contract.table_policy import Contract, OnChange, OnRename, OnWiden
from sluice.settings.addresses import (
    connection_string,
    lake_uri,
    listen_address,
    optional_listen_address,
    optional_web_address,
    web_address,
)
from sluice.settings.catalog import CatalogSettings
from sluice.settings.section import (
    LONGEST_FRESHNESS,
    ApplyWay,
    Section,
    SelectionPattern,
    TableName,
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
        description="libpq connection string of one database, including TLS options. Keep it out of the file: "
        "use SLUICE_SOURCE__DSN. It is read again for each connection, so its credentials may change",
    )
    password_command: tuple[str, ...] = Field(
        (),
        description="program and arguments, run without a shell for each connection; the one line that it prints "
        "is the password, for example the token of a cloud's IAM. It must end within 30s. Put no "
        "secret into its arguments",
    )
    slot: str = Field(
        "sluice_", pattern=_SLOT_NAME, description="name of the replication slot; by default sluice_<pipeline>"
    )
    publication: str = Field(
        "sluice_", min_length=1, max_length=63, description="name of the publication; by default sluice_<pipeline>"
    )
    tables: tuple[SelectionPattern, ...] | None = Field(
        None,
        min_length=1,
        description="tables to carry, as schema.table with * and ?; by default all tables of the publication. A "
        'pattern that begins with ! leaves its tables out, as in "!public.logs"',
    )
    accept_missing: tuple[Literal["truncate", "delete"], ...] = Field(
        (),
        description="kinds of change that the publication leaves out on purpose: truncate, delete. The lake then "
        "keeps the rows that the source removes in that way. By default a publication must send "
        "every kind",
    )
    streaming: Streaming = Field(
        "auto",
        description="whether the server sends large transactions before they commit, so that neither side has to "
        "hold them: parallel (PostgreSQL 16), on, off; auto uses the best that the server supports",
    )
    two_phase: bool = Field(
        default=False,
        description="receive prepared transactions at PREPARE (PostgreSQL 15) and publish them at COMMIT "
        "PREPARED; with false, both happen at COMMIT PREPARED. The slot has the same flag; `sluice "
        "setup` changes it",
    )
    messages: bool = Field(
        default=False, description="store logical messages (pg_logical_emit_message) in the lake table _sluice/messages"
    )
    message_prefixes: tuple[str, ...] = Field(
        (),
        description="which messages to store, as patterns of their prefix with * and ?; by default all. It needs "
        "source.messages: true",
    )
    binary: bool = Field(
        default=False,
        description="receive values in the binary form of their types. Every published column must be exactly "
        "readable from it (no arrays, intervals, ranges, numeric without precision); otherwise Sluice refuses it and "
        "names the columns",
    )
    allow_insecure: bool = Field(
        default=False,
        description="permit less than sslmode=verify-full in dsn for a host other than this machine: an attacker "
        "on the network can then read the password and change rows. Sluice warns at every start",
    )
    allow_untested: bool = Field(
        default=False, description="permit a major version of PostgreSQL that this release was not tested with"
    )
    slot_wait: Duration | None = Field(
        None,
        ge=0,
        le=86400,
        description="how long a start waits for a slot that is in use. By default it waits 30s for a connection that "
        "works, and for a lost connection until the server has ended it (its wal_sender_timeout and 30s more)",
    )
    snapshot_connections: int = Field(
        2, ge=1, le=32, description="how many connections read initial rows at the same time, from one snapshot"
    )
    snapshot_chunk: Size = Field(
        256 * _MEBI,
        ge=8 * _KIBI,
        description="how much of a table is read as one chunk; after a lost connection or a crash, a chunk is "
        "read again",
    )
    snapshot_rows_per_second: int = Field(
        0,
        ge=0,
        le=1_000_000_000,
        description="how many initial rows all connections together read in a second at most; 0 sets no limit",
    )
    snapshot_max_stream_lag: Size | None = Field(
        None,
        ge=1 * _MEBI,
        description="the reading of initial rows waits while the pipeline has not confirmed more than this of "
        "the server's WAL; by default no limit. It must be more than the server writes in "
        "spool.progress_interval, or more than 256 MiB",
    )
    snapshot_max_replica_lag: Duration | None = Field(
        None,
        ge=0.1,
        le=7 * 86400,
        description="the reading of initial rows waits while a standby that streams from the source is behind by "
        "more than this; by default no limit. It needs pg_read_all_stats",
    )
    snapshot_max_active_sessions: int | None = Field(
        None,
        ge=1,
        description="the reading of initial rows waits while more than this number of other sessions, in all "
        "databases, run a statement; by default no limit. It needs pg_read_all_stats",
    )
    snapshot_hold: Duration = Field(
        600.0,
        ge=0,
        le=7 * 86400,
        description="how long a snapshot stays open, and holds back VACUUM, while it waits because of a limit of "
        "source.snapshot_max_*. Then the rest is "
        "read from another snapshot, and tables whose chunks cannot be combined begin again. If "
        "ingest is frozen, the server itself ends the snapshot and its lock on a table 10 s later "
        "(on a Unix socket not while rows are sent)",
    )
    origin: Origin = Field(
        "any", description="`none` leaves out changes that replication brought to the source, which prevents loops"
    )

    @field_validator("dsn")
    @classmethod
    def _ends_a_password_where_it_ends(cls, dsn: SecretStr) -> SecretStr:
        connection_string(dsn.get_secret_value())
        return dsn

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
        description="address below which the lake tables are, by default at <uri>/<schema>/<table>"
    )
    options: dict[str, SecretStr] = Field(
        default_factory=dict,
        description="like spool.options, but for the lake; by default the options of the spool, if both "
        "addresses have the same scheme",
    )
    path: LakePath = Field(
        lake_names.DEFAULT_TEMPLATE,
        description="path of a lake table below lake.uri: letters, digits, _, - and / with {pipeline}, "
        "{database}, {schema}, {table} and {target}. {target} is the name of the target, or of the "
        "table if the target has no name. An existing lake table stays where it is",
    )
    lower: bool = Field(default=False, description="use only lowercase letters in these paths")
    replaces: tuple[PipelineName, ...] = Field(
        (),
        description="names of earlier pipelines whose lake tables this pipeline may replace; tables of other "
        "pipelines are refused",
    )
    mode: Kind = Field(
        lake_kinds.DEFAULT,
        description=", ".join(f"{kind.name} {kind.what}" for kind in lake_kinds.KINDS.values()),
    )
    on_change: OnChange = Field(
        "resync",
        description="what happens to a table that changed in a way that cannot be followed: resync takes a new "
        "snapshot without being asked, with growing pauses for a table that changes repeatedly; stop "
        "leaves it stale until `sluice resync`",
    )
    on_widen: OnWiden = Field(
        "resync",
        description="what happens after a rewrite of the table that gave a column a wider type (int to bigint, "
        "real to double precision, numeric with more digits, date to timestamp): with resync "
        "on_change decides, because a USING expression that computed other values leaves no trace; "
        "with follow you promise that there was none, and the lake table's column gets the type "
        "without a new snapshot",
    )
    on_rename: OnRename = Field(
        "keep",
        description="where the lake table of a renamed table is: keep leaves it at the path of its first name; "
        "move takes a new snapshot at the path of the new name, and leaves the old lake table as it "
        "is",
    )
    contract: Contract = Field(
        "evolve",
        description="what happens after a change of a table's columns or key: evolve follows it, or takes a new "
        "snapshot if on_change says so; ignore_new does the same but excludes added columns, until "
        "evolve includes them with a new snapshot; stop leaves the table stale until `sluice resync` "
        "accepts the new columns",
    )
    metadata_columns: bool = Field(
        default=True,
        description="add _sluice_lsn and _sluice_ts to mirror tables; "
        "a lake table that is there keeps the columns that it was made with until its next snapshot",
    )
    log_retention: Duration = Field(
        3600.0,
        ge=600,
        le=365 * 86400,
        description="how long the log of a lake table keeps versions that a checkpoint has replaced; never less "
        "than the table's own delta.logRetentionDuration. Time travel, and streams that read a lake table, can go "
        "back that far. Each check of a table lists its log",
    )
    vacuum_after: Duration = Field(
        7 * 86400.0,
        ge=3600,
        le=10 * 365 * 86400,
        description="how long VACUUM keeps a data file that no version of a lake table needs any more, or that "
        "none ever had; never less than lake.log_retention or the table's own "
        "delta.deletedFileRetentionDuration. No reader may read one version of a lake table for "
        "longer",
    )
    boundary_retention: Duration = Field(
        3600.0,
        ge=60,
        le=7 * 86400,
        description="how long all tables can be read as of one boundary after the next one was published. Logs "
        "and files that an offered boundary needs stay, whatever log_retention and vacuum_after are; "
        "each boundary is a "
        "small object in the lake",
    )


class ApplySettings(Section):
    """The Spark side."""

    spark_master: str = Field(
        "local[*]", min_length=1, description="Spark master: local[*], spark://..., yarn, k8s://..."
    )
    driver_memory: Size = Field(2048 * _MEBI, ge=512 * _MEBI, description="heap of the Spark driver")
    workers: int = Field(2, ge=1, le=64, description="how many tables are applied at the same time")
    poll: Duration = Field(
        0.25, ge=0.05, le=3600, description="time between two polls of the manifest, after a poll that found an entry"
    )
    idle_poll: Duration | None = Field(
        None,
        ge=0.05,
        le=3600,
        description="the longest time between two polls of the manifest. The time between two polls is a twentieth of "
        "the time since the last change. By default apply.poll on a local disk, and 30s on an object store; "
        "never less than apply.poll. An ingest on the same machine notifies the applier of each "
        "entry, so entries then do not wait for a poll",
    )
    freshness: Duration = Field(
        2.0,
        ge=0,
        le=LONGEST_FRESHNESS,
        description="the longest time that a change in the spool waits until a worker begins with its table; if the "
        "table's last window began longer ago than that, the worker begins at once",
    )
    complete_every: Duration = Field(
        5.0,
        ge=0,
        le=3600,
        description="the least time between two boundaries (apply/complete); each may cost a busy table one more "
        "window",
    )
    max_window: Size = Field(128 * _MEBI, ge=1 * _MEBI, description="bytes of segments in one window of one table")
    max_memory: Size = Field(
        256 * _MEBI,
        ge=16 * _MEBI,
        description="bytes of decoded changes that one worker folds at once; a larger window is spilled to local "
        "disk (TMPDIR)",
    )
    way: ApplyWay = Field(
        "auto",
        description="how windows are committed: direct, distributed or merge; auto chooses for each table and window",
    )
    key_cache: Size = Field(
        256 * _MEBI,
        ge=0,
        description="memory for the key columns of data files that direct commits search; keys that do not fit "
        "are kept on local disk (TMPDIR)",
    )
    maintenance_share: float = Field(
        0.05,
        ge=0,
        le=1,
        description="share of one worker's time that the maintenance of lake tables may use: joining files, "
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
        description="address of the applier's /metrics, /livez, /readyz, /startupz and /wait; off serves "
        "nothing. Port 0 uses any free port",
    )
    token_path: str = Field(
        "",
        description="file with a token that requests must carry, as bearer token or as password. The file is read for "
        "each request. The probes (/livez, /readyz, /startupz) need no token, and then answer without details",
    )
    runbook_url: Annotated[str, AfterValidator(optional_web_address)] = Field(
        "",
        description="address at which docs/runbooks is served. The status page then links to the runbook of each "
        "problem: this address, a slash, the name of the page and .md",
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
        500,
        ge=0,
        le=10_000,
        description="how many tables have their own metric series; all others are counted as _other",
    )
    tls_cert_path: str = Field(
        "",
        description="file with the certificate of the endpoints, and its chain, as PEM: they then speak TLS. The three "
        "files are read again when they change",
    )
    tls_key_path: str = Field("", description="file with the key of that certificate, as PEM without a password")
    tls_client_ca_path: str = Field(
        "",
        description="file with authorities, as PEM. Requests must present a client certificate from one of them. The "
        "probes (/livez, /readyz, /startupz) need none, and then answer without details",
    )

    traces: Annotated[str, AfterValidator(optional_web_address)] = Field(
        "",
        description="address of an OpenTelemetry collector that takes OTLP over HTTP, such as "
        "`http://127.0.0.1:4318/v1/traces`. Ingest and the applier send it spans: when each entry was received, stored "
        "and readable. By default they send none. It needs the extra `otel`",
    )
    traces_headers: dict[str, SecretStr] = Field(
        default_factory=dict, description="headers of these requests, such as a token; values are secrets"
    )

    lineage: Annotated[str, AfterValidator(optional_web_address)] = Field(
        "",
        description="address that takes OpenLineage events over HTTP, such as `http://127.0.0.1:5000/api/v1/lineage`. "
        "The applier sends it which tables feed which lake tables. By default it sends nothing",
    )
    lineage_headers: dict[str, SecretStr] = Field(
        default_factory=dict, description="headers of these requests, such as a token; values are secrets"
    )
    lineage_namespace: str = Field(
        "sluice", min_length=1, description="namespace of the OpenLineage job, whose name is that of the pipeline"
    )
    lineage_every: Duration = Field(
        300.0, ge=1, le=86400, description="time between two events of a run; each event is complete"
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
    catalog: CatalogSettings = Field(default_factory=lambda: CatalogSettings.model_validate({}))
    limits: LimitSettings = Field(default_factory=lambda: LimitSettings.model_validate({}))
    apply: ApplySettings = Field(default_factory=lambda: ApplySettings.model_validate({}))
    telemetry: TelemetrySettings = Field(default_factory=lambda: TelemetrySettings.model_validate({}))
    stop_timeout: Duration = Field(
        20.0,
        ge=2,
        le=3600,
        description="how long a stop (SIGTERM, Ctrl-C) may take after the signal: three fifths of it to finish "
        "what was received, the rest to stop without finishing. The server sends again at the next "
        "start what was not published. Set it below the grace period of whatever stops the process",
    )
    tables: dict[TableName, TableSettings] = Field(
        default_factory=dict, description="settings of single tables, by schema.table"
    )

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
            raise ValueError("lake.uri must not be inside the spool: tables and spool files would share names")
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
