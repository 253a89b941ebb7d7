"""The sections about the spool and about what the source may do at once. See `model`."""

from typing import Annotated, Self

from pydantic import AfterValidator, Field, SecretStr, model_validator

from sluice.settings.addresses import spool_uri
from sluice.settings.section import Section
from sluice.settings.values import Duration, Retention, Size

_KIBI, _MEBI, _GIBI = 1024, 1024**2, 1024**3


class SpoolSettings(Section):
    """Where committed transactions become durable before PostgreSQL may forget them."""

    uri: Annotated[str, AfterValidator(spool_uri)] = Field(
        description="object store prefix; the pipeline's name is added below it"
    )
    options: dict[str, SecretStr] = Field(
        default_factory=dict,
        description="options of the object store client, such as aws_endpoint, aws_region, aws_access_key_id; "
        "values are secrets",
    )
    max_delay: Duration = Field(
        2.0,
        ge=0.01,
        le=3600,
        description="the longest time that a committed change waits for its manifest entry while an earlier entry is "
        "being written; if no entry is being written, it does not wait",
    )
    min_interval: Duration | None = Field(
        None,
        ge=0,
        le=3600,
        description="the least time between two manifest entries that are not full, at most max_delay; it limits "
        "the requests to a paid store. By default 0 on a local disk, and 1s on an object store, or "
        "max_delay if that is less. After a burst of 30 entries the time between entries is twice as "
        "long, and at least 500ms",
    )
    max_bytes: Size = Field(
        128 * _MEBI,
        ge=64 * _KIBI,
        description="received bytes after which a manifest entry is written even if max_delay has not passed",
    )
    max_rows: int = Field(1_000_000, ge=1, description="rows after which a manifest entry is written")
    transaction_memory: Size = Field(
        32 * _MEBI,
        ge=1 * _MEBI,
        description="received bytes of one open transaction that ingest holds in memory; if there are more, it writes "
        "the transaction's rows to the object store before the commit",
    )
    progress_interval: Duration | None = Field(
        None,
        ge=1,
        le=3600,
        description="how often a manifest entry is written while the tables do not change, so that the source can "
        "free its WAL. By default 20s on a local disk, and 5m on an object store; sooner when the server has written "
        "256 MiB of WAL since the last entry",
    )
    retention: Retention = Field(
        604800.0,
        ge=0,
        validate_default=False,
        description="how long segments and entries stay after every table has them in the lake: until_applied, a "
        "duration, or forever; the applier deletes them afterwards",
    )
    consumer_hold: Duration = Field(
        86400.0,
        ge=0,
        le=10 * 365 * 86400,
        description="how long pruning waits for a consumer (the option `consumer` of Spark's data source) that reports "
        "nothing. After that, what it has not read may be deleted, and the consumer cannot continue",
    )

    @model_validator(mode="after")
    def _an_interval_that_can_be_kept(self) -> Self:
        if self.min_interval is not None and self.min_interval > self.max_delay:
            raise ValueError("min_interval is more than max_delay; raise max_delay too, or lower min_interval")
        return self

    @property
    def is_remote(self) -> bool:
        """Whether requests cost money."""
        return not self.uri.startswith(("file:", "memory:"))

    @property
    def advance_interval(self) -> float:
        """Seconds of `progress_interval`, or what is right for the store."""
        if self.progress_interval is not None:
            return self.progress_interval
        return 300.0 if self.is_remote else 20.0

    @property
    def entry_interval(self) -> float:
        """Seconds of `min_interval`, or what is right for the store."""
        if self.min_interval is not None:
            return self.min_interval
        return min(1.0, self.max_delay) if self.is_remote else 0.0


class LimitSettings(Section):
    """What the source may do at once before the pipeline stops, by name and with nothing lost.
    PostgreSQL's own limits are in service/sluice/protocol/limits.py.
    """

    open_streams: int = Field(
        4096, ge=1, le=1_000_000, description="how many streamed transactions may be open at the same time"
    )
    aborted_intervals: int = Field(
        1_000_000,
        ge=10_000,
        le=100_000_000,
        description="how many ranges of consecutive ids of rolled-back subtransactions ingest remembers, in all open "
        "streamed transactions together; 8 bytes each",
    )
    transaction: Size = Field(
        256 * _GIBI,
        ge=1 * _MEBI,
        description="bytes that one transaction that has not ended may use in the object store",
    )
    staged: Size = Field(1024 * _GIBI, ge=1 * _MEBI, description="the same for all transactions that have not ended")
