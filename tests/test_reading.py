"""docs/reading.md names what exists, and is no longer than an afternoon.

python -m tests.test_reading    prints the number of files and of lines
"""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs/reading.md").read_text()
STOPS: list[tuple[str, str]] = re.findall(
    r"^\| `([\w/.]+)` \| (all|[^|]+) \|[^|]+\|[^|]*\|$", PAGE, re.MULTILINE
)
"""Path of each file of the route, and what to read of it: "all", or names."""
MOST_FILES, MOST_LINES = 60, 5000


def lines_of(path: str, what: str) -> int:
    """Returns the number of lines to read of a file. Raises KeyError for a name that it does not have."""
    text = (ROOT / path).read_text()
    if what == "all":
        return len(text.splitlines())
    lengths = proto_lengths(text) if path.endswith(".proto") else python_lengths(text)
    return lengths.get("", 0) + sum(lengths[name] for name in re.findall(r"`([\w.]+)`", what))


def python_lengths(text: str) -> dict[str, int]:
    """Returns the lines of functions, classes, methods (Class.method) and constants; "": the docstring."""
    lengths: dict[str, int] = {}

    def visit(body: list[ast.stmt], prefix: str) -> None:
        for node in body:
            count = (node.end_lineno or node.lineno) - node.lineno + 1
            if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                lengths[prefix + node.name] = count + len(node.decorator_list)
            elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
                lengths[prefix + node.targets[0].id] = count
            if isinstance(node, ast.ClassDef):
                visit(node.body, f"{node.name}.")

    module = ast.parse(text)
    if ast.get_docstring(module) is not None:
        lengths[""] = module.body[0].end_lineno or 1
    visit(module.body, "")
    return lengths


def proto_lengths(text: str) -> dict[str, int]:
    """Returns the lines of messages, with the comments before them."""
    found = re.finditer(r"(?:^//.*\n)*^message (\w+) \{(?:\}|\n(?:[^}].*\n|\n)*\})", text, re.MULTILINE)
    return {match[1]: match[0].count("\n") + 1 for match in found}


def count() -> tuple[int, int]:
    """Returns the numbers of files and of lines."""
    return len({path for path, _ in STOPS}), sum(lines_of(path, what) for path, what in STOPS)


def test_the_route_is_found() -> None:
    assert len(STOPS) == PAGE.split("## Where would")[0].count("\n| `")


def test_the_route_fits_into_an_afternoon() -> None:
    files, lines = count()
    assert files <= MOST_FILES
    assert lines <= MOST_LINES, (
        "docs/reading.md: name less of a file that has grown (python -m tests.test_reading)"
    )


def test_the_page_says_how_long_the_route_is() -> None:
    stated = re.search(r"The route has (\d+) files and about ([\d,]+) lines", PAGE)
    assert stated is not None
    files, lines = count()
    assert int(stated[1]) == files
    assert abs(int(stated[2].replace(",", "")) - lines) <= 100


if __name__ == "__main__":
    print("{} files, {:,} lines".format(*count()))
