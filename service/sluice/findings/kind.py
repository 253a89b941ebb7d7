"""What one kind of finding is: its code, how grave it can be, what it means and what fixes it."""

from dataclasses import dataclass
from enum import IntEnum
from typing import Literal

Severity = Literal["critical", "warning", "info"]
SEVERITIES: tuple[Severity, ...] = ("critical", "warning", "info")


class Step(IntEnum):
    """Where the SQL of a finding stands in a script that works when it is run from top to bottom."""

    RESTART = 1
    RIGHTS = 2
    TABLES = 3
    PUBLICATION = 4
    SETTINGS = 5
    SLOT = 6
    SESSIONS = 7
    ELSEWHERE = 8


@dataclass(frozen=True, slots=True)
class Kind:
    """One code: how grave it can be, what it means, what fixes it."""

    code: str
    severities: tuple[Severity, ...]
    step: Step
    meaning: str
    remedy: str


def kind(code: str, severities: str, step: Step, meaning: str, remedy: str) -> Kind:
    letters: dict[str, Severity] = {"c": "critical", "w": "warning", "i": "info"}
    return Kind(code, tuple(letters[letter] for letter in severities), step, meaning, remedy)
