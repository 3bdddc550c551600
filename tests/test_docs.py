"""The walk of docs/structure.md names files and functions that exist; links of all pages lead somewhere."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGES = sorted([ROOT / "README.md", *ROOT.glob("docs/*.md"), *ROOT.glob("examples/**/README.md")])


def walk_rows() -> list[tuple[str, str]]:
    text = (ROOT / "docs/structure.md").read_text()
    return re.findall(r"\| `([\w/]+\.py)` \| `([\w.]+)` \|$", text, re.MULTILINE)


def names_in(path: Path) -> set[str]:
    """Functions, classes and methods (as Class.method) of a file."""
    names = set()
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.ClassDef):
            names.add(node.name)
            members = (ast.FunctionDef, ast.AsyncFunctionDef)
            names.update(f"{node.name}.{member.name}" for member in node.body if isinstance(member, members))
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            names.add(node.name)
    return names


def test_the_walk_is_found() -> None:
    assert len(walk_rows()) > 20


@pytest.mark.parametrize(("file", "name"), walk_rows())
def test_the_walk_names_what_exists(file: str, name: str) -> None:
    assert name in names_in(ROOT / file)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    targets = re.findall(r"\]\(([^)#]+?)(?:#[^)]*)?\)", page.read_text())
    missing = [
        target
        for target in targets
        if not target.startswith(("http://", "https://")) and not (page.parent / target).exists()
    ]
    assert not missing
