"""A spool that is whole is found whole, and everything that is wrong with another is named."""

from sluice.contract import keys
from sluice.operate.spool_verify import SpoolReport, verify
from sluice.store.base import ObjectStore
from tests.conformance.spools import CONTENT, World


def filled(store: ObjectStore) -> list[str]:
    """A manifest with one entry for each of five files, and one that holds a prepared transaction; the keys of the
    files, in that order.
    """
    world = World(store)
    world.join("7", snapshot=False)
    return [*(world.change("7") for _ in range(5)), world.prepare("gid").parts[0].segment.key]


def found(verdict: SpoolReport) -> list[tuple[int, str, str]]:
    return [(flaw.seq, flaw.key, flaw.what) for flaw in verdict.flaws]


def test_a_whole_spool_is_found_whole(store: ObjectStore) -> None:
    names = filled(store)
    verdict = verify(store, content=True)
    assert (found(verdict), verdict.state.seq) == ([], 8)
    assert (verdict.objects, verdict.bytes) == (len(names), len(names) * len(CONTENT))


def test_what_is_missing_cut_short_or_replaced_is_named(store: ObjectStore) -> None:
    names = filled(store)
    store.delete(names[0])
    store.put(names[2], CONTENT[:-1])
    store.put(names[3], CONTENT[::-1])
    store.delete(names[-1])
    flaws = [(3, names[0], "is missing"), (5, names[2], "has 14 bytes instead of 15"), (8, names[-1], "is missing")]
    assert found(verify(store, content=False)) == flaws
    flaws.insert(2, (6, names[3], "does not have the content that was written"))
    assert found(verify(store, content=True)) == flaws


def test_a_break_of_the_chain_ends_the_look_and_is_named(store: ObjectStore) -> None:
    names = filled(store)
    store.delete(names[0])
    store.put(keys.manifest_entry(5), store.get(keys.manifest_entry(5)).replace(b'"xid"', b'"Xid"'))
    verdict = verify(store, content=False)
    assert verdict.state.seq == 4
    assert [(seq, key) for seq, key, _ in found(verdict)] == [(5, ""), (3, names[0])]
