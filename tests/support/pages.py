"""Pages of docs/ of which a part is written by a program."""

from pathlib import Path


def write_between(page: Path, begin: str, end: str, text: str) -> None:
    """Puts `text` in place of what lies between the lines `begin` and `end`."""
    before, _, rest = page.read_text(encoding="utf-8").partition(begin)
    _, _, after = rest.partition(end)
    page.write_text(f"{before}{begin}{text}{end}{after}", encoding="utf-8")
