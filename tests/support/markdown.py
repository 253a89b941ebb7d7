"""The documentation as data: its code blocks, links and headings."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)")
_HEADING = re.compile(r"^#{1,6} (.+)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Block:
    """One fenced block; `line` is where it begins in its page."""

    language: str
    text: str
    line: int


def blocks(page: str) -> list[Block]:
    return [Block(match[1], match[2], page.count("\n", 0, match.start()) + 1) for match in _FENCE.finditer(page)]


def section(page: str, heading: str) -> str:
    """What stands below `heading`, up to the next one of its level."""
    level = heading.split(" ")[0]
    found = re.search(rf"^{re.escape(heading)}$\n(.*?)(?=^{level} |\Z)", page, re.MULTILINE | re.DOTALL)
    assert found is not None, f"there is no heading {heading!r}"
    return found[1]


def links(page: str) -> Iterator[str]:
    """Targets of links, code left out."""
    yield from _LINK.findall(re.sub(r"`[^`\n]*`", "", _FENCE.sub("", page)))


def anchors(page: str) -> set[str]:
    """The fragments that may be linked to, as GitHub makes them from headings."""
    found: set[str] = set()
    for title in _HEADING.findall(_FENCE.sub("", page)):
        plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", title).replace("`", "").strip().lower()
        name = re.sub(r"[^\w\- ]", "", plain).replace(" ", "-")
        numbered = name
        while numbered in found:
            stem, _, number = numbered.rpartition("-")
            numbered = f"{stem}-{int(number) + 1}" if stem == name and number.isdigit() else f"{name}-1"
        found.add(numbered)
    return found


def pages(root: Path) -> list[Path]:
    first = [root / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md")]
    return [*first, *sorted((root / "docs").rglob("*.md"))]


def stray_numbers(page: str) -> list[str]:
    """Lines that a renderer takes for an item of a numbered list, though their number does not continue one: a
    sentence that ends with a number was broken before it.
    """
    found, last = [], 0
    for line in _FENCE.sub("", page).splitlines():
        if item := re.match(r" *(\d+)\. ", line):
            if int(item[1]) not in (1, last + 1):
                found.append(line)
            last = int(item[1])
    return found


def uneven_rows(page: str) -> list[str]:
    """The rows of tables that do not have as many cells as the head of their table, or text behind the last one."""
    found, width, fenced = [], 0, False
    for line in page.splitlines():
        fenced ^= line.lstrip().startswith("```")
        if fenced or not line.startswith("|"):
            width = 0
            continue
        bars = len(re.findall(r"(?<!\\)\|", re.sub(r"`[^`]*`", "", line)))
        width = width or bars
        if bars != width or not line.endswith("|"):
            found.append(line)
    return found
