"""docs/protocol.md names all sixty points, each once, and every test that it names exists."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
ROW = re.compile(r"^\| (\d+) \| .+ \| .+ \| ([a-z0-9]+/\w+\.py)::(\w+) \|$", re.MULTILINE)


def rows() -> list[tuple[int, str, str]]:
    return [(int(number), path, test) for number, path, test in ROW.findall((ROOT / "docs" / "protocol.md").read_text(encoding="utf-8"))]


def test_the_page_has_the_sixty_points_in_order() -> None:
    assert [number for number, _, _ in rows()] == list(range(1, 61))


def test_every_test_that_the_page_names_exists() -> None:
    missing = [
        f"{path}::{test}"
        for _, path, test in rows()
        if not (ROOT / "tests" / path).is_file() or f"def {test}(" not in (ROOT / "tests" / path).read_text(encoding="utf-8")
    ]
    assert missing == []
