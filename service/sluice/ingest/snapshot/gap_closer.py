"""Closes the gaps of tables, with rows that were compared and read by somebody else.

Invariant: only ingest writes the manifest, and the manifest itself refuses rows that do not close the
gap that is open: `reduce` compares the table's generation and columns, the gap, and the position. Positions mean
something on one timeline alone: rows that were read before a promotion may be nowhere any more. The
files are copied under names of our own epoch first, so that nothing can take them away. Doing a
request twice is harmless.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import replace

from sluice import faults
from sluice.contract import keys
from sluice.contract.entries import Repair, Segment
from sluice.errors import ManifestCorrupt, ObjectMissing, SourceUnavailable, StoreRefused, UsageError
from sluice.ingest.snapshot.repairer import Repairer
from sluice.lsn import show


class GapCloser(Repairer):
    """Closes gaps as well."""

    def close_gap(self, repair: Repair, read_from: Sequence[tuple[str, ...]]) -> None:
        """Puts `repair` into the manifest, unless it is there, and removes the files that came with the
        request. `read_from` has the server and the timeline of its rows. Raises UsageError when it closes no gap (any
        more), SourceUnavailable when it may work later.
        """
        try:
            self._close(repair, read_from)
        except UsageError:
            self._remove(repair)
            raise
        self._remove(repair)

    def _close(self, repair: Repair, read_from: Sequence[tuple[str, ...]]) -> None:
        state = self._log.stored.tables.get(repair.table_id)
        name = state.source_name if state is not None else f"table {repair.table_id}"
        if any(gap.closed and gap.seq == repair.gap_seq for gap in (state.gaps if state is not None else ())):
            return
        if state is None or state.gap is None or state.gap.seq != repair.gap_seq:
            raise UsageError(f"{name} has no such gap any more", hint="`sluice tables` shows its state")
        opened = self._log.stored.opened
        if opened is None or list(read_from) != [(opened.system_identifier, str(opened.timeline))]:
            raise UsageError(
                f"the rows that close the gap of {name} were read from another server, or before its promotion",
                hint="`sluice verify --repair` reads them again",
            )
        if not self._committer.wait_through(repair.as_of_lsn):
            raise SourceUnavailable("closing a gap was stopped", hint="it is done after the next start")
        self._append_closing(repair, name)

    def _append_closing(self, repair: Repair, name: str) -> None:
        segments = tuple(self._copied(segment, repair.table_id) for segment in repair.segments)
        faults.point("gap.append.before")
        try:
            self._append(replace(repair, segments=segments))
        except ManifestCorrupt as error:
            raise UsageError(
                f"what was read of {name} does not close its gap: {error}",
                hint="`sluice verify --repair` reads it again; if its columns changed, `sluice resync` it",
            ) from error
        faults.point("gap.append.after")
        self._logger.info(
            "gap closed",
            table=name,
            rows=sum(segment.rows for segment in segments),
            lsn=show(repair.as_of_lsn),
        )

    def _copied(self, segment: Segment, table_id: str) -> Segment:
        if not keys.is_repair_rows(segment.key):
            raise UsageError(
                "a request to close a gap names an object that is no file of repair rows", hint="verify the table again"
            )
        try:
            data = self._store.get(segment.key)
        except ObjectMissing as error:
            raise UsageError(
                f"rows that were read again are gone: {segment.key}", hint="`sluice verify --repair` reads them again"
            ) from error
        if len(data) != segment.bytes or hashlib.sha256(data).hexdigest() != segment.sha256:
            raise UsageError(f"rows that were read again are damaged: {segment.key}", hint="check the object store")
        key = keys.segment(table_id, self._epoch, next(self._numbers))
        self._store.put(key, data)
        return replace(segment, key=key)

    def _remove(self, repair: Repair) -> None:
        """The store need not let them go: they are collected later, by who may."""
        try:
            for segment in repair.segments:
                if keys.is_repair_rows(segment.key):
                    self._store.delete(segment.key)
        except StoreRefused as error:
            self._logger.warning("rows of a repair that is done stay for now", error=str(error), hint=error.hint)
