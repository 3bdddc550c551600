"""The order of things: peers are started, and then take turns, workload by workload.

In each round every peer has the same requests, whose token ids no peer has seen before. What the machine does
meanwhile meets all of them. A run that others disturbed is made again, with new requests.
"""

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import count
from pathlib import Path

import torch

from benchmarks.adapter_files import shapes_of, write_adapter
from benchmarks.versus import records
from benchmarks.versus.catalog import (
    ADAPTER_RANK,
    PEERS,
    SERVERS,
    Missing,
    adapter_folders,
    command,
    environment,
    served,
)
from benchmarks.versus.child import Child, PeerFailed
from benchmarks.versus.contention import look, shares
from benchmarks.versus.peers.harness import Settings
from benchmarks.versus.registers import threads_with_avx512
from benchmarks.versus.roof import Limits, read_shape
from pagewire_bench.workloads import SHORT, WORKLOADS, Request

MAX_MODEL_LEN = 4096
MAX_NUM_SEQS = 64
CACHE_GB = 2
"""More than any workload fills: 1.3 GB, W3 on M1."""


@dataclass(frozen=True)
class Wishes:
    """What is to be compared. Names of peers, models and workloads (W1 to W5)."""

    folder: Path
    peers: Sequence[str]
    models: Sequence[str]
    workloads: Sequence[str]
    repeats: int
    threads: int
    most_disturbance: float
    """Percent of all cores that others may have."""
    tries: int
    """Of each run, while it is disturbed."""
    patience_s: float
    """Of each run."""
    flags: Sequence[str]
    """For our own service."""
    held_to: str = ""
    """An instruction set that ours and all peers are held to; a key of catalog.HELD_TO."""


class Comparison:
    """Writes what it finds out as it goes."""

    def __init__(self, wishes: Wishes, write: Callable[[str], None], tell: Callable[[str], None]) -> None:
        """write: takes lines for the file. tell: prints progress."""
        self._wishes, self._write, self._tell = wishes, write, tell
        self._numbers = count()

    def run(self) -> None:
        """All models, one after the other."""
        for model in self._wishes.models:
            with contextlib.ExitStack() as stack:
                peers = self._start(model, stack)
                if not peers:
                    continue
                shape = read_shape(self._wishes.folder / "models" / model)
                self._write(records.line_of("model", shape, name=model))
                for workload in self._wishes.workloads:
                    self._write(records.line_of("limits", measure_limits(self._wishes.threads)))
                    self._run_workload(model, workload, peers)

    def _start(self, model: str, stack: contextlib.ExitStack) -> dict[str, Child]:
        """Those that are there, loaded and warm."""
        peers = {}
        for name in self._wishes.peers:
            try:
                child = stack.enter_context(contextlib.closing(self._start_one(name, model)))
                for requests in self._warm_up(model):
                    child.run(requests, self._wishes.patience_s)
                self._check_held(child)
            except (Missing, PeerFailed) as error:
                self._fail(model, "start", name, error)
            else:
                self._tell(f"{model} {name}: loaded, {child.versions}")
                peers[name] = child
        return peers

    def _start_one(self, name: str, model: str) -> Child:
        wishes = self._wishes
        start, data = command(name, wishes.folder, model, wishes.held_to)
        settings = Settings(
            model=str(data),
            weights=PEERS[name].weights,
            threads=wishes.threads,
            max_model_len=MAX_MODEL_LEN,
            max_num_seqs=MAX_NUM_SEQS,
            cache_gb=CACHE_GB,
        )
        make_adapters(adapter_folders(wishes.folder, settings.model, PEERS[name].adapters), data)
        settings = served(name, wishes.folder, settings, wishes.flags, wishes.held_to)
        around = environment(name, wishes.folder, wishes.threads, CACHE_GB, wishes.held_to)
        if name in SERVERS:  # the server has it, and the client that of any shell
            around = dict(os.environ)
        logs = wishes.folder / "logs"
        logs.mkdir(exist_ok=True)
        return Child(start, settings, around, logs / f"{name}-{model}.log")

    def _check_held(self, child: Child) -> None:
        """Raises PeerFailed for a peer that has used registers beyond what it is held to."""
        if not self._wishes.held_to:
            return
        try:
            used = threads_with_avx512(child.pid)
        except OSError as error:
            raise PeerFailed(f"its registers cannot be seen: {error}") from None
        if used:
            threads = "; ".join(f"{thread}: {', '.join(registers)}" for thread, registers in used.items())
            raise PeerFailed(f"it is not held to {self._wishes.held_to}, AVX-512 is in use by {threads}")

    def _requests(self, model: str, workload: str, number: int) -> list[Request]:
        config = json.loads((self._wishes.folder / "models" / model / "config.json").read_text())
        return WORKLOADS[SHORT[workload]].requests(number, config["vocab_size"], MAX_MODEL_LEN)

    def _warm_up(self, model: str) -> list[list[Request]]:
        """One alone, then sixteen: whatever is made on first use is made by then."""
        batch = self._requests(model, "W2", next(self._numbers))
        few = [Request(request.prompt[:40], 8) for request in batch[:16]]
        return [[Request(batch[16].prompt[:64], 16)], few]

    def _run_workload(self, model: str, workload: str, peers: dict[str, Child]) -> None:
        """Runs the rounds of a workload. A peer that fails is left out of this one and all that follow."""
        for _ in range(self._wishes.repeats):
            for name in list(peers):
                try:
                    self._run_peer(model, workload, name, peers[name])
                except PeerFailed as error:
                    self._fail(model, workload, name, error)
                    peers.pop(name).close()

    def _run_peer(self, model: str, workload: str, name: str, child: Child) -> None:
        """Once, and again while others disturb it."""
        for _ in range(self._wishes.tries):
            number = next(self._numbers)
            requests = self._requests(model, workload, number)
            before = look(child.pid)
            answer = child.run(requests, self._wishes.patience_s)
            after = look(child.pid)
            self._check_held(child)
            run = records.make_run(
                answer,
                shares(before, after, os.cpu_count() or 1),
                self._wishes.most_disturbance,
                model=model,
                workload=workload,
                peer=name,
                weights=PEERS[name].weights,
                number=number,
                date=datetime.now(UTC).isoformat(timespec="seconds"),
                versions=child.versions,
            )
            self._write(records.line_of("run", run))
            self._tell(
                f"{model} {workload} {name}: {run.tokens_per_s:.1f} tokens/s,"
                f" others {run.others:.1f} %, steal {run.steal:.1f} %{'' if run.is_quiet else ': disturbed'}"
            )
            if run.is_quiet:
                return

    def _fail(self, model: str, workload: str, name: str, error: Exception) -> None:
        self._write(records.line_of("failure", records.Failure(model, workload, name, str(error))))
        self._tell(f"{model} {workload} {name}: {error}")


def make_adapters(folders: Sequence[Path], model: Path) -> None:
    """Writes those that are not there, in bfloat16, of all projections of a model."""
    for number, folder in enumerate(folders):
        if not folder.exists():
            write_adapter(folder, shapes_of(model), ADAPTER_RANK, number, torch.bfloat16)


def measure_limits(threads: int) -> Limits:
    """In a process of its own, which leaves neither threads nor memory behind."""
    given = [sys.executable, "-m", "benchmarks.versus.peaks", str(threads)]
    return Limits(**json.loads(subprocess.run(given, check=True, capture_output=True, text=True).stdout))
