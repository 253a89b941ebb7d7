"""Asks the running ingest to read rows again that a comparison found to differ.

Invariant: nothing is written to the lake or the manifest here. A request holds keys and no other
value.
"""

import time
import uuid
from collections.abc import Sequence
from datetime import UTC, datetime

from sluice.contract import keys
from sluice.contract.control import MOST_KEYS, REPAIR, Refusal, Request
from sluice.errors import ApplyError, ObjectMissing, UsageError, VerificationFailed
from sluice.operate.compare.comparing import Comparison
from sluice.printable import counted
from sluice.store.base import ObjectStore
from sluice.store.calls import create_named
from sluice.store.doorbell import Doorbell

POLL_SECONDS = 1.0


def repair(store: ObjectStore, verdict: Comparison, *, seconds: float) -> int:
    """Has all rows of `verdict` that differ read again; returns how many requests that took, when their
    rows are in the manifest. Raises VerificationFailed when ingest refuses or too many rows differ, ApplyError when it
    does not take them within `seconds`, UsageError for a table without a key.
    """
    wanted = keys_wanted(verdict, len(verdict.key_columns))
    asked = []
    for at in range(0, len(wanted), MOST_KEYS):
        request = Request(
            REPAIR,
            verdict.schema_name,
            verdict.table_name,
            datetime.now(UTC).isoformat(timespec="seconds"),
            tuple(wanted[at : at + MOST_KEYS]),
        )
        asked.append(keys.control_request(uuid.uuid4().hex))
        create_named(store, asked[-1], request.encode())
        Doorbell(store, "ingest").ring()
    await_done(store, asked, verdict, seconds=seconds)
    return len(asked)


def keys_wanted(verdict: Comparison, width: int) -> list[tuple[str, ...]]:
    """The keys, of `width` columns, of all rows that differ. Raises UsageError where one has none, VerificationFailed
    where not all are known.
    """
    if not verdict.all_listed:
        raise VerificationFailed(
            f"more than {counted(len(verdict.difference), 'row')} of {verdict.name} differ, which is too many to read "
            "by their keys",
            hint=f"`sluice resync {verdict.source_name}` takes a new snapshot",
        )
    rows = (*verdict.difference.changed, *verdict.difference.missing, *verdict.difference.extra)
    wanted = sorted({tuple(text for text in row.key if text is not None) for row in rows})
    if not width or any(len(key) != width for key in wanted):
        raise UsageError(f"{verdict.name} has no key to repair its rows by", hint=f"`sluice resync {verdict.name}`")
    return wanted


def await_done(store: ObjectStore, asked: Sequence[str], verdict: Comparison, *, seconds: float) -> None:
    """Returns when ingest has carried out all that was `asked`. Raises VerificationFailed when it refuses,
    ApplyError when it does not take them within `seconds`.
    """
    deadline = time.monotonic() + seconds
    while (waiting := set(asked) & set(store.list(keys.CONTROL))) and time.monotonic() < deadline:
        time.sleep(POLL_SECONDS)
    if waiting:
        raise ApplyError(
            f"ingest has not carried out {len(waiting)} of {len(asked)} repairs of {verdict.name} in {seconds:g}s",
            hint="they are carried out when ingest runs; then verify again",
        )
    for key in asked:
        try:
            refusal = Refusal.decode(store.get(keys.refused_request(key)))
        except ObjectMissing:
            continue
        raise VerificationFailed(f"{verdict.name} was not repaired: {refusal.reason}", hint=refusal.hint)
