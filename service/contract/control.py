"""What operators ask of a running pipeline: one object below `control/` for each request, created by the command line, removed by ingest when it is done.

Requests are wishes, not state: what became of one is in the manifest, or, when it could not be carried out, in a Refusal below `control/refused/`. Ingest
writes refusals, and removes one when the table is copied after all, or when it is a day old.
"""

import json
from dataclasses import asdict, dataclass

from service.errors import FormatTooNew, ManifestCorrupt

FORMAT_VERSION = 1
COPY = "copy"


@dataclass(frozen=True, slots=True)
class Request:
    """`action` is COPY: begin the named table again from a new snapshot. `requested_at` is ISO 8601 UTC, for people."""

    action: str
    schema_name: str
    table_name: str
    requested_at: str

    def encode(self) -> bytes:
        return json.dumps({"format_version": FORMAT_VERSION, **asdict(self)}, separators=(",", ":")).encode()

    @staticmethod
    def decode(data: bytes) -> "Request":
        """Raises ManifestCorrupt or FormatTooNew."""
        try:
            value = json.loads(data)
            version = value.pop("format_version")
            request = Request(**value)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ManifestCorrupt("an object below control/ is not a request of the expected form") from error
        if version != FORMAT_VERSION or request.action != COPY:
            raise FormatTooNew(f"a request below control/ has version {version} and asks for {request.action!r}, which this Sluice does not know")
        return request


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a request could not be carried out. `table` is for people, as schema.table; `refused_at` is ISO 8601 UTC."""

    table: str
    reason: str
    hint: str
    refused_at: str

    def encode(self) -> bytes:
        return json.dumps({"format_version": FORMAT_VERSION, **asdict(self)}, separators=(",", ":")).encode()

    @staticmethod
    def decode(data: bytes) -> "Refusal":
        """Raises ManifestCorrupt or FormatTooNew."""
        try:
            value = json.loads(data)
            version = value.pop("format_version")
            refusal = Refusal(**value)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ManifestCorrupt("an object below control/refused/ is not of the expected form") from error
        if version != FORMAT_VERSION:
            raise FormatTooNew(f"an object below control/refused/ has version {version}, which this Sluice does not know")
        return refusal
