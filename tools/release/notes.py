"""The notes of a release: its section of CHANGELOG.md."""

import re

from sluice.errors import UsageError


def of(changelog: str, version: str) -> str:
    """The section of `version`, without its heading. Raises UsageError when there is none, or nothing in it."""
    parts = re.split(r"^## \[([^\]]+)\].*\n", changelog, flags=re.MULTILINE)
    sections = dict(zip(parts[1::2], parts[2::2], strict=True))
    text = sections.get(version, "").strip()
    if not text:
        raise UsageError(
            f"CHANGELOG.md has no section for {version}", hint=f"rename [Unreleased] to [{version}] with a date"
        )
    return text + "\n"
