"""Errors of a connection in the catalogue's words: where they came up, and why the stream had to be
begun again.
"""

from sluice.errors import (
    DecodeError,
    LimitReached,
    ManifestCorrupt,
    ProtocolViolation,
    ServiceError,
    SourceRefused,
    SourceUnavailable,
    StoreError,
    StoreUnavailable,
    WriterFenced,
)
from sluice.source.sessions import KnownSource, SlotDoubted, UnsendableRow
from sluice.source.unsendable_row import named


def component_of(error: ServiceError) -> str:
    """Where an error that ended a connection came up."""
    if isinstance(error, DecodeError | ProtocolViolation | LimitReached):
        return "decode"
    return "manifest" if isinstance(error, StoreError | ManifestCorrupt | WriterFenced) else "stream"


def reason_of(error: ServiceError) -> str:
    """Why a connection was lost."""
    if isinstance(error, SourceUnavailable):
        return error.reason
    return "store_unavailable" if isinstance(error, StoreUnavailable) else "other"


def asks_facts(error: ServiceError) -> bool:
    """Whether the server's words leave open what is wrong: with the slot, or with the row of which table."""
    return isinstance(error, SlotDoubted | UnsendableRow)


def by_facts(error: ServiceError, source: KnownSource) -> ServiceError:
    """The error for a person to act on, once the catalog has nothing against the slot."""
    return named(source, error) if isinstance(error, UnsendableRow) else SourceRefused(str(error))
