"""What one seeded story came to."""

import json
from dataclasses import asdict, dataclass, field


@dataclass
class Outcome:
    """One seed's result, as a line of JSON."""

    seed: int
    verdict: str = "failed"
    """`equal`, `marked` (equal but for tables that say they are not), `stopped` (by name, for
    good), or `failed`.
    """
    error: str = ""
    seconds: float = 0.0
    place: str = ""
    faults: dict[str, int] = field(default_factory=dict)
    exits: dict[str, int] = field(default_factory=dict)
    transactions: int = 0
    rows: int = 0
    acknowledgements: int = 0
    lost: int = 0
    doubled: int = 0
    torn: int = 0
    unequal_live: list[str] = field(default_factory=list)
    marked: dict[str, str] = field(default_factory=dict)
    hung: int = 0
    applier: bool = False
    commit: str = ""
    major: int = 0

    @property
    def failed(self) -> bool:
        return self.verdict == "failed"

    def line(self) -> str:
        return json.dumps(asdict(self))
