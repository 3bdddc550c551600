"""Which test holds each source file: `tests` mirrors the folders; scripts/mirror.toml has the exceptions.

A file with logic has a test file of its name at its place below `tests`, or a test file that imports it, or a
line in scripts/mirror.toml, which names the tests that reach it by way of others. Part of
`python -m scripts.house --check`.
"""

import tomllib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from scripts.house import Module

ROOT = Path(__file__).resolve().parents[1]
TABLE = ROOT / "scripts" / "mirror.toml"

Table = Mapping[str, list[str]]
"""Path of a test file, or of a folder of them -> sources that they hold: files, or folders with a slash at
the end."""


def read_table() -> Table:
    """Returns scripts/mirror.toml."""
    return tomllib.loads(TABLE.read_text(encoding="utf-8"))


def source_path(module: "Module") -> str:
    """Returns the path of a module's file from the root."""
    name = f"{module.name}.__init__" if module.name == module.folder else module.name
    return name.replace(".", "/") + ".py"


def own_test(module: "Module") -> str:
    """Returns the dotted name that a test file of the module's name has."""
    folder, _, name = module.name.rpartition(".")
    return f"tests.{folder}.test_{name}" if folder else f"tests.test_{name}"


def without_test(modules: Iterable["Module"], tests: Iterable["Module"]) -> list[str]:
    """Returns the paths of files with logic that have no test file of their name and that no test file
    imports, in order."""
    files = {test.name: test for test in tests if test.name.rpartition(".")[2].startswith("test_")}
    imported = {name for test in files.values() for name in test.imports}
    return sorted(
        source_path(module)
        for module in modules
        if module.functions and own_test(module) not in files and module.name not in imported
    )


def holds(entry: str, source: str) -> bool:
    """True if an entry of the table is that file, or a folder that it lies in."""
    return source.startswith(entry) if entry.endswith("/") else source == entry


def faults(modules: Iterable["Module"], tests: Iterable["Module"], table: Table) -> Iterator[str]:
    """Yields a sentence for each file whose test nothing names, and for each path of the table that does not
    exist."""
    modules = list(modules)
    lacking, sources = without_test(modules, tests), [source_path(module) for module in modules]
    entries = [entry for held in table.values() for entry in held]
    for source in lacking:
        if not any(holds(entry, source) for entry in entries):
            name = Path(source).name
            yield f"{source}: no test_{name}, no test imports it, and no line of scripts/mirror.toml has it"
    for test in table:
        if not (ROOT / test).exists():
            yield f"scripts/mirror.toml: {test} does not exist"
    for entry in entries:
        if not any(holds(entry, source) for source in sources):
            yield f"scripts/mirror.toml: {entry} does not exist"
