"""Measures the structure of the source: files, functions, annotations, folders, import cycles.

    python -m scripts.house            # tables of rooms and folders, and figures with goals, as Markdown
    python -m scripts.house --check    # exits 1 where a rule of the structure is broken, and says which

The rules: no import cycle among modules at run time, none among the folders of a room, no public class name
that is defined twice within a folder, no constant that gets a second value, and no docstring that only points
elsewhere (an override needs none).
"""

import ast
import re
import statistics
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
ROOMS = ("frontend", "engine_core", "worker", "kernels", "pagewire")
LONG = 40
"""Lines of a function above which it counts as long."""

SECOND_BODIES = re.compile(r"lower\w*|can_lower|use_kernels|_on_device")
"""Methods of layers that compute what forward() computes, in another way."""
DOOR = ("kernels.cpu", "kernels.triton")
NEUTRAL = ("worker.layers", "worker.models", "kernels.attention")
"""Folders that should not know how kernels compute."""

POINTER = re.compile(r"See (?:[^.]|\.(?=\w))+\.")
"""A docstring that says nothing by itself."""

Graph = dict[str, set[str]]


@dataclass
class Function:
    """One function or method."""

    name: str
    lines: int
    has_docstring: bool
    parameters: int
    annotated_parameters: int
    has_return: bool


@dataclass
class Module:
    """One source file. Imports are names of modules of the same repository."""

    name: str  # dotted
    lines: int
    folder: str  # dotted name of the package that holds it
    functions: list[Function] = field(default_factory=list)
    classes: list[str] = field(default_factory=list)
    pointers: list[str] = field(default_factory=list)  # what has a docstring that only says "See X."
    repeated: list[str] = field(default_factory=list)  # constants that get a second value
    imports: set[str] = field(default_factory=set)
    type_imports: set[str] = field(default_factory=set)  # under TYPE_CHECKING
    names: set[str] = field(default_factory=set)  # dotted, that it imports from modules


def source_files(room: str) -> list[Path]:
    """Python files of a room in order, without generated code."""
    return [path for path in sorted((ROOT / room).rglob("*.py")) if not is_generated(path)]


def is_generated(path: Path) -> bool:
    """True for protobuf code, and for files whose first line says that they are generated."""
    with path.open(encoding="utf-8") as file:
        return "_pb2" in path.name or file.readline().startswith("# Generated")


def module_name(path: Path) -> str:
    """The dotted name that a file is imported by."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def read_module(path: Path, known: set[str]) -> Module:
    """Parses one file. known: names of all modules of the repository."""
    text = path.read_text(encoding="utf-8")
    tree = ast.parse(text)
    folder = ".".join(path.relative_to(ROOT).parent.parts)
    module = Module(module_name(path), len(text.splitlines()), folder)
    guarded = {id(node) for block in type_checking_blocks(tree) for node in ast.walk(block)}
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            module.functions.append(read_function(node))
            if POINTER.fullmatch(ast.get_docstring(node) or ""):
                module.pointers.append(node.name)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            target = module.type_imports if id(node) in guarded else module.imports
            target.update(imported(node, known) - {module.name})
            if isinstance(node, ast.ImportFrom):
                module.names.update(f"{node.module}.{alias.name}" for alias in node.names)
    module.classes = [node.name for node in tree.body if isinstance(node, ast.ClassDef)]
    targets = [node.targets[0] for node in tree.body if isinstance(node, ast.Assign)]
    counts = Counter(target.id for target in targets if isinstance(target, ast.Name))
    module.repeated = [name for name, count in counts.items() if count > 1]
    return module


def type_checking_blocks(tree: ast.Module) -> Iterator[ast.If]:
    """The `if TYPE_CHECKING:` blocks of a file."""
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            yield node


def imported(node: ast.Import | ast.ImportFrom, known: set[str]) -> set[str]:
    """Modules of the repository that one import statement loads by name."""
    if isinstance(node, ast.Import):
        return {alias.name for alias in node.names} & known
    base = node.module or ""
    below = {f"{base}.{alias.name}" for alias in node.names} & known
    return below or ({base} & known)


def read_function(node: ast.FunctionDef | ast.AsyncFunctionDef) -> Function:
    """Measures one function; `self` and `cls` do not count as parameters."""
    arguments = node.args
    every = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
    every += [extra for extra in (arguments.vararg, arguments.kwarg) if extra is not None]
    every = [argument for argument in every if argument.arg not in ("self", "cls")]
    return Function(
        name=node.name,
        lines=(node.end_lineno or node.lineno) - node.lineno + 1,
        has_docstring=ast.get_docstring(node) is not None,
        parameters=len(every),
        annotated_parameters=sum(argument.annotation is not None for argument in every),
        has_return=node.returns is not None,
    )


def cycles(graph: Graph) -> list[list[str]]:
    """The strongly connected components of more than one node (Tarjan), each sorted."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []

    def visit(node: str) -> None:
        index[node] = low[node] = len(index)
        stack.append(node)
        for other in sorted(graph.get(node, ())):
            if other not in index:
                visit(other)
                low[node] = min(low[node], low[other])
            elif other in stack:
                low[node] = min(low[node], index[other])
        if low[node] == index[node]:
            component = stack[stack.index(node) :]
            del stack[stack.index(node) :]
            if len(component) > 1:
                found.append(sorted(component))

    sys.setrecursionlimit(10_000)
    for node in sorted(graph):
        if node not in index:
            visit(node)
    return found


def module_graph(modules: list[Module], with_types: bool) -> Graph:
    """Maps each module to the modules that it imports by name, without what their packages load."""
    return {
        module.name: module.imports | (module.type_imports if with_types else set()) for module in modules
    }


def folder_graph(modules: list[Module], with_types: bool) -> Graph:
    """Imports between the folders of a room. Files beside the folders stand for themselves.

    A folder and a folder inside it are parts of one thing: imports between these two do not count.
    """
    by_name = {module.name: module for module in modules}

    def node(name: str) -> str:
        folder = by_name[name].folder
        return folder if "." in folder else name

    graph: Graph = defaultdict(set)
    for name, targets in module_graph(modules, with_types).items():
        for target in targets:
            if target in by_name and not is_part(node(name), node(target)):
                graph[node(name)].add(node(target))
    return graph


def is_part(one: str, other: str) -> bool:
    """True if one of two folders is the other one, or lies in it."""
    return f"{one}.".startswith(f"{other}.") or f"{other}.".startswith(f"{one}.")


def percentile(values: list[int], part: float) -> int:
    """The value at that part of the sorted list."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(part * len(ordered)))] if ordered else 0


def spread(values: list[int]) -> str:
    """Median, 90th percentile and largest of some numbers."""
    return f"{int(statistics.median(values))} / {percentile(values, 0.9)} / {max(values)}" if values else "-"


def row(label: str, modules: list[Module], test_lines: int | None) -> str:
    """One line of the first table."""
    functions = [function for module in modules for function in module.functions]
    public = [function for function in functions if not function.name.startswith("_")]
    parameters = sum(function.parameters for function in functions)
    annotated = sum(function.annotated_parameters for function in functions)
    lines = sum(module.lines for module in modules)
    many = sum(function.lines > LONG for function in functions)
    share = 100 * annotated // max(1, parameters)
    returns = 100 * sum(function.has_return for function in functions) // max(1, len(functions))
    documented = 100 * sum(function.has_docstring for function in public) // max(1, len(public))
    tests = "" if test_lines is None else f"{test_lines / max(1, lines):.2f}"
    return (
        f"| {label} | {len(modules)} | {lines:,} | {spread([m.lines for m in modules])} | "
        f"{spread([f.lines for f in functions])} | {many} = {100 * many / max(1, len(functions)):.1f} % | "
        f"{documented} % | {share} / {returns} | {tests} |"
    )


def count_lines(folder: Path) -> int:
    """Lines of Python below a folder."""
    return sum(len(path.read_text(encoding="utf-8").splitlines()) for path in folder.rglob("*.py"))


def read_rooms() -> dict[str, list[Module]]:
    """All modules by room."""
    files = {room: source_files(room) for room in ROOMS}
    known = {module_name(path) for paths in files.values() for path in paths}
    return {room: [read_module(path, known) for path in paths] for room, paths in files.items()}


def repeated_classes(modules: list[Module]) -> list[str]:
    """Public class names that are defined more than once in a folder, each with its folder before it."""
    counts = Counter(
        f"{module.folder}.{name}" for module in modules for name in module.classes if not name.startswith("_")
    )
    return sorted(name for name, count in counts.items() if count > 1)


def faults(rooms: dict[str, list[Module]]) -> list[str]:
    """Broken rules, one sentence each."""
    every = [module for modules in rooms.values() for module in modules]
    found = [f"import cycle: {' -> '.join(circle)}" for circle in cycles(module_graph(every, False))]
    for modules in rooms.values():
        found += [f"folder cycle: {' -> '.join(circle)}" for circle in cycles(folder_graph(modules, False))]
        found += [f"class {name} is defined twice" for name in repeated_classes(modules)]
        found += [
            f"{module.name}: the docstring of {name} only points elsewhere"
            for module in modules
            for name in module.pointers
        ]
        found += [f"{module.name}: {name} gets two values" for module in modules for name in module.repeated]
    return found


def report(rooms: dict[str, list[Module]]) -> Iterator[str]:
    """The tables, as Markdown."""
    columns = "room", "files", "lines", "file med/p90/max", "function med/p90/max", "> 40 lines"
    yield f"| {' | '.join((*columns, 'docstrings', 'annotated p/r', 'tests'))} |"
    yield "| --- | ---: | ---: | --- | --- | ---: | ---: | ---: | ---: |"
    for room, modules in rooms.items():
        yield row(room, modules, count_lines(ROOT / "tests" / room))
    every = [module for modules in rooms.values() for module in modules]
    yield row("**all**", every, count_lines(ROOT / "tests"))
    yield ""
    yield "| folder | files | lines |"
    yield "| --- | ---: | ---: |"
    folders: dict[str, list[Module]] = defaultdict(list)
    for modules in rooms.values():
        for module in modules:
            folders[module.folder].append(module)
    for folder in sorted(folders):
        inside = folders[folder]
        yield f"| {folder.replace('.', '/')} | {len(inside)} | {sum(m.lines for m in inside):,} |"
    yield ""
    circles = cycles(module_graph(every, False)), cycles(module_graph(every, True))
    folder_circles = [
        sum(len(cycles(folder_graph(modules, types))) for modules in rooms.values())
        for types in (False, True)
    ]
    yield (
        f"Import cycles among modules: {len(circles[0])} at run time, {len(circles[1])} with TYPE_CHECKING; "
        f"among folders: {folder_circles[0]} and {folder_circles[1]}."
    )


def used_by_one(modules: list[Module]) -> float:
    """The share of modules that exactly one other module imports, in percent."""
    users = Counter(target for module in modules for target in module.imports | module.type_imports)
    return 100 * sum(users[module.name] == 1 for module in modules) / max(1, len(modules))


def size(folder: str) -> str:
    """Lines and files of Python below a folder."""
    files = list((ROOT / folder).rglob("*.py"))
    return f"{count_lines(ROOT / folder):,} in {len(files)}"


def goals(rooms: dict[str, list[Module]]) -> Iterator[str]:
    """Figures that have a goal, as Markdown."""
    every = [module for modules in rooms.values() for module in modules]
    worker = rooms["worker"]
    bodies = [
        f"{module.name}: {function.name}"
        for module in worker
        for function in module.functions
        if SECOND_BODIES.fullmatch(function.name)
    ]
    door = {name for module in worker for name in module.names if name.startswith("kernels.")}
    leaks = [
        module.name
        for module in worker
        if module.folder.startswith(NEUTRAL) and any(name.startswith(DOOR) for name in module.names)
    ]
    rows: list[tuple[str, object, str]] = [
        (
            "source, lines in files",
            f"{sum(module.lines for module in every):,} in {len(every)}",
            "84,000 in 900",
        ),
        ("modules that exactly one other imports", f"{used_by_one(every):.0f} %", "25 %"),
        ("second bodies of layers", len(bodies), "0"),
        ("names of kernels that worker imports", len(door), "60"),
        ("modules of layers and models that know kernels.cpu or .triton", len(leaks), "0"),
        ("worker, lines", f"{sum(module.lines for module in worker):,}", "14,000"),
        ("benchmarks, lines in files", size("benchmarks"), "7,000"),
        ("packages, lines in files, with their tests", size("packages"), ""),
        ("tests, lines in files", size("tests"), ""),
        ("docs/structure.md, lines", len((ROOT / "docs/structure.md").read_text().splitlines()), "250"),
    ]
    yield "| figure | now | at most |"
    yield "| --- | ---: | ---: |"
    for name, now, most in rows:
        yield f"| {name} | {now} | {most} |"


def main() -> None:
    """The command."""
    rooms = read_rooms()
    if "--check" not in sys.argv[1:]:
        print("\n".join([*report(rooms), "", *goals(rooms)]))
        return
    found = faults(rooms)
    print("\n".join(found) if found else "the structure holds")
    sys.exit(bool(found))


if __name__ == "__main__":
    main()
