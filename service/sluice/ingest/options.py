"""What one ingest process is configured with, as plain values."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

from sluice.ingest.assemble.assembler import AssemblerLimits
from sluice.ingest.encode.builder import BuilderLimits
from sluice.ingest.receive.stream import StreamLimits
from sluice.ingest.snapshot.chunk_round import SnapshotLimits
from sluice.source.facts import ServerFacts
from sluice.source.sessions import SourceOptions
from sluice.tables.messages import prefix_filter
from sluice.tables.policies import Policies

STOP_SECONDS = 20.0
"""All that a stop may take, below the 30 s that Kubernetes gives. Nothing is lost by exiting: what
was not acknowledged is sent again.
"""


@dataclass(frozen=True, slots=True)
class FlushPolicy:
    """When a unit is cut: as soon as nothing is under way and `min_interval_s` after the one before; by age after
    `max_delay_s`. How often an idle advance may cost a manifest entry.
    """

    max_delay_s: float = 2.0
    min_interval_s: float = 0.0
    progress_interval_s: float = 20.0


@dataclass(frozen=True, slots=True)
class IngestOptions:
    """The command line reads them from settings. `tables` are patterns over schema.table; none
    means the whole publication. The catalog is looked at every `watch_interval_s` at least, requests of operators
    every `request_interval_s`.
    """

    pipeline: str
    source: SourceOptions
    tables: tuple[str, ...] = ()
    policies: Policies = field(default_factory=Policies)
    streaming: Literal["off", "on", "parallel", "auto"] = "auto"
    two_phase: bool = False
    messages: bool = False
    message_prefixes: tuple[str, ...] = ()
    origin: Literal["any", "none"] = "any"
    builder: BuilderLimits = field(default_factory=BuilderLimits)
    open_limits: AssemblerLimits = field(default_factory=AssemblerLimits)
    stream: StreamLimits = field(default_factory=StreamLimits)
    flush: FlushPolicy = field(default_factory=FlushPolicy)
    snapshot: SnapshotLimits = field(default_factory=SnapshotLimits)
    slot_wait_s: float | None = None
    watch_interval_s: float = 10.0
    request_interval_s: float = 1.0
    stop_s: float = STOP_SECONDS
    instance: str = ""

    @property
    def keeps_message(self) -> Callable[[str], bool]:
        """Whether a logical message is wanted, by its prefix."""
        return prefix_filter(self.message_prefixes, kept=self.messages)

    def hears_ddl(self, server: ServerFacts) -> bool:
        """Whether the stream has what the server signals. Where transactions with an origin are left out, so are
        their signals.
        """
        return server.signals_ddl and self.origin == "any"

    @property
    def query_sessions(self) -> int:
        """How many sessions without replication may be open at once: of the decoder, the catalog watch, the status
        and the load; of a snapshot, its holder, the look at its end and two for each connection that reads.
        """
        return 6 + 2 * self.snapshot.connections
