"""The pages of docs/ as the site has them, its navigation, and `llms.txt`.

Invariants: every page of docs/ is in the navigation exactly once. A link leads to a page of the site, to
another site, or is text.
"""

import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

_LINK = re.compile(r"(?<!!)\[((?:[^\]\[]|\[[^\]]*\])*)\]\(([^)\s]+)\)")
_FENCE = re.compile(r"(^```.*?^```$)", re.MULTILINE | re.DOTALL)
FOLDERS = ("runbooks", "decisions")
"""Folders of which the navigation has all pages."""
_TITLE = re.compile(r"^# (.+)$", re.MULTILINE)
_NOT_ON_THE_SITE = ("README.md",)
"""The list of pages, which the navigation replaces."""


def write(root: Path, source: Path, *, code: str) -> None:
    """Writes the sources of the site of the checkout at `root` into `source`. Links to files outside of docs/ lead
    below `code`, if that is an address.
    """
    docs = root / "docs"
    shutil.copytree(docs / "images", source / "images")
    for page in pages(docs):
        to = source / page.relative_to(docs)
        to.parent.mkdir(parents=True, exist_ok=True)
        to.write_text(linked(page, docs, root, code=code), encoding="utf-8")
    (source / "llms.txt").write_text(llms(docs), encoding="utf-8")


def pages(docs: Path) -> list[Path]:
    """All pages of the site."""
    return sorted(page for page in docs.rglob("*.md") if str(page.relative_to(docs)) not in _NOT_ON_THE_SITE)


def linked(page: Path, docs: Path, root: Path, *, code: str) -> str:
    """The text of a page, with links as the site has them."""

    def link(match: "re.Match[str]") -> str:
        text, target = match[1], match[2]
        path, hash_, fragment = target.partition("#")
        if re.match(r"[a-z]+:", target) or not path:
            return match[0]
        found = (page.parent / path).resolve()
        if found == docs / "README.md":
            inside = docs / "index.md"
            return f"[{text}]({_relative(inside, page)})"
        if found.is_relative_to(docs) and found.suffix in (".md", ".png"):
            return match[0]
        return f"[{text}]({code}/{found.relative_to(root)}{hash_}{fragment})" if code else text

    parts = _FENCE.split(page.read_text(encoding="utf-8"))
    return "".join(part if part.startswith("```") else _LINK.sub(link, part) for part in parts)


def _relative(to: Path, page: Path) -> str:
    return "/".join([".."] * len(page.relative_to(to.parent).parent.parts) + [to.name])


def title(page: Path) -> str:
    """What its first heading says."""
    found = _TITLE.search(page.read_text(encoding="utf-8"))
    assert found is not None, f"{page} has no title"
    return found[1].replace("`", "")


def llms(docs: Path) -> str:
    """The list of pages for programs (https://llmstxt.org): each as Markdown."""
    lines = ["# Sluice", "", "> Keeps Delta Lake tables equal to PostgreSQL tables, continuously, without Kafka.", ""]
    lines += ["## Pages", ""]
    lines += [f"- [{title(page)}]({page.relative_to(docs)})" for page in pages(docs)]
    return "\n".join([*lines, ""])


def configuration(root: Path, site: Path) -> Path:
    """mkdocs.yml with the pages of FOLDERS in its navigation, in the folder `site`. Returns its path."""
    docs = root / "docs"
    text = (root / "mkdocs.yml").read_text(encoding="utf-8")
    for folder in FOLDERS:
        names = sorted(str(page.relative_to(docs)) for page in (docs / folder).glob("*.md"))
        names.sort(key=lambda name: not name.endswith("README.md"))
        found = re.search(rf"^( *)- (\w+): {folder}$", text, flags=re.MULTILINE)
        assert found is not None, folder
        lines = [f"{found[1]}- {found[2]}:", *(f"{found[1]}    - {name}" for name in names)]
        text = text.replace(found[0], "\n".join(lines))
    to = site / "mkdocs.yml"
    text = text.replace("build/site/", "")
    to.parent.mkdir(parents=True, exist_ok=True)
    to.write_text(text, encoding="utf-8")
    return to


def navigated(root: Path) -> list[str]:
    """The pages that the navigation names, FOLDERS as folders."""

    def below(node: Any) -> Iterator[str]:
        if isinstance(node, str):
            yield node
        elif isinstance(node, dict):
            for value in node.values():
                yield from below(value)
        else:
            for value in node:
                yield from below(value)

    loaded = yaml.load((root / "mkdocs.yml").read_text(encoding="utf-8"), Loader=_Plain)  # noqa: S506 - see _Plain
    return list(below(loaded["nav"]))


class _Plain(yaml.SafeLoader):
    """Reads the tags that name functions of Python as nothing."""


_Plain.add_multi_constructor("tag:yaml.org,2002:python/", lambda *_: None)
