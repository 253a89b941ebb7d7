"""What stays of a table that is gone, when nothing will refer to it any more. Pure.

Invariant: should its id come back, no generation and no schema version is used twice, and its entries
from before cannot be mistaken for those of the new one. Whether it is time is for the writer to know
(`ingest.tables.forgetting`).
"""

from dataclasses import replace
from typing import TYPE_CHECKING

from sluice.contract.entries import Table
from sluice.contract.resyncs import Resyncs

if TYPE_CHECKING:
    from sluice.manifest.state import TableState


def forgotten(known: "TableState", said: Table, *, seq: int) -> "TableState":
    """Of a table that left and whose entry `seq` says so again, without a reason."""
    return replace(
        known,
        schema_name=said.schema_name,
        table_name=said.table_name,
        first_name=(said.schema_name, said.table_name),
        why=None,
        lsn=0,
        schemas={},
        schema_lsns={known.next_version - 1: 0},
        relfilenode=0,
        fingerprint="",
        snapshot=None,
        unsent_lsn=0,
        cause="",
        resync_at="",
        resyncs=Resyncs(),
        gaps=(),
        stated_seq=seq,
    )
