"""Objects that nothing names: bodies of transactions that never ended, files of writers that died
before their entry, rows of repairs that were never asked for, probes that ended in the middle. Found and deleted.

Invariant: an object is deleted only if its epoch is over (older than our own, whose `opened` entry
is durable) and no entry since the one that opened its epoch names it. No entry can name it later: a
writer of that epoch can append nothing any more, and a later entry refers to an older object only
if an entry of the object's own epoch did before it (a prepared transaction). Objects of our own
epoch and of newer ones are never looked at, nor is any key of another form. Rows of a repair are deleted
only if no request names them and none can any more: who reads them asks within half the time. It runs beside
everything else: it writes nothing, and whatever goes wrong leaves objects behind for the next
start, never more than that.
"""

import threading
import time
from collections.abc import Iterable, Iterator
from itertools import chain

from sluice import faults
from sluice.contract import keys
from sluice.contract.control import REPAIR_KEPT_SECONDS, Request
from sluice.contract.entries import Body, Changes, Opened, Progress, Repair, Segment, Snapshot, Table
from sluice.errors import FormatTooNew, ManifestCorrupt, ObjectMissing, StoreRefused
from sluice.manifest import horizon
from sluice.manifest.reader import read_backwards
from sluice.manifest.values import PipelineState
from sluice.store import probe
from sluice.store.base import ObjectStore

LOOK_BACK_ENTRIES = 100_000
"""Older epochs are looked at until so many entries were read, the newest of them always whole: a
start must not read years of entries.
"""

Named = dict[int, bytearray]
"""Epoch to one byte per counter: 1 where an entry names that object. Counters are dense, so this is
a byte for each object of the epochs.
"""


def collect(store: ObjectStore, *, opened_seq: int, epoch: int, table_ids: Iterable[str], stop: threading.Event) -> int:
    """Deletes what epochs before `epoch`, and repairs that died, left behind and returns how many objects that were.

    `opened_seq` is the number of our own `opened` entry, which must be durable; `table_ids` are the
    tables known at that point. Returns early on `stop`. Raises ManifestCorrupt if the entries
    before ours cannot be read, StoreError if the store does not answer or does not let us delete.
    """
    deleted = 0
    dead = unnamed(store, opened_seq=opened_seq, epoch=epoch, table_ids=table_ids, stop=stop)
    for key in chain(dead, probe.abandoned(store)):
        if stop.is_set():
            break
        faults.point("leftover.delete.before")
        store.delete(key)
        deleted += 1
    return deleted


def unnamed(
    store: ObjectStore, *, opened_seq: int, epoch: int, table_ids: Iterable[str], stop: threading.Event
) -> Iterator[str]:
    """Keys of what `collect` deletes, under the same conditions, but for those of probes."""
    named = _named(store, horizon.base(store), before_seq=opened_seq, stop=stop)
    return chain(_candidates(store, named, sorted(table_ids), before_epoch=epoch), _repair_rows(store))


def referenced(body: Body) -> tuple[Segment, ...]:
    """The segments that an entry names, and thereby keeps. Every kind of entry has its place here."""
    match body:
        case Changes():
            return (*body.segments, *(part.segment for transaction in body.prepared for part in transaction.parts))
        case Snapshot() | Repair():
            return body.segments
        case Opened() | Progress() | Table():
            return ()


def _named(store: ObjectStore, base: PipelineState, *, before_seq: int, stop: threading.Event) -> Named:
    """What entries name, by epoch, of epochs that were read back to their very `opened` entry, or to
    where the log begins since it was pruned; nothing when stopped.
    """
    whole: Named = {}
    reading: Named = {}
    for entry in read_backwards(store, after_seq=base.seq, before_seq=before_seq):
        if stop.is_set():
            return {}
        if whole and before_seq - entry.seq > LOOK_BACK_ENTRIES:
            return whole
        for segment in referenced(entry.body):
            _name(reading, segment.key)
        if isinstance(entry.body, Opened):
            whole[entry.epoch] = reading.pop(entry.epoch, bytearray())
    if base.seq:
        # What earlier entries named is deleted already, but for what is still prepared.
        for transaction in base.prepared.values():
            for part in transaction.parts:
                _name(reading, part.segment.key)
        whole.update({base.epoch: bytearray(), **reading})
    return whole


def _name(named: Named, key: str) -> None:
    placed = keys.placed(key)
    if placed is not None:
        _mark(named.setdefault(placed[0], bytearray()), placed[1])


def _mark(counters: bytearray, counter: int) -> None:
    if counter >= len(counters):
        counters.extend(bytes(counter + 1 - len(counters)))
    counters[counter] = 1


def _candidates(store: ObjectStore, named: Named, table_ids: list[str], *, before_epoch: int) -> Iterator[str]:
    """Keys of objects that nothing names."""
    if not named:
        return
    oldest = min(named)
    listings = [store.list(keys.stage_folder(epoch)) for epoch in sorted(named)]
    listings += [
        store.list(keys.segment_folder(table_id), after=keys.segment(table_id, oldest, 0)) for table_id in table_ids
    ]
    for listing in listings:
        for key in listing:
            placed = keys.placed(key)
            if placed is None:
                continue
            epoch, counter = placed
            if epoch >= before_epoch:
                break
            counters = named.get(epoch)
            if counters is not None and not (counter < len(counters) and counters[counter]):
                yield key


def _repair_rows(store: ObjectStore) -> Iterator[str]:
    """Rows of repairs that nobody asks for any more; none while it is doubtful what is asked for."""
    latest = time.time() - REPAIR_KEPT_SECONDS
    old = [key for key in store.list(keys.REPAIRS) if (begun := keys.repair_begun(key)) is not None and begun < latest]
    wanted: set[str] = set()
    # After the rows: whoever reads them has asked by now, or does not.
    for key in store.list(keys.CONTROL) if old else ():
        if not keys.is_control(key) or key.startswith(keys.REFUSED):
            continue
        try:
            request = Request.decode(store.get(key))
        except ObjectMissing:
            continue  # it was carried out meanwhile, and its rows are removed by who did
        except (ManifestCorrupt, FormatTooNew, StoreRefused):
            return
        if request.repair is not None:
            wanted.update(segment.key for segment in request.repair.segments)
    yield from (key for key in old if key not in wanted)
