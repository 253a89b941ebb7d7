"""What preflight finds: one value per finding, with the statement or setting that mends it."""

from dataclasses import dataclass
from typing import Literal

Severity = Literal["critical", "warning", "info"]


@dataclass(frozen=True, slots=True)
class Finding:
    """`code` is stable, for scripts. `object` is what it is about, `seen` what was seen there, in one sentence each and never with a row value.

    `fix_sql` is SQL to run, `fix_setting` a setting of the server or of Sluice to change; `needs_restart` says that the server must be restarted for it.
    """

    severity: Severity
    code: str
    object: str
    seen: str
    fix_sql: str = ""
    fix_setting: str = ""
    needs_restart: bool = False
