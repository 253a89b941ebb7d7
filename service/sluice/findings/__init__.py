"""What `check` can find: every code with its meaning and its remedy, and the value that one finding
is.

Invariant: a code that exists is listed in this package, because scripts and people depend on codes;
a finding with another one cannot be made. Standard library only, so that the side that sees
PostgreSQL and the side that sees Spark report findings in one form. docs/findings.md is made from
the list.
"""

from dataclasses import dataclass

from sluice.findings.kind import SEVERITIES, Kind, Severity, Step
from sluice.findings.lake import LAKE
from sluice.findings.server import SERVER
from sluice.findings.tables import TABLES

__all__ = ["BY_CODE", "KINDS", "SEVERITIES", "Finding", "Kind", "Severity", "Step"]

KINDS: tuple[Kind, ...] = (*SERVER, *TABLES, *LAKE)
"""In the order of the documentation."""

BY_CODE = {kind.code: kind for kind in KINDS}


@dataclass(frozen=True, slots=True)
class Finding:
    """`code` is one of KINDS. `object` is what it is about, `seen` what was seen there, in one
    sentence each and never with a row value or a secret.

    `fix_sql` is SQL to run, `fix_setting` a setting of the server or of Sluice to change, or other
    words on what to do; `needs_restart` says that the server must be restarted for it. With
    neither, the remedy of its kind stands there, unless it only informs. `by_hand` marks SQL that
    destroys something, widens rights, or has a place to fill in: it is never run unread.
    """

    severity: Severity
    code: str
    object: str
    seen: str
    fix_sql: str = ""
    fix_setting: str = ""
    needs_restart: bool = False
    by_hand: bool = False

    def __post_init__(self) -> None:
        if self.severity not in BY_CODE[self.code].severities:
            raise ValueError(f"{self.code} is never {self.severity}")
        if self.severity != "info" and not (self.fix_sql or self.fix_setting):
            object.__setattr__(self, "fix_setting", BY_CODE[self.code].remedy.replace("`", ""))
