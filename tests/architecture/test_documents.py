"""What the documents name exists."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from tests.helpers.pages import GUIDE, ROOT

DOCUMENTS = ("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md")
PAGES = [*(ROOT / name for name in DOCUMENTS), *sorted(GUIDE.glob("*.md"))]
LINK = re.compile(r"\]\(([^)\s]+)\)")
PACKAGES = ("app", "actors", "protocol", "gpu", "tests", "scripts")
NAMED_FILE = re.compile(r"\b(?:app|actors|protocol|gpu|tests|scripts)/[\w/-]+\.py\b")
PATH = re.compile(r"`((?:app|actors|protocol|gpu|tests|scripts)/[\w./-]*)`")


def linked(page: Path) -> list[str]:
    """The files and headings of this project that a page's links lead to, as paths from the root."""
    links = [link for link in LINK.findall(page.read_text()) if "://" not in link]
    return [f"{page.relative_to(ROOT)}{link}" if link.startswith("#") else
            os.path.normpath(page.parent.relative_to(ROOT) / link) for link in links]  # fmt: skip


def headings(page: Path) -> set[str]:
    """As GitHub makes anchors of them."""
    texts = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", text.lower()).replace(" ", "-") for text in texts}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_link_of_a_page_leads_somewhere(page):
    for link in linked(page):
        path, _, anchor = link.partition("#")
        assert (ROOT / path).exists(), link
        assert not anchor or anchor in headings(ROOT / path), link


def test_readme_is_two_screens_and_names_every_page_of_the_guide():
    readme = (ROOT / "README.md").read_text()

    assert len(readme.splitlines()) <= 110
    assert {f"app/guide/{page.name}" for page in GUIDE.glob("*.md")} <= set(linked(ROOT / "README.md"))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_path_that_a_document_names_exists(page):
    named = PATH.findall(page.read_text())

    assert [path for path in named if not (ROOT / path).exists()] == []


def test_every_file_that_a_docstring_or_comment_names_exists():
    missing = [
        f"{source.relative_to(ROOT)}: {name}"
        for package in PACKAGES
        for source in (ROOT / package).rglob("*.py")
        for name in NAMED_FILE.findall(source.read_text())
        if not (ROOT / name).exists()
    ]

    assert missing == []


def test_the_change_log_has_the_project_s_version():
    version = re.search(r'^version = "(.+)"', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)[1]

    assert f"## [{version}]" in (ROOT / "CHANGELOG.md").read_text()
