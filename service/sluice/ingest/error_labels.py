"""Errors of a connection in the catalogue's words: where they came up, and why the stream had to be
begun again.
"""

from sluice.errors import (
    DecodeError,
    LimitReached,
    ManifestCorrupt,
    ProtocolViolation,
    ServiceError,
    SourceUnavailable,
    StoreError,
    StoreUnavailable,
    WriterFenced,
)
from sluice.source.sessions import SlotDoubted


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


def doubts_slot(error: ServiceError) -> bool:
    """Whether only the catalog can say what is wrong with the slot."""
    return isinstance(error, SlotDoubted)
