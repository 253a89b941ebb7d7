"""Logical messages, to rows of their table.

Invariant: content stays bytes, as emitted.
"""

from collections.abc import Sequence

import numpy as np

from sluice.ingest.assemble.assembly import MessageRun
from sluice.ingest.encode.rows import EncodedRows, encode_values
from sluice.tables.messages import IN_DOUBT, SCHEMA


def encode_messages(runs: Sequence[MessageRun]) -> EncodedRows:
    """Rows of SCHEMA for messages that share their fate: all of ended transactions, all standing
    alone (which have no commit time), or all of one body.
    """
    messages, first = [run.message for run in runs], runs[0]
    return encode_values(
        SCHEMA,
        {
            "lsn": [message.lsn for message in messages],
            "prefix": [message.prefix for message in messages],
            "transactional": [message.transactional for message in messages],
            "content": [message.content for message in messages],
            IN_DOUBT: [run.in_doubt for run in runs],
        },
        ordinal=np.array([run.ordinal for run in runs], np.int64),
        xid=np.array([run.xid for run in runs], np.int64),
        lsn=np.array([run.lsn for run in runs], np.int64) if first.lsn is not None else None,
        commit_time_us=np.array([run.commit_time_us for run in runs], np.int64)
        if first.commit_time_us is not None
        else None,
    )


def settled(rows: EncodedRows, *, doubt_until: int) -> EncodedRows:
    """Messages of a streamed transaction that has committed: in doubt stay those that a
    subtransaction which rolled back later may have emitted.
    """
    return rows.cleared(IN_DOUBT, from_ordinal=doubt_until)
