"""Finds words that do not belong in this project's prose, and says what to write instead.

    python -m scripts.dialect              # exits 1 and prints each place where such a word stands

scripts/dialect.toml lists them, with forms of sentences for some pages, and first words of docstrings whose
number may only fall. Prose is what people read: comments, docstrings and other strings of Python files,
comments of .proto files, and Markdown. docs/contributing.md says how this project is written.
"""

import ast
import io
import re
import subprocess
import sys
import tokenize
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
LIST = Path(__file__).with_suffix(".toml")
ROOMS = ("frontend/", "engine_core/", "worker/", "kernels/", "pagewire/", "packages/")
GENERATED = re.compile(r"_pb2|\.pyi$")


@dataclass(frozen=True)
class Phrase:
    """A word or phrase to avoid."""

    pattern: re.Pattern[str]
    instead: str  # what to write
    path: str = "*"  # a glob of the files in which it counts


@dataclass(frozen=True)
class Exemption:
    """A file in which a phrase may stand, and why."""

    path: str  # a glob
    words: frozenset[str]  # lower case; empty: every phrase
    reason: str


@dataclass(frozen=True)
class Fault:
    """One place where a phrase stands."""

    path: str
    line: int
    word: str
    instead: str


def read_list(text: str) -> tuple[list[Phrase], list[Exemption]]:
    """Parses scripts/dialect.toml. Raises ValueError for an exemption without a reason."""
    table = tomllib.loads(text)
    phrases = [
        Phrase(re.compile(rf"\b(?:{item['words']})\b", re.IGNORECASE), item["instead"], item.get("path", "*"))
        for item in (*table["avoid"], *table.get("pattern", ()))
    ]
    exemptions = [
        Exemption(item["path"], frozenset(item.get("words", ())), item["reason"])
        for item in table.get("allow", ())
    ]
    if not all(exemption.reason for exemption in exemptions):
        raise ValueError("an exemption needs a reason")
    return phrases, exemptions


def prose_of(path: str, text: str) -> Iterator[tuple[int, str]]:
    """The prose of a file, as (line number, text) pairs."""
    if path.endswith(".py"):
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            if token.type in (tokenize.COMMENT, tokenize.STRING):
                yield from enumerate(token.string.splitlines(), token.start[0])
        return
    comments_only = path.endswith(".proto")
    for number, line in enumerate(text.splitlines(), 1):
        yield number, line.partition("//")[2] if comments_only else line


def faults_of(path: str, text: str, phrases: list[Phrase], exemptions: list[Exemption]) -> Iterator[Fault]:
    """Every place of a file where a phrase stands that is not exempt there."""
    phrases = [phrase for phrase in phrases if Path(path).match(phrase.path)]
    allowed = [exemption for exemption in exemptions if Path(path).match(exemption.path)]
    for number, line in prose_of(path, text):
        for phrase in phrases:
            for match in phrase.pattern.finditer(line):
                word = match.group().lower()
                if not any(not exemption.words or word in exemption.words for exemption in allowed):
                    yield Fault(path, number, match.group(), phrase.instead)


def first_words(text: str) -> Iterator[str]:
    """The first word of each docstring of a Python file."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield (ast.get_docstring(node) or "").partition(" ")[0]


def fragments(table: dict[str, Any]) -> str | None:
    """Says whether too many docstrings of the source begin with a word of the list; None: they do not."""
    words, most = set(table["first"]), table["at_most"]
    count = sum(
        word in words
        for name in tracked_files()
        if name.startswith(ROOMS) and name.endswith(".py")
        for word in first_words((ROOT / name).read_text(encoding="utf-8"))
    )
    if count > most:
        listed = ", ".join(sorted(words))
        return f"{count} docstrings begin with one of {listed}; at most {most} may: begin with a verb"
    return None


def tracked_files() -> list[str]:
    """Files with prose that git tracks, relative to the root."""
    patterns = ["*.py", "*.md", "*.proto"]
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", *patterns],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    return [
        name for name in listed.stdout.splitlines() if not GENERATED.search(name) and (ROOT / name).exists()
    ]


def main() -> None:
    """The command."""
    phrases, exemptions = read_list(LIST.read_text(encoding="utf-8"))
    found = [
        fault
        for name in tracked_files()
        for fault in faults_of(name, (ROOT / name).read_text(encoding="utf-8"), phrases, exemptions)
    ]
    for fault in found:
        print(f"{fault.path}:{fault.line}: {fault.word!r}: write {fault.instead}")
    wrong = fragments(tomllib.loads(LIST.read_text(encoding="utf-8"))["docstrings"])
    if wrong is not None:
        print(wrong)
    sys.exit(bool(found) or wrong is not None)


if __name__ == "__main__":
    main()
