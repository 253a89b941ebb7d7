"""How a kind of lake tables whose rows outlive a change says what net changes and rows of the lake become together.

A commit finds the rows of the lake whose keys a window names and gives them to the plan's settlement: what it
makes of both takes the place of those rows. So no commit knows what a row of a kind means.
"""

from dataclasses import dataclass
from typing import Protocol

import pyarrow as pa

from sluice_spark.fold.row_identity import Numbers


class Settlement(Protocol):
    """Made by a kind, handed to executors. `only` is a boolean column of the lake: rows in which it is true are looked
    for (empty: all).
    """

    @property
    def only(self) -> str: ...

    def settled(self, rows: pa.Table, old: pa.Table, found: Numbers) -> pa.Table:
        """The rows that take the place of `old`, rows of the lake with all their columns, by the net changes `rows`;
        `found` are the places of the rows that found them. Raises UnsupportedChange.
        """


@dataclass(frozen=True, slots=True)
class Sweep:
    """What becomes of every row of the lake that meets `condition` and whose key no net change looks for: the
    `assignments` (column, value) of those columns that the lake table has. Both are SQL, in which `t` is the lake
    table.
    """

    condition: str
    assignments: tuple[tuple[str, str], ...]
