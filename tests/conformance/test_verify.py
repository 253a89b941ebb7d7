"""A spool that is whole is found whole, and everything that is wrong with another is named."""

from dataclasses import replace

from sluice.contract import keys
from sluice.contract.entries import Changes, Commits, Prepared, PreparedPart, digest
from sluice.manifest.reader import load_state
from sluice.manifest.writer import ManifestLog
from sluice.operate.spool_verify import SpoolReport, verify
from sluice.store.base import ObjectStore
from tests.support.manifests import opened, put, schema, segment, table

CONTENT = b"rows of a table"


def filled(store: ObjectStore, count: int) -> list[str]:
    """A manifest with one entry for each of so many files, and one that holds a prepared
    transaction; the keys of the files, in that order.
    """
    log = ManifestLog.open(store, opened(), load_state(store))
    log.append(table("7"))
    plain = replace(segment(first_lsn=20), bytes=len(CONTENT), sha256=digest(CONTENT))
    names = []
    for number in range(count):
        lsn = 20 + number
        names.append(keys.segment("7", 1, number + 1))
        store.put(names[-1], CONTENT)
        put(
            log,
            Changes((replace(plain, key=names[-1], first_lsn=lsn, last_lsn=lsn),), Commits([lsn], [1], [7])),
            through_lsn=lsn,
        )
    names.append(keys.staged(1, 700, 99))
    store.put(names[-1], CONTENT)
    waiting = Prepared(
        "gid", 700, 20 + count, 1, rows=1, parts=(PreparedPart(schema(), replace(plain, key=names[-1])),)
    )
    put(log, Changes((), Commits(), prepared=(waiting,)), through_lsn=20 + count)
    return names


def found(verdict: SpoolReport) -> list[tuple[int, str, str]]:
    return [(flaw.seq, flaw.key, flaw.what) for flaw in verdict.flaws]


def test_a_whole_spool_is_found_whole(store: ObjectStore) -> None:
    names = filled(store, 5)
    verdict = verify(store, content=True)
    assert (found(verdict), verdict.objects, verdict.bytes, verdict.state.seq) == (
        [],
        len(names),
        len(names) * len(CONTENT),
        8,
    )


def test_what_is_missing_cut_short_or_replaced_is_named(store: ObjectStore) -> None:
    names = filled(store, 5)
    store.delete(names[0])
    store.put(names[2], CONTENT[:-1])
    store.put(names[3], CONTENT[::-1])
    store.delete(names[-1])
    flaws = [(3, names[0], "is missing"), (5, names[2], "has 14 bytes instead of 15"), (8, names[-1], "is missing")]
    assert found(verify(store, content=False)) == flaws
    assert found(verify(store, content=True)) == [
        *flaws[:2],
        (6, names[3], "does not have the content that was written"),
        flaws[2],
    ]


def test_a_break_of_the_chain_ends_the_look_and_is_named(store: ObjectStore) -> None:
    names = filled(store, 5)
    store.delete(names[0])
    store.put(keys.manifest_entry(5), store.get(keys.manifest_entry(5)).replace(b'"xid"', b'"Xid"'))
    verdict = verify(store, content=False)
    assert verdict.state.seq == 4
    assert [(seq, key) for seq, key, _ in found(verdict)] == [(5, ""), (3, names[0])]
