"""Where lake tables stand, as tables join, leave and get other paths."""

from dataclasses import replace

from sluice.contract.table_state import State
from sluice.manifest.values import TableState
from sluice.tables.lake_paths import TakenPaths
from sluice.tables.policies import Policies


def at(name: str, path: str, state: State = State.LIVE) -> TableState:
    return TableState(name, "public", f"t{name}", state, None, 0, 1, 1, {}, path=path)


def test_paths_that_are_followed_are_those_that_are_found_at_once() -> None:
    policies = Policies()
    seven, eight, nine = at("7", "public/a"), at("8", "public/b"), at("9", "public/c")
    steps = (
        {"7": seven},
        {"7": seven, "8": eight},
        {"7": replace(seven, path="public/b"), "8": replace(eight, path="public/a"), "9": nine},
        {"7": seven, "8": replace(eight, state=State.DETACHED), "9": nine},
        {"9": nine},
    )
    followed = TakenPaths({}, policies)
    for states in steps:
        followed.follow(states)
        afresh = TakenPaths(states, policies)
        for oid in (7, 8, 9):
            for path in ("public/a", "public/b", "public/c"):
                assert followed.by_others(oid, [path]) == afresh.by_others(oid, [path])
