"""Adapters of a simulation: folders whose files change, names that come and go, a memory for few of them."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random

from engine_core.adapters.sources import MAX_DEATHS
from pagewire_simulated.adapters import FILES, digest_of
from pagewire_simulated.tokens import adapted_by
from tests.frontend.fakes import SPECIAL

INVOCATIONS = ((len(SPECIAL) + 33,), (len(SPECIAL) + 33, len(SPECIAL) + 34))
"""Token ids that activate an adapter (aLoRA)."""
FIXED = "fixed"
"""Name and folder of the adapter of --lora."""
FATAL = "fatal"
"""Name and folder of an adapter whose load kills the worker."""
ALIAS = "alias"
"""A name that is no folder's."""


@dataclass(frozen=True)
class AdapterFiles:
    """What a folder holds."""

    weights: bytes
    invocation: tuple[int, ...] = ()

    @property
    def config(self) -> bytes:
        """The bytes of adapter_config.json."""
        return json.dumps({"r": 8, "alora_invocation_tokens": self.invocation}).encode()

    @property
    def digest(self) -> bytes:
        """The digest of the adapter."""
        return digest_of(self.config, self.weights)

    def write(self, folder: Path) -> None:
        """Replaces what a folder holds."""
        folder.mkdir(parents=True, exist_ok=True)
        for name, content in zip(FILES, (self.config, self.weights), strict=True):
            (folder / name).write_bytes(content)


@dataclass(frozen=True)
class AdapterChange:
    """An operator loads a folder under a name, or unloads a name; or the files of a folder change."""

    at: float
    place: int  # of the frontend that is asked
    name: str = ""
    folder: str = ""  # "": the name is unloaded
    files: AdapterFiles | None = None  # what the folder holds from now on


@dataclass
class Adapters:
    """All of a simulation."""

    folders: dict[str, AdapterFiles]
    """At the start."""
    changes: list[AdapterChange] = field(default_factory=list)
    memory: int = 0
    """Bytes, of --lora-memory."""
    longest_load: float = 0.0
    """Seconds."""

    def schedule(self, start: float, end: float) -> None:
        """Sets the times of all changes, drawn from 0 to 1, to seconds."""
        self.changes = [replace(each, at=start + each.at * (end - start)) for each in self.changes]

    @property
    def fatal(self) -> set[bytes]:
        """Digests of those that kill the worker."""
        return {self.folders[FATAL].digest} if FATAL in self.folders else set()

    def of_name(self, name: str) -> dict[bytes, tuple[int, ...]]:
        """Returns what a name may stand for at any time: invocations by digest, that of the start first."""
        if not name:
            return {}
        sources = [name] * (name in self.folders)
        sources += [change.folder for change in self.changes if change.name == name and change.folder]
        found = [self.folders[source] for source in sources]
        found += [change.files for change in self.changes if change.files and change.folder in sources]
        return {files.digest: files.invocation for files in found}


def draw_adapters(seed: int, step: float, num_frontends: int) -> Adapters:
    """Draws folders, and what becomes of them. step: seconds of one."""
    random = Random(f"adapters {seed}")

    def files(version: int, name: str) -> AdapterFiles:
        invocation = random.choice([(), (), *INVOCATIONS])
        return AdapterFiles(f"{name} {version} ".encode() * random.randint(4, 12), invocation)

    plain = random.sample("abcd", random.choice([1, 2, 3, 4]))
    names = [*plain, FIXED, *([FATAL] if random.random() < 0.15 else [])]
    made = Adapters({name: files(0, name) for name in names})
    for version in range(1, 1 + random.choice([0, 0, 1, 3, 8, 12])):
        folder, at, place = random.choice(plain), random.random(), random.randrange(num_frontends)
        name = random.choice([folder, folder, random.choice(plain), ALIAS])
        kind = random.choice(["load", "files", "files and load", "unload"])
        if kind.startswith("files"):
            made.changes.append(AdapterChange(at, place, folder=folder, files=files(version, folder)))
        if kind.endswith("load"):
            made.changes.append(AdapterChange(at, place, name, folder if kind != "unload" else ""))
    sizes = [len(each.weights) for each in (*made.folders.values(), *_files(made.changes))]
    room = random.choice([1.0, 1.0, 1.5, 2.5, 9.0])
    made.memory = len(made.folders[FIXED].weights) + int(room * max(sizes))
    made.longest_load = step * random.choice([0.0, 5.0, 100.0])
    return made


def may_fail(
    reason: str, name: str, adapters: Mapping[bytes, tuple[int, ...]], num_worker_deaths: int
) -> bool:
    """Returns whether a request may end for this reason, as to its adapter. adapters: what its name may stand
    for."""
    return {
        "ADAPTER_QUARANTINED": name == FATAL or num_worker_deaths >= MAX_DEATHS,
        "ADAPTER_CHANGED": len(adapters) > 1,
        "ADAPTERS_DIFFER": len(adapters) > 1,
        "MODEL_NOT_FOUND": name == ALIAS,
    }.get(reason, False)


def invocation_start(prompt: Sequence[int], invocation: Sequence[int]) -> int | None:
    """Returns from where on an adapter adapts a prompt; None: nowhere."""
    ends = range(len(invocation), len(prompt) + 1) if invocation else ()
    found = [end for end in ends if list(prompt[end - len(invocation) : end]) == list(invocation)]
    return max(found) - len(invocation) if found else 0 if not invocation else None


def adapted(prompt: Sequence[int], digest: bytes, invocation: Sequence[int]) -> bytes:
    """Returns what an adapter adds to the formula of tokens."""
    start = invocation_start(prompt, invocation)
    return b"" if start is None else adapted_by(digest, start)


def _files(changes: Iterable[AdapterChange]) -> list[AdapterFiles]:
    return [change.files for change in changes if change.files is not None]
