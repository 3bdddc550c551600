"""One run: a service, 80 streams, strikes, and a history of it."""

import asyncio
import contextlib
import os
import random
import shutil
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

from pagewire import Client
from pagewire.checkpoints.paths import checkpoint_folder
from pagewire.config import DEMO_MODEL
from pagewire.host.spawn import die_with
from pagewire.local_service import Service
from pagewire.v1 import admin_pb2
from pagewire_client.results import FinishReason
from pagewire_client.transport import recovery
from tests.chaos.cases import TEMPLATE, make_cases
from tests.chaos.checker import Finding, check, hold
from tests.chaos.history import History, Writer, read
from tests.chaos.killer import Killer, plan
from tests.chaos.load import PATIENCE_S, Load, Stuck
from tests.e2e import services
from tests.simulation.adapters import AdapterFiles
from tests.worker.adapters.peft_files import write_adapter

_NO_GIVING_UP = {"max_deaths": 1_000_000, "max_restart_pause": 0.0, "resume_timeout": 2 * PATIENCE_S}
"""Nor does a client: on a machine that has a lot to do, half a minute may pass before a core is back."""
SEEING = "seeing"
"""A small model with an encoder of images, on a CPU."""
DEFAULT = "default"
"""The demo model with the default of each flag, also of those that give up."""
DEVICES: dict[str, dict[str, Any]] = {
    # A step of the demo model takes 0.1 ms on an H200: here it shall be what 80 streams in Python can follow.
    "simulated": {
        "device": "simulated",
        "profile": "h200",
        "num_blocks": 4000,
        "worker_fault": ("slow-factor=250",),
        "no_standby": False,  # which costs little
        **_NO_GIVING_UP,
    },
    "cpu": {"device": "cpu", "dtype": "float32", **_NO_GIVING_UP},
    "cuda": {"device": "cuda", "dtype": "float32", "gpu_memory_utilization": 0.5, **_NO_GIVING_UP},
    # Fewer tokens in a step than prompts have, and an encoder for one image at a time.
    SEEING: {
        "device": "cpu",
        "dtype": "float32",
        "max_num_batched_tokens": 64,
        "encoder_cache_tokens": 40,
        **_NO_GIVING_UP,
    },
    DEFAULT: {"no_standby": False},
}
TOLERANCES = {"simulated": 0.0, "cpu": 1e-3, "cuda": 1e-3, SEEING: 0.0, DEFAULT: 0.0}
"""Of log-probabilities: a resumed sequence is computed in other pieces, which a model's float32 sums show."""
FRONTENDS = 3
ADAPTED = "simulated", "cpu"
"""Devices whose streams have adapters, too."""
ADAPTERS = "first", "second"
NUM_IMAGES = 5
"""More than the encoder's cache has room for, so that images are encoded again without a kill, too."""


@dataclass(frozen=True)
class Setting:
    """What is started."""

    device: str = "simulated"
    cores: int = 1
    """Engine cores."""
    speculate: str = ""
    """How tokens are drafted; the undisturbed streams have no drafts."""
    frontends: int = FRONTENDS
    """One that is alone has a standby, where standbys are started."""
    gaps: tuple[float, float] | None = None
    """Least and most seconds between two strikes. None: the streams decide, see killer.execute()."""
    load: int = 0
    """Processes beside the service that compute all the time."""
    ranks: int = 1
    """Of each stage of a worker."""
    stages: int = 1
    """Of each worker."""

    @property
    def images(self) -> tuple[bytes, ...]:
        """Files that prompts ask about, where the model sees."""
        if self.device != SEEING:
            return ()
        from tests.frontend.media.pictures import file_of, picture  # with Pillow

        return tuple(file_of(picture(40 + 9 * number, 30)) for number in range(NUM_IMAGES))

    @property
    def adapters(self) -> tuple[str, ...]:
        """Names of adapters that streams have; simulated groups have none."""
        is_group = self.ranks * self.stages > 1
        return ADAPTERS if self.device in ADAPTED and not (is_group and self.device == "simulated") else ()


@dataclass
class Result:
    """What came of a run."""

    history: History
    findings: list[Finding]
    trouble: list[str]
    """Beyond single streams: what got stuck, what was not given back."""

    @property
    def is_fine(self) -> bool:
        """Whether nothing at all is wrong."""
        return not self.findings and not self.trouble


def run(counts: Mapping[str, int], seed: int, path: Path, setting: Setting = Setting()) -> Result:
    """Starts a service, kills as planned while clients stream, writes a history and judges it.

    counts: strikes by victim, see killer.plan().
    """
    device = setting.device
    patience = recovery.PATIENCE_S if device == DEFAULT else 2 * PATIENCE_S
    template, adapters = path.with_suffix(".jinja"), path.with_suffix(".adapters")
    template.write_text(TEMPLATE)
    model = _model_of(setting, path.with_suffix(".model"))
    _write_adapters(setting, adapters)
    writer = Writer(path, seed=seed, counts=dict(counts), tolerance=TOLERANCES[device], **asdict(setting))
    with _busy(setting.load), mock.patch.object(recovery, "PATIENCE_S", patience):
        service = services.start(
            model,
            frontends=setting.frontends,
            data_parallel_size=setting.cores,
            tensor_parallel_size=setting.ranks,
            pipeline_parallel_size=setting.stages,
            chat_template=str(template),
            speculate=setting.speculate,
            lora_folder=str(adapters) if setting.adapters else "",
            **DEVICES[device],
        )
        with service:
            try:
                trouble = asyncio.run(_strike_and_stream(service, counts, seed, setting, writer))
            finally:
                writer.close()
            trouble += _what_is_left(service)
    for folder in (adapters, path.with_suffix(".model")):
        shutil.rmtree(folder, ignore_errors=True)
    history = read(path)
    return Result(history, check(history), [*trouble, *malformed(history)])


def _model_of(setting: Setting, folder: Path) -> str:
    """Returns the model, written into the folder if it sees."""
    if setting.device != SEEING:
        return DEMO_MODEL
    from tests.vision_models import make_vision_model  # with transformers

    return str(make_vision_model(folder, "llava"))


def _write_adapters(setting: Setting, folder: Path) -> None:
    """Writes an adapter of each name, if the workers take them."""
    for number, name in enumerate(setting.adapters):
        if setting.device == "cpu":
            fields = {"r": 4 + number, "target_modules": "all-linear", "std": 0.02}
            write_adapter(checkpoint_folder(DEMO_MODEL), folder / name, merge=False, **fields)
        else:
            AdapterFiles(name.encode() * 50).write(folder / name)


@contextlib.contextmanager
def _busy(count: int) -> Iterator[None]:
    """Runs so many processes that compute all the time."""
    command, dies = [sys.executable, "-c", "while True: pass"], partial(die_with, os.getpid(), signal.SIGKILL)
    with contextlib.ExitStack() as stack:
        for _ in range(count):
            stack.callback(stack.enter_context(subprocess.Popen(command, preexec_fn=dies)).kill)
        yield


async def _strike_and_stream(
    service: Service, counts: Mapping[str, int], seed: int, setting: Setting, writer: Writer
) -> list[str]:
    """Returns what got stuck."""
    trouble: list[str] = []
    load = Load([service.address] * 2, writer, seed)
    try:
        cases = await load.make_twins(list(make_cases(setting.adapters, setting.images)))
        streams = asyncio.create_task(load.run(cases))
        try:
            while setting.gaps is not None and not await asyncio.to_thread(services.have_standbys, service):
                await asyncio.sleep(1.0)
            killer = Killer(load, service.pid, writer, random.Random(seed))
            await killer.execute(plan(counts, seed, setting.gaps), timed=setting.gaps is not None)
        except Stuck as stuck:
            trouble.append(str(stuck))
        load.stop()
        _, unfinished = await asyncio.wait([streams], timeout=PATIENCE_S)
        if unfinished:
            trouble.append("streams do not end")
            streams.cancel()
            await asyncio.wait([streams])
        elif (error := streams.exception()) is not None:
            raise error
    finally:
        await load.close()
    return trouble


def malformed(history: History) -> Iterator[str]:
    """What does not have the form that its case asks for, of the undisturbed: all others equal them. On the
    simulated device some of each kind are complete; a real model may go on to the last token of all."""
    if history.begin["device"] == SEEING:  # whose cases have no form
        return
    cases = {case.number: case for case in make_cases()}
    ended: Counter[str] = Counter()
    for number, twin in history.twins.items():
        if not cases[number].has_form:
            continue
        for held in hold(twin).values():
            if held.finish in (FinishReason.EOS, FinishReason.TOOL_CALLS):
                ended[cases[number].kind] += 1
                if (problem := cases[number].problem(held.text)) is not None:
                    yield f"case {number}, {cases[number].kind}: {problem}"
    kinds = {case.kind for case in cases.values() if case.has_form}
    for kind in kinds - ended.keys() if history.begin["device"] == "simulated" else ():
        yield f"no output of the kind {kind!r} was complete"


def _what_is_left(service: Service) -> list[str]:
    """Nothing, when no client is there any more."""
    with Client(service.address) as client:
        client.wait_ready()
        try:
            services.wait_until(lambda: not any(map(_holds_something, client.load().ranks)))
        except AssertionError:
            return [f"not given back: {client.load().ranks}"]
    return []


def _holds_something(load: admin_pb2.RankLoad) -> bool:
    return (load.running_requests, load.waiting_requests, load.kv_used_tokens) != (0, 0, 0)
