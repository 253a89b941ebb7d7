"""What operators ask of a running pipeline: one object below `control/` for each request, created
by the command line, removed by ingest when it is done.

Requests are wishes, not state: what became of one is in the manifest, or, when it could not be
carried out, in a Refusal below `control/refused/`. Ingest writes refusals, and removes one when the
table is copied after all, or when it is a day old.
"""

import json
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any

from sluice.errors import FormatTooNew, ManifestCorrupt

FORMAT_VERSION = 1
COPY = "copy"
REFUSAL_SECONDS = 86_400.0
"""How long a refusal is kept and shown."""


@dataclass(frozen=True, slots=True)
class Request:
    """`action` is COPY: begin the named table again from a new snapshot. `requested_at` is ISO 8601
    UTC, for people.
    """

    action: str
    schema_name: str
    table_name: str
    requested_at: str

    def encode(self) -> bytes:
        return json.dumps({"format_version": FORMAT_VERSION, **asdict(self)}, separators=(",", ":")).encode()

    @staticmethod
    def decode(data: bytes) -> "Request":
        """Raises ManifestCorrupt or FormatTooNew."""
        version, fields = _fields(data, "control/")
        try:
            request = Request(**fields)
        except TypeError as error:
            raise _malformed("control/") from error
        if version != FORMAT_VERSION or request.action != COPY:
            raise FormatTooNew(
                f"a request below control/ has version {version} and asks for {request.action!r}, "
                "which this Sluice does not know"
            )
        return request


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a request could not be carried out. `table` is for people, as schema.table; `refused_at`
    is ISO 8601 with its offset from UTC.
    """

    table: str
    reason: str
    hint: str
    refused_at: str

    def encode(self) -> bytes:
        return json.dumps({"format_version": FORMAT_VERSION, **asdict(self)}, separators=(",", ":")).encode()

    @staticmethod
    def decode(data: bytes) -> "Refusal":
        """Raises ManifestCorrupt or FormatTooNew."""
        version, fields = _fields(data, "control/refused/")
        try:
            refusal = Refusal(**fields)
            aware = datetime.fromisoformat(refusal.refused_at).tzinfo is not None
        except (TypeError, ValueError) as error:
            raise _malformed("control/refused/") from error
        if not aware:
            raise _malformed("control/refused/")
        if version != FORMAT_VERSION:
            raise FormatTooNew(
                f"an object below control/refused/ has version {version}, which this Sluice does not know"
            )
        return refusal


def _fields(data: bytes, folder: str) -> tuple[Any, dict[str, str]]:
    """The version of an object below `folder` and its other fields, all of them texts. Anybody can
    write there: nothing but ManifestCorrupt is raised.
    """
    try:
        value = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise _malformed(folder) from error
    if not isinstance(value, dict) or "format_version" not in value:
        raise _malformed(folder)
    version = value.pop("format_version")
    if not all(isinstance(field, str) for field in value.values()):
        raise _malformed(folder)
    return version, value


def _malformed(folder: str) -> ManifestCorrupt:
    return ManifestCorrupt(f"an object below {folder} is not of the expected form")
