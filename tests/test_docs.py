"""What the pages name exists: the walk of docs/structure.md, links, paths, commands, flags."""

import ast
import dataclasses
import re
from collections import Counter
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from pagewire import command_config, config, flags
from pagewire.cli import COMMANDS
from pagewire.flags.synonyms import COUNTERPARTS, RENAMED, WITHOUT_EFFECT, WITHOUT_EFFECT_OF_A_VALUE

ROOT = Path(__file__).parent.parent
CHANGELOG = ROOT / "CHANGELOG.md"
"""A record: what it names may be gone."""
OWN_PAGES = sorted(
    [*{*ROOT.glob("*.md")} - {CHANGELOG}, *ROOT.glob("docs/**/*.md"), *ROOT.glob("benchmarks/*.md")]
)
PAGES = [CHANGELOG, *OWN_PAGES, *sorted(ROOT.glob("examples/**/README.md"))]
FOLDERS = {
    path.name for path in ROOT.iterdir() if path.is_dir() and path.name[0] != "." and path.name != "build"
}
FILES = {str(path.relative_to(ROOT)) for each in FOLDERS for path in (ROOT / each).rglob("*.py")}


def ends_of(path: str) -> list[str]:
    """All ends of a path, the shortest first."""
    parts = path.split("/")
    return ["/".join(parts[-length:]) for length in range(1, 1 + len(parts))]


ENDS = Counter(end for path in FILES for end in ends_of(path))
MAPS = {"structure.md", "reading.md", "limits.md", "models.md"}
"""Pages that name files by their whole path: the map, the reading route, and those that scripts write."""
TARGETS = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
CONFIGS = [
    each
    for module in (config, command_config)
    for each in vars(module).values()
    if dataclasses.is_dataclass(each) and isinstance(each, type)
]
FLAGS = {
    name
    for each in CONFIGS
    for flag in flags.flags_of(each).values()
    for name in (flag.option, flag.option.replace("--", "--no-", 1), flag.option.replace("--no-", "--", 1))
}
OTHER_FLAGS = {
    *("--config", "--help", "--help-all", "--some-name"),
    *("--cpus", "--no-recreate", "--scale"),  # of docker
    "--head",  # of ray
    "--from-file",  # of kubectl
    "--hypothesis-profile",
    # Of benchmarks that are gone, next to the commands which name their commit.
    *(
        "--beginning",
        "--by",
        "--client",
        "--client-env",
        "--corpus",
        "--decoding",
        "--eos",
        "--files",
        "--flat",
    ),
    *("--gigabytes", "--loop", "--messages", "--pause-ms", "--processor-time", "--readers", "--repetitions"),
    *("--rows", "--server-env", "--shards", "--tiles", "--turns"),
    *(name for table in (RENAMED, WITHOUT_EFFECT, WITHOUT_EFFECT_OF_A_VALUE, COUNTERPARTS) for name in table),
}


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
    assert walk_rows()


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


def per_page(test: Any) -> Any:
    return pytest.mark.parametrize("page", OWN_PAGES, ids=lambda page: str(page.relative_to(ROOT)))(test)


@per_page
def test_paths_exist(page: Path) -> None:
    """Folders by their path from the root or `tests`, files by an end of it; capitals are for any name."""
    paths = set(re.findall(r"`([\w.-]+/[\w./-]+|\w+\.py)(?:::\w+)?`", page.read_text()))
    ours = {path for path in paths if path.endswith(".py") or path.split("/")[0] in FOLDERS}
    named = {path for path in ours if not re.search(r"[A-Z]{4}|\.\.", path)}
    assert not {path for path in named if not is_path(path)}


@per_page
def test_files_are_named_by_the_end_of_their_path(page: Path) -> None:
    """Moving a file then changes the map alone."""
    named = (
        set(re.findall(r"`([\w./-]+\.py)(?:::\w+)?`", page.read_text())) if page.name not in MAPS else set()
    )
    assert not {path for path in named if path in FILES and shortest_end(path) != path}


def is_path(path: str) -> bool:
    """Whether a page may call a file or folder so."""
    return (ROOT / path).exists() or (ROOT / "tests" / path).exists() or path in ENDS


def shortest_end(path: str) -> str:
    """The shortest end of a file's path that no other file has; the path itself if there is none."""
    return next((end for end in ends_of(path) if ENDS[end] == 1), path)


@per_page
def test_commands_exist(page: Path) -> None:
    """`python -m MODULE`, `make TARGET`, `pagewire COMMAND`."""
    code = code_of(page)
    modules = {name for name in re.findall(r"python -m ([\w.]+)", code) if name.split(".")[0] in FOLDERS}
    assert not {name for name in modules if not is_runnable(ROOT / name.replace(".", "/"))}
    assert set(re.findall(r"(?:^ *|`)make ([a-z-]+)", code, re.MULTILINE)) <= TARGETS
    assert set(re.findall(r"(?:^ *|`)pagewire ([a-z-]+)", code, re.MULTILINE)) <= COMMANDS.keys()


@per_page
def test_flags_exist(page: Path) -> None:
    """Of a command, or of a script of ours; some are other programs'."""
    assert set(re.findall(r"(?<![\w-])--[a-z][a-z0-9-]+", code_of(page))) <= {
        *FLAGS,
        *script_flags(),
        *OTHER_FLAGS,
    }


def code_of(page: Path) -> str:
    """Code blocks, and what stands between backticks; not commands of an earlier commit, "`...` at HASH"."""
    text = re.sub(
        r"`benchmarks\.[^`]+` at [0-9a-f]{8}|^benchmarks\..*# at [0-9a-f]{8}$",
        "",
        page.read_text(),
        flags=re.M,
    )
    code = r"^```.*?^```|^    .*?$|`[^`\n]+`"
    return "\n".join(re.findall(code, text, re.MULTILINE | re.DOTALL))


@cache
def script_flags() -> set[str]:
    """Strings that look like a flag in scripts, benchmarks and suites."""
    files = [
        path
        for folder in ("benchmarks", "packages", "scripts", "tests")
        for path in (ROOT / folder).rglob("*.py")
    ]
    return {
        flag for path in files for flag in re.findall(r"[\"'](--[a-z][a-z0-9-]+)[\"'=]", path.read_text())
    }


def is_runnable(module: Path) -> bool:
    return module.with_suffix(".py").exists() or (module / "__main__.py").exists()


def test_a_page_lists_the_commands() -> None:
    page = (ROOT / "docs/command-line.md").read_text()
    lines = re.findall(r"^pagewire (.+?)(?:  |$)", page, re.MULTILINE)
    assert COMMANDS.keys() <= set(" ".join(lines).split())
