"""`python -m service.cli.docs` writes the pages that are generated from code: configuration, metrics, exit codes."""

from collections.abc import Callable
from pathlib import Path

from service.cli import exits
from service.settings import present
from service.telemetry import page

PAGES: dict[str, Callable[[], str]] = {
    "docs/configuration.md": present.page,
    "docs/metrics.md": page.page,
    "docs/exit-codes.md": exits.page,
}


def write(root: Path) -> None:
    for name, page in PAGES.items():
        (root / name).write_text(page(), encoding="utf-8")


if __name__ == "__main__":
    write(Path.cwd())
