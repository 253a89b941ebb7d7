"""Whether the spool is whole: every entry chained, every object that an entry names there with the
size and, on request, the hash it names.

Reads everything and writes nothing; needs neither the source nor the lake nor a running pipeline.
Findings are collected, not raised, so that one look names all of them; only a break of the chain
ends the look, for nothing behind it can be trusted. Objects that garbage collection pruned, and
said so before it deleted the first, are counted and not looked at.
"""

import hashlib
from dataclasses import dataclass, field

from sluice.contract import keys
from sluice.contract.entries import Opened, Segment, digest
from sluice.contract.horizon import Horizon
from sluice.errors import FormatTooNew, ManifestCorrupt, ObjectMissing
from sluice.manifest import horizon
from sluice.manifest.leftovers import referenced
from sluice.manifest.reader import read_entries
from sluice.manifest.state import reduce
from sluice.manifest.values import PipelineState
from sluice.store.base import ObjectStore
from sluice.store.calls import together

THREADS = 8
_TOGETHER = 256
"""Objects looked at between two steps along the chain: what bounds memory."""


@dataclass(frozen=True, slots=True)
class Flaw:
    """What is wrong with the object `key`, which entry `seq` names; an empty key means the entry
    itself.
    """

    seq: int
    key: str
    what: str


@dataclass(slots=True)
class SpoolReport:
    """The chain was followed from behind entry `base_seq`, 0 for its beginning. `state` is that of the
    last entry that continues it; `bytes` counts the objects that
    are there, `pruned` those that need not be: of entries through `horizon`.
    """

    horizon: Horizon = horizon.NONE
    base_seq: int = 0
    state: PipelineState = field(default_factory=PipelineState)
    objects: int = 0
    bytes: int = 0
    pruned: int = 0
    flaws: list[Flaw] = field(default_factory=list)


def verify(store: ObjectStore, *, content: bool) -> SpoolReport:
    """Follows the manifest from its first entry, or from the first that was not pruned. With `content`
    every object is read and its sha256 compared, else its size. Raises StoreError.
    """
    suspected: set[str] = set()
    while True:
        verdict = _examine(store, content=content)
        gone_seq = _horizon(store)[0].through_seq
        if not verdict.flaws or gone_seq <= verdict.horizon.through_seq:
            return verdict
        # What a collector pruned while we looked is called missing, but the next look passes it by: what is missing
        # then as well is lost. Pruning may be quicker than each look.
        named = {flaw: flaw.key or str(flaw.seq) for flaw in verdict.flaws}
        if certain := [flaw for flaw, name in named.items() if flaw.seq > gone_seq or name in suspected]:
            verdict.flaws = certain
            return verdict
        suspected = set(named.values())


def _examine(store: ObjectStore, *, content: bool) -> SpoolReport:
    pruned, flaws = _horizon(store)
    verdict = SpoolReport(pruned, flaws=flaws)
    seen: set[str] = set()
    passed: set[str] = set()
    waiting: list[tuple[int, Segment]] = []

    def examine() -> None:
        for flaw in together(lambda item: _flaw(store, *item, content=content), waiting, threads=THREADS):
            verdict.flaws += [flaw] if flaw else []
        verdict.objects += len(waiting)
        verdict.bytes += sum(segment.bytes for _, segment in waiting)
        waiting.clear()

    try:
        verdict.state = base = horizon.base(store)
        verdict.base_seq = base.seq
        for entry, sha256 in read_entries(store, after_seq=base.seq, previous_sha256=base.previous_sha256 or None):
            verdict.state = reduce(verdict.state, entry, sha256)
            if isinstance(entry.body, Opened):
                verdict.flaws += _fence_flaw(store, entry.seq, sha256)
            segments = referenced(entry.body)
            if entry.seq <= pruned.through_seq:
                passed.update(segment.key for segment in segments)
                segments = _still_prepared(verdict.state) if entry.seq == pruned.through_seq else ()
            fresh = [segment for segment in segments if segment.key not in seen]
            seen.update(segment.key for segment in fresh)
            waiting += [(entry.seq, segment) for segment in fresh]
            if len(waiting) >= _TOGETHER:
                examine()
    except (ManifestCorrupt, FormatTooNew) as error:
        verdict.flaws.append(Flaw(verdict.state.seq + 1, "", str(error)))
    examine()
    verdict.pruned = len(passed - seen)
    return verdict


def _fence_flaw(store: ObjectStore, seq: int, sha256: str) -> list[Flaw]:
    """Every `opened` stays an object of its own: it stops the writer of the epoch before."""
    key = keys.manifest_entry(seq)
    try:
        same = digest(store.get(key)) == sha256
    except ObjectMissing:
        same = False
    what = "is missing or has other content: an older writer that is still paused could continue to write"
    return [] if same else [Flaw(seq, key, what)]


def _horizon(store: ObjectStore) -> tuple[Horizon, list[Flaw]]:
    """What was pruned; nothing, and a flaw, when that statement cannot be trusted."""
    try:
        return horizon.newest(store), []
    except (ManifestCorrupt, FormatTooNew) as error:
        return horizon.NONE, [Flaw(0, keys.HORIZONS, str(error))]


def _still_prepared(state: PipelineState) -> tuple[Segment, ...]:
    return tuple(part.segment for transaction in state.prepared.values() for part in transaction.parts)


def _flaw(store: ObjectStore, seq: int, segment: Segment, *, content: bool) -> Flaw | None:
    size = store.size(segment.key)
    if size is None:
        return Flaw(seq, segment.key, "is missing")
    if size != segment.bytes:
        return Flaw(seq, segment.key, f"has {size} bytes instead of {segment.bytes}")
    if not content:
        return None
    try:
        same = hashlib.sha256(store.get(segment.key)).hexdigest() == segment.sha256
    except ObjectMissing:
        return Flaw(seq, segment.key, "is missing")
    return None if same else Flaw(seq, segment.key, "does not have the content that was written")
