"""The import rules of the house (docs/structure.md): the rooms meet only in the contracts."""

import ast
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
ROOMS = {"frontend", "engine_core", "worker", "kernels"}
GROUND = {
    "host",
    "ipc",
    "telemetry",
    "v1",
    "internal",
    "config",
    "errors",
    "gguf",
    "logs",
    "checkpoints",
    "plugins",
    "retry_after",
    "limits",
    "media",
    "speculation",
}
"""The parts of pagewire that a room may import: contracts, configuration, and plumbing."""
HEAVY = {"torch", "transformers", "triton", "safetensors"}

ALLOWED_ROOMS = {"frontend": set(), "engine_core": set(), "worker": {"kernels"}, "kernels": set()}
ALLOWED_IN = {"frontend/audio": {"numpy"}}
"""What folders may import all the same; processes import it when they need it."""
FORBIDDEN = {
    "frontend": HEAVY | {"numpy"},
    "engine_core": HEAVY,
    "worker": {"transformers"},  # packages/pagewire-transformers imports it
    "kernels": {"transformers"},
}


@cache
def import_statements(path: Path) -> tuple[ast.Import | ast.ImportFrom, ...]:
    """The imports of a file, at any depth. Only statements are walked: expressions are most of a tree."""
    found: list[ast.Import | ast.ImportFrom] = []
    waiting: list[ast.AST] = [ast.parse(path.read_text(encoding="utf-8"))]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.Import | ast.ImportFrom):
            found.append(node)
        for block in ("body", "orelse", "finalbody", "handlers", "cases"):
            waiting += getattr(node, block, ())
    return tuple(found)


@cache
def imports_of(path: Path) -> frozenset[str]:
    """Dotted names of everything that a file imports, at any depth; `from a import b` gives a.b."""
    names: set[str] = set()
    for node in import_statements(path):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        else:
            assert node.level == 0, f"{path}: relative import"
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return frozenset(names)


def offences(room: str) -> Iterator[str]:
    for path in sorted((ROOT / room).rglob("*.py")):
        for name in imports_of(path):
            top, _, rest = name.partition(".")
            part = rest.partition(".")[0]
            forbidden = top in FORBIDDEN[room] - ALLOWED_IN.get(
                path.parent.relative_to(ROOT).as_posix(), set()
            )
            wrong = forbidden or (top in ROOMS - {room} - ALLOWED_ROOMS[room])
            wrong |= top == "pagewire" and part not in GROUND | {"__version__"}
            wrong |= room == "kernels" and top == "pagewire"
            if wrong:
                yield f"{path.relative_to(ROOT)} imports {name}"


@pytest.mark.parametrize("room", sorted(ROOMS))
def test_rooms_import_only_what_they_may(room: str):
    assert list(offences(room)) == []


GRPC_ADAPTERS = ("frontend/rpc/", "frontend/servicers/", "frontend/grpc_services.py", "frontend/server.py")
"""The parts of the frontend that know gRPC; everything else serves any transport."""


def test_grpc_is_one_adapter_of_the_frontend():
    """Authentication, limits, write timeouts, traces and errors take no gRPC objects."""
    for path in sorted((ROOT / "frontend").rglob("*.py")):
        relative = path.relative_to(ROOT).as_posix()
        names = imports_of(path)
        uses = {name for name in names if name.partition(".")[0].startswith("grpc") or "_pb2_grpc" in name}
        uses |= {name for name in names if name.startswith(("frontend.rpc", "frontend.servicers"))}
        assert not uses or relative.startswith((*GRPC_ADAPTERS, "frontend/main.py")), f"{relative}: {uses}"


PACKAGES = {path.parent.name: path.parent for path in ROOT.glob("packages/*/src/*/__init__.py")}
OURS = ROOMS | PACKAGES.keys() | {"pagewire", "tests", "benchmarks", "scripts"}


@cache
def defined_in(module: str) -> set[str]:
    """Names that a module of ours defines or imports, and the modules of a package. Empty: no such module."""
    top, *rest = module.split(".")
    path = PACKAGES.get(top, ROOT / top).joinpath(*rest)
    file = path.with_name(path.name + ".py")
    names: set[str] = set()
    if not file.exists() and path.is_dir():  # beside a file, a folder is what git leaves of a former package
        file, names = path / "__init__.py", {child.stem for child in path.iterdir()}
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))) if file.exists() else ():
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
        elif isinstance(node, ast.alias):
            names.add(node.asname or node.name.partition(".")[0])
    return names


SEAMS = {
    "pagewire_bench": {
        *("pagewire", "pagewire.cli.connect", "pagewire.command_config", "pagewire.errors", "pagewire.flags"),
        *("pagewire.v1", "pagewire_client.aio", "pagewire_client.errors", "pagewire_client.params"),
    },
    "pagewire_client": {"pagewire.errors", "pagewire.v1"},
    "pagewire_replay": {
        *("engine_core.beam_search", "engine_core.kv_cache", "engine_core.quarantine", "engine_core.queue"),
        *("engine_core.recording", "engine_core.request", "engine_core.scheduler", "engine_core.step"),
        *("pagewire.command_config", "pagewire.errors", "pagewire.flags", "pagewire.internal.v1"),
        *("pagewire.ipc.columns", "pagewire.v1"),
    },
    "pagewire_simulated": {
        *("kernels.cpu.runtime.rank_link", "kernels.ops.attention.ragged", "kernels.wanted"),
        *("pagewire", "pagewire.config", "pagewire.errors", "pagewire.internal.v1"),
        *("pagewire.ipc.columns", "pagewire.media", "worker.config", "worker.cpu.rank_memory"),
        *("worker.exactness", "worker.group_shape"),
        "worker.executor",
        *("worker.fault_injection", "worker.grammar", "worker.memory.host_blocks", "worker.platforms.base"),
        "worker.kv_transfer.memory",
        *(
            "worker.pooling.vectors",
            "worker.sampling.logprobs",
            "worker.speculation",
            "worker.startup.checks",
        ),
        "worker.step",
    },
    "pagewire_transformers": {
        *(
            "kernels.api",
            "kernels.cpu.requirements",
            "pagewire.errors",
            "pagewire.gguf",
            "pagewire.internal.v1",
        ),
        *("worker.config", "worker.exactness", "worker.imports", "worker.layers", "worker.models.base"),
        *("worker.startup.implementation", "worker.weights"),
    },
    "ptx_emulator": {"kernels.triton.assembler", "kernels.triton.capabilities"},
    "pagewire_gateways": {
        *("frontend.call.call", "frontend.engine", "frontend.errors", "frontend.parts", "frontend.rpc"),
        *("frontend.prompts.prompt_encoding", "frontend.servicers.tokenizer", "frontend.streams"),
        *("frontend.field_names", "frontend.tokenization", "frontend.validation", "frontend.vectors"),
        *("pagewire", "pagewire.cli.connect", "pagewire.cli.extras", "pagewire.command_config"),
        *("pagewire.config", "pagewire.errors", "pagewire.flags", "pagewire.host"),
        *("pagewire.internal.v1", "pagewire.ipc.columns", "pagewire.limits", "pagewire.logs"),
        *(
            "pagewire.retry_after",
            "pagewire.v1",
            "pagewire_client.transport.channel",
            "pagewire_client.transport.credentials",
        ),
    },
    "pagewire_openai": {
        *("frontend.call.call", "frontend.errors", "frontend.http", "frontend.inspector", "frontend.parts"),
        *("frontend.streams.pooling", "frontend.streams.request_spec", "frontend.streams.scorer"),
        *("frontend.field_names", "frontend.streams.stream", "frontend.templates.chat_template"),
        *("frontend.templates.conversation", "frontend.tokenization", "frontend.validation.requests"),
        *("frontend.validation.rules", "frontend.vectors", "pagewire", "pagewire.host.addresses"),
        *("pagewire.ipc.columns", "pagewire.v1"),
    },
    "pagewire_console": {
        *("frontend.auth", "frontend.call.call", "frontend.engine", "frontend.errors", "frontend.http"),
        *("frontend.inspector", "frontend.parts", "frontend.telemetry.counters"),
        *("pagewire", "pagewire.host.addresses", "pagewire.internal.v1", "pagewire.telemetry.figures"),
        "pagewire.v1",
    },
}
"""What a package may import of the product: modules, and all modules of a folder."""


@pytest.mark.parametrize("package", sorted(PACKAGES))
def test_packages_import_the_product_by_its_seams(package: str):
    """And do not import one another, except for the client."""
    others = OURS - {package}
    wrong = []
    for path in sorted(PACKAGES[package].rglob("*.py")):
        for name in imports_of(path):
            if name.partition(".")[0] not in others or "_pb2" in path.name:
                continue
            module = name if not defined_in(name.rpartition(".")[0]) else name.rpartition(".")[0]
            parts = module.split(".")
            above = {".".join(parts[:end]) for end in range(2, len(parts) + 1)} | {module}
            if not above & SEAMS.get(package, set()):
                wrong.append(f"{path.relative_to(ROOT)} imports {name}")
    assert wrong == []


def test_nothing_of_the_product_imports_a_package():
    """It loads plug-ins by their entry points. Commands and pagewire.LLM import the client."""
    users_of_the_client = {"pagewire/__init__.py", "pagewire/llm.py"}
    for room in sorted(ROOMS | {"pagewire"}):
        for path in sorted((ROOT / room).rglob("*.py")):
            place = path.relative_to(ROOT).as_posix()
            uses_client = place in users_of_the_client or place.startswith("pagewire/cli/")
            imported = {name.partition(".")[0] for name in imports_of(path)} & PACKAGES.keys()
            assert imported <= ({"pagewire_client"} if uses_client else set()), f"{place} imports {imported}"


def test_entry_points_and_versions_are_those_of_the_wheel():
    """A package that is built alone is found like one in the wheel; the client needs what the base does."""
    projects = [tomllib.loads(file.read_text())["project"] for file in ROOT.glob("packages/*/pyproject.toml")]
    wheel = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert len(projects) == len(PACKAGES)
    (client,) = (each for each in projects if each["name"] == "pagewire-client")
    assert (client["dependencies"], client["scripts"]) == (wheel["dependencies"], wheel["scripts"])
    assert {each["version"] for each in projects} == {wheel["version"]}
    found: dict[str, dict[str, str]] = {}
    for project in projects:
        for group, names in project.get("entry-points", {}).items():
            found.setdefault(group, {}).update(names)
    assert found == wheel["entry-points"]


@pytest.mark.parametrize("folder", ["tests", "benchmarks", "scripts", "packages"])
def test_what_is_imported_from_rooms_is_there(folder: str):
    """mypy reads the rooms alone; an import within a function of a test or a benchmark fails late."""
    missing = []
    for path in sorted((ROOT / folder).rglob("*.py")):
        for node in import_statements(path):
            if isinstance(node, ast.ImportFrom) and node.module and node.module.partition(".")[0] in OURS:
                absent = {alias.name for alias in node.names} - defined_in(node.module)
                missing += [
                    f"{path.relative_to(ROOT)}: {node.module}.{name}"
                    for name in absent
                    if "_pb2" not in f"{node.module}.{name}"
                ]
    assert missing == []


DANGEROUS_MODULES = {"pickle", "cloudpickle", "dill", "marshal", "shelve"}
DANGEROUS_CALLS = {"eval", "exec", "compile", "__import__", "recv_pyobj", "send_pyobj"}


def dangers(path: Path) -> Iterator[str]:
    """Ways to run what was read. (re.compile is none, and safetensors' load is not torch's.)"""
    for name in imports_of(path):
        if name.partition(".")[0] in DANGEROUS_MODULES:
            yield name
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        match node:
            case ast.Call(func=ast.Name(called)) if called in DANGEROUS_CALLS:
                yield called
            case ast.Call(func=ast.Attribute(ast.Name("torch"), "load")):
                yield "torch.load"
            case ast.Call(func=ast.Attribute(attr=called) | ast.Name(called)) if called.endswith("_pyobj"):
                yield called


@pytest.mark.parametrize("room", sorted(ROOMS | {"pagewire"}))
def test_nothing_that_is_read_is_run(room: str):
    """No process with a socket unpickles, evaluates or loads code, and all of ours have one."""
    found = {str(path.relative_to(ROOT)): [*dangers(path)] for path in sorted((ROOT / room).rglob("*.py"))}
    assert {path: names for path, names in found.items() if names} == {}


def test_only_commands_import_rooms():
    """pagewire.cli starts the rooms; clients, configuration and contracts know nothing of them."""
    for path in sorted((ROOT / "pagewire").rglob("*.py")):
        rooms = {name.partition(".")[0] for name in imports_of(path)} & (ROOMS | HEAVY | {"numpy"})
        expected = {
            "processes.py": {"frontend", "engine_core", "worker"},
            "replay.py": {"engine_core"},
            # hashes of --api-key, checks before a download
            "serve.py": {"frontend", "engine_core", "worker"},
            "credentials.py": {"frontend"},
        }
        allowed = expected.get(path.name, set()) if path.parent.name == "cli" else set()
        assert rooms <= allowed, f"{path.relative_to(ROOT)} imports {rooms - allowed}"


def loaded_by(statement: str) -> set[str]:
    """Top-level modules that a fresh interpreter has loaded after a statement."""
    code = f"{statement}\nimport sys\nprint(*{{name.partition('.')[0] for name in sys.modules}})"
    run = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    return set(run.stdout.split())


@pytest.mark.parametrize(
    ("statement", "absent"),
    [
        (
            "import frontend.main",
            HEAVY | {"numpy", "engine_core", "worker", "kernels", "starlette", "uvicorn", "h11"},
        ),
        (
            "import frontend.streams.multiplexer, frontend.streams.pooling,"
            " frontend.call.write_timeout, frontend.auth.authenticator",
            HEAVY | {"numpy", "grpc", "grpc_status"},
        ),
        (
            "import frontend.http.port, pagewire_openai.extension",
            HEAVY | {"numpy", "grpc", "grpc_status", "pydantic"},
        ),
        ("import engine_core.main", HEAVY | {"frontend", "worker", "kernels", "grpc"}),
        ("import worker.main, worker.platforms.cpu", {"transformers", "frontend", "engine_core", "grpc"}),
        (
            "import worker.main, worker.load, pagewire_simulated.platform",
            HEAVY | {"frontend", "engine_core", "grpc"},
        ),
        ("import pagewire; pagewire.Client; pagewire.AsyncClient; pagewire.LLM", HEAVY | {"numpy"} | ROOMS),
        ("import pagewire", HEAVY | {"numpy", "grpc", "google"} | ROOMS),
        ("import pagewire.__main__", HEAVY | {"numpy", "grpc", "yaml"} | ROOMS),
    ],
)
def test_what_a_process_loads(statement: str, absent: set[str]):
    """The rules hold for what imports bring along, too."""
    assert loaded_by(statement) & absent == set()


def test_transformers_does_not_take_our_kernels_for_its_own():
    """transformers looks for a package called `kernels`; a version that it knows would break it."""
    code = (
        "import kernels, transformers.utils\n"
        "from transformers import LlamaForCausalLM\n"
        "assert not transformers.utils.is_kernels_available()\n"
        "print(kernels.__file__)"
    )
    run = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    assert Path(run.stdout.strip()) == ROOT / "kernels" / "__init__.py"


DOOR = {
    "kernels.api",
    *("kernels.cpu.groups", "kernels.cpu.instruction_sets", "kernels.cpu.requirements"),
    "kernels.cpu.runtime.rank_link",
    *("kernels.ops.attention.ragged", "kernels.ops.experts.routing"),
    *("kernels.triton.requirements", "kernels.triton_ops", "kernels.wanted"),
}
"""The modules by which the worker imports kernels: all that needs torch; what is needed before torch is
imported, or without it; and what imports triton."""
OTHER_DOORS = {
    "worker/cuda/sampling/": ("kernels.triton.sampling", "kernels.triton.step"),
    "worker/cuda/startup/": ("kernels.triton.sampling",),
    "worker/platforms/cpu.py": ("kernels.cpu.sampling",),
    "worker/speculation/models/": ("kernels.cpu.sampling",),
}
"""What samplers import besides: the kernels' folders by the worker's."""
MOST_NAMES = 61
"""That the worker imports of kernels, each by its module. It may become less."""


def test_kernels_have_a_door():
    """Layers and models know no platform: they call operations, and loading chooses whose."""
    names: set[str] = set()
    for path in sorted((ROOT / "worker").rglob("*.py")):
        place = path.relative_to(ROOT).as_posix()
        imported = {name for name in imports_of(path) if name.startswith("kernels.")}
        modules = {name if name in DOOR else name.rpartition(".")[0] for name in imported}
        doors = {"kernels.api"} if place.startswith(("worker/layers/", "worker/models/")) else DOOR
        others: tuple[str, ...] = sum((more for of, more in OTHER_DOORS.items() if place.startswith(of)), ())
        wrong = {module for module in modules - doors if not module.startswith(others)}
        assert not wrong, f"{place} imports {wrong}"
        names |= imported
    assert len(names) <= MOST_NAMES
