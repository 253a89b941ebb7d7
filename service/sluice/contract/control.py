"""What operators ask of a running pipeline: one object below `control/` for each request, created
by the command line, removed by ingest when it is done.

Requests are wishes, not state: what became of one is in the manifest, or, when it could not be
carried out, in a Refusal below `control/refused/`. Ingest writes refusals, and removes one when
its cause is gone, or when it is a day old.
"""

from dataclasses import dataclass
from datetime import datetime

from sluice import lsn
from sluice.contract import codec
from sluice.contract.entries import Repair
from sluice.errors import FormatTooNew, ManifestCorrupt, UsageError

FORMAT_VERSION = 1
ADD, REMOVE, RESYNC, PAUSE, RESUME, REPAIR, ADVANCE = ACTIONS = (
    "add", "remove", "resync", "pause", "resume", "repair", "advance",
)  # fmt: skip
MOST_KEYS = 5_000
"""In one request."""
REPAIR_READ_SECONDS, REPAIR_KEPT_SECONDS = 12 * 3600.0, 24 * 3600.0
"""How long the rows of a repair may take to be read, and after which time they are nobody's when no request names
them. The difference is for clocks that do not agree.
"""
REFUSAL_SECONDS = 86_400.0
"""How long a refusal is kept and shown."""


@dataclass(frozen=True, slots=True)
class Request:
    """What is wanted of one table; `action` is one of ACTIONS. ADD and REMOVE: the publication and
    `source.tables` have been changed, take that into account now. RESYNC: begin it again from a new
    snapshot. PAUSE and RESUME: stop and go on applying it. REPAIR: read the rows with these `keys` again,
    texts of the key's columns in the order of the schema; with `repair` the rows were read already, from the server
    and on the timeline that `keys` is, and close a gap: its segments are below `keys.REPAIRS`. ADVANCE, of no table:
    somebody waits until the manifest has passed the position that `keys` is, also where nothing changes; a hint,
    which may be lost. `requested_at` is ISO 8601 UTC, for people.
    """

    action: str
    schema_name: str
    table_name: str
    requested_at: str
    keys: tuple[tuple[str, ...], ...] = ()
    repair: Repair | None = None

    @property
    def awaited(self) -> int:
        """The LSN of an ADVANCE. Raises UsageError for keys that are none."""
        if [len(key) for key in self.keys] != [1]:
            raise UsageError("a request to advance names one position")
        return lsn.parse(self.keys[0][0])

    def encode(self) -> bytes:
        return codec.encode_versioned(self, FORMAT_VERSION)

    @staticmethod
    def decode(data: bytes) -> "Request":
        """Anybody can write below `control/`: raises nothing but ManifestCorrupt and FormatTooNew."""
        request = codec.decode_versioned(Request, data, version=FORMAT_VERSION, what="an object below control/")
        if request.action not in ACTIONS:
            raise FormatTooNew(
                f"a request below control/ asks for {request.action[:40]!r}, which this Sluice does not know"
            )
        return request


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a request could not be carried out. `action` is that of the request, empty for one of
    unknown form. `table` is for people, as schema.table. `refused_at` is ISO 8601 with its offset
    from UTC.
    """

    action: str
    table: str
    reason: str
    hint: str
    refused_at: str

    def encode(self) -> bytes:
        return codec.encode_versioned(self, FORMAT_VERSION)

    @staticmethod
    def decode(data: bytes) -> "Refusal":
        """Anybody can write below `control/`: raises nothing but ManifestCorrupt and FormatTooNew."""
        what = "an object below control/refused/"
        refusal = codec.decode_versioned(Refusal, data, version=FORMAT_VERSION, what=what)
        try:
            aware = datetime.fromisoformat(refusal.refused_at).tzinfo is not None
        except ValueError as error:
            raise ManifestCorrupt(f"{what} has a time that cannot be read") from error
        if not aware:
            raise ManifestCorrupt(f"{what} has a time without its zone")
        return refusal
