"""In which order the log of a lake table is removed that is made again."""

import pytest

from sluice_spark.progress.start import removal_order

LOG = "public/t/_delta_log/"


def _is_readable(left: list[str]) -> bool:
    """From the beginning, or from a checkpoint, without a gap."""
    commits = {int(name[:20]) for name in left if name.endswith(".json")}
    bases = [int(name[:20]) for name in left if ".checkpoint" in name] or [0]
    newest = max([*commits, *bases])
    return any(commits | {base} >= set(range(base, newest + 1)) for base in bases)


@pytest.mark.parametrize(("first", "checkpoints"), [(0, ()), (0, (3,)), (2, (3,)), (2, (3, 5)), (5, (5,))])
def test_a_log_that_is_removed_in_part_is_that_of_a_whole_table(first: int, checkpoints: tuple[int, ...]) -> None:
    names = [f"{version:020d}.{kind}" for version in range(first, 8) for kind in ("crc", "json")]
    names += [f"{version:020d}.checkpoint.parquet" for version in checkpoints] + ["_last_checkpoint", "_sidecars/a"]
    order = [key.removeprefix(LOG) for key in removal_order(LOG + name for name in sorted(names))]
    assert sorted(order) == sorted(names)
    for removed in range(len(order)):
        left = order[removed:]
        if any(name[:20].isdecimal() and not name.endswith(".crc") for name in left):
            assert _is_readable(left), left
