"""What the documents name exists."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = ("app", "actors", "protocol", "gpu", "tests", "scripts")
NAMED_FILE = re.compile(r"\b(?:app|actors|protocol|gpu|tests|scripts)/[\w/-]+\.py\b")
PATH = re.compile(r"`((?:app|actors|protocol|gpu|tests|scripts)/[\w./-]*)`")


@pytest.mark.parametrize("document", ["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md"])
def test_every_path_that_a_document_names_exists(document):
    named = PATH.findall((ROOT / document).read_text())

    assert named
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
