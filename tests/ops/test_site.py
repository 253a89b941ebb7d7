"""The documentation as a site: every page is in its navigation, its links lead somewhere, and it builds."""

import re
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

from tests.support import commands
from tools.site import pages

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"


class Links(HTMLParser):
    """What a page refers to, and what may be referred to in it."""

    def __init__(self, page: Path) -> None:
        super().__init__()
        self.targets: list[str] = []
        self.anchors: set[str] = set()
        self.feed(page.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if name in ("href", "src") and value and tag in ("a", "img", "script", "link"):
                self.targets.append(value)
            elif name == "id" and value:
                self.anchors.add(value)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    done = commands.ended(sys.executable, "-m", "tools.site", str(folder), cwd=ROOT)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder / "html"


def test_every_page_is_in_the_navigation_once() -> None:
    named = pages.navigated(ROOT)
    whole = [str(page.relative_to(DOCS)) for page in pages.pages(DOCS)]
    alone = [name for name in whole if not name.startswith(tuple(f"{folder}/" for folder in pages.FOLDERS))]
    assert sorted(named) == sorted([*alone, *pages.FOLDERS])


def test_a_link_out_of_the_documentation_is_text_or_leads_to_the_given_address(tmp_path: Path) -> None:
    docs = tmp_path / "docs"
    (docs / "how").mkdir(parents=True)
    for name in ("README.md", "index.md", "a.md"):
        (docs / name).write_text("# A\n")
    page = docs / "how" / "b.md"
    page.write_text(
        "[a](../a.md#x) [`code`](../../src/c.py) [list](../README.md) [web](https://x.y/)\n```\n[z](q)\n```\n"
    )
    kept = "[a](../a.md#x) {} [list](../index.md) [web](https://x.y/)\n```\n[z](q)\n```\n"
    assert pages.linked(page, docs, tmp_path, code="") == kept.format("`code`")
    assert pages.linked(page, docs, tmp_path, code="https://c") == kept.format("[`code`](https://c/src/c.py)")


def test_every_link_of_the_built_site_leads_to_a_page_and_a_heading(site: Path) -> None:
    built = {page: Links(page) for page in site.rglob("*.html") if page.name != "404.html"}
    assert len(built) > 70
    broken = []
    for page, links in built.items():
        for target in links.targets:
            parts = urlsplit(target)
            if parts.scheme:
                continue
            path = (page.parent / unquote(parts.path)).resolve() if parts.path else page
            path = path / "index.html" if path.is_dir() else path
            known = built.get(path)
            if not path.is_file() or (parts.fragment and known and unquote(parts.fragment) not in known.anchors):
                broken.append(f"{page.relative_to(site)}: {target}")
    assert broken == []


def test_programs_find_every_page_as_markdown(site: Path) -> None:
    listed = re.findall(r"\]\((.+\.md)\)", (site / "llms.txt").read_text(encoding="utf-8"))
    assert len(listed) == len(pages.pages(DOCS))
    assert [name for name in listed if not (site / name).is_file()] == []
