"""The flags of a load test, checked, and the load test that they describe."""

import asyncio
import os
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pagewire import __version__
from pagewire.command_config import BenchConfig
from pagewire.errors import PagewireError
from pagewire.flags import UsageError
from pagewire_bench.driver import INTERRUPTED, Driver, Interrupted, LevelRun
from pagewire_bench.load import Amount, read_goals, read_loads
from pagewire_bench.prompts import (
    FileSource,
    LengthRange,
    LengthSource,
    RandomText,
    RequestSource,
    WorkloadSource,
    is_conversation,
    is_token_ids,
    read_prompts,
)
from pagewire_bench.record import BenchRecord
from pagewire_bench.targets.target import OutputOptions, RequestFailed, ServedModel, Target
from pagewire_bench.workloads import ALL

_NUM_REQUESTS = 64
_ASSUMED_CONTEXT = 1 << 20
"""Of models whose API does not tell it."""
_ALWAYS_LEFT_OUT = frozenset(
    {"token_file", "tls_ca", "tls_cert", "tls_key", "tls_server_name", "action", "first", "second"}
)
"""Flags that are not written into files."""


def _check_files(config: BenchConfig) -> None:
    """Raises UsageError for files and folders that cannot be written."""
    for option, path in (("--json", config.json), ("--html", config.html)):
        if path and not os.access(Path(path).absolute().parent, os.W_OK):
            raise UsageError(f"cannot write {option} {path}", "its folder is not there, or not writable")
    if folder := config.svg:
        try:
            Path(folder).mkdir(exist_ok=True)
        except OSError as error:
            raise UsageError(f"cannot make the folder --svg {folder}", error.strerror or "") from None
        if not os.access(folder, os.W_OK):
            raise UsageError(f"cannot write to --svg {folder}", "it is not writable")


class BenchPlan:
    """The checked flags of a run. All that can be wrong about them is found here, before anything is sent."""

    def __init__(self, config: BenchConfig) -> None:
        """Raises UsageError."""
        self._config = config
        usual = config.rate and config.concurrency == BenchConfig.concurrency
        self._loads = read_loads(config.rate, "" if usual else config.concurrency)
        self._goals = read_goals(config.goodput)
        self._input = LengthRange.parse("--input-len", config.input_len)
        self._output = LengthRange.parse("--output-len", config.output_len)
        default = _NUM_REQUESTS if config.duration is None else None
        self._amount = Amount(config.num_requests or default, config.duration)
        self._seed = time.time_ns() if config.seed is None else config.seed
        if config.prompts and config.workload:
            raise UsageError("--prompts and --workload exclude each other")
        if config.workload and config.workload not in ALL:
            raise UsageError(f"unknown --workload {config.workload!r}", f"there are {', '.join(ALL)}")
        self._prompts = read_prompts(Path(config.prompts), self._output.high) if config.prompts else None
        self._check_api(config)
        _check_files(config)
        ignore_eos = not config.prompts if config.ignore_eos is None else config.ignore_eos
        self.output_options = OutputOptions(config.temperature, ignore_eos)

    def _check_api(self, config: BenchConfig) -> None:
        """Raises UsageError for prompts that the chosen method cannot take."""
        if not config.url or self._prompts is None:
            return
        prompts = [each.prompt for each in self._prompts]
        if config.api == "completions" and any(map(is_conversation, prompts)):
            raise UsageError("--prompts has messages, which --api completions cannot take", todo="--api chat")
        if config.api == "chat" and any(is_token_ids(prompt) for prompt in prompts):
            raise UsageError(
                "--prompts has token_ids, which --api chat cannot take", todo="--api completions"
            )

    async def measure(self, connect: Callable[[], Target], show: Callable[[str], None]) -> BenchRecord:
        """Runs all levels, in turns where they are repeated. connect: makes the target, in the event loop.
        show: is called with what is running. Raises PagewireError.

        A cancelled task, by Ctrl-C say, ends with the record of what it has measured, whose `about` says so;
        or is cancelled, where that is nothing."""
        started = datetime.now(UTC)
        async with connect() as target:
            model = await target.open()
            driver = Driver(
                target,
                self._source(model),
                request_timeout=self._config.request_timeout,
                is_exact=self.output_options.ignore_eos,
                pattern=self._config.arrivals,
                seed=self._seed,
            )
            try:
                await driver.warm_up(self._config.warmup)
            except RequestFailed as error:
                raise PagewireError(f"the first request failed: {error}") from None
            about = self._about(model, started)
            runs: list[LevelRun] = []
            try:
                await self._run_levels(driver, runs, show)
            except Interrupted as cut:
                if any(trace.error != INTERRUPTED for trace in cut.run.traces):
                    runs.append(cut.run)
                if not runs:
                    raise asyncio.CancelledError from None
                about[INTERRUPTED] = f"at {cut.run.load.name}"
            show("")
        return BenchRecord(about, self._goals, runs)

    async def _run_levels(self, driver: Driver, runs: list[LevelRun], show: Callable[[str], None]) -> None:
        """Appends each run when it has ended. Raises Interrupted."""
        for repeat in range(self._config.repeats):
            for load in self._loads:
                show(f"{load.name}, run {repeat + 1} of {self._config.repeats}")
                runs.append(await driver.run(load, self._amount))

    def _source(self, model: ServedModel) -> RequestSource:
        """Raises UsageError for prompts that the model's context cannot hold."""
        if self._prompts is not None:
            return FileSource(self._prompts)
        context = model.max_model_len or _ASSUMED_CONTEXT
        text = RandomText(self._seed, model.vocab_size)
        if self._config.workload:
            return WorkloadSource(text, self._config.workload, context)
        most = self._config.prefix_len + self._input.high + self._output.high
        if most > context:
            raise UsageError(
                f"--prefix-len, --input-len and --output-len make {most} tokens",
                f"the context of {model.name} has {context}",
            )
        return LengthSource(text, self._config.prefix_len, self._input, self._output)

    def _about(self, model: ServedModel, started: datetime) -> dict[str, Any]:
        flags = {
            name: value
            for name, value in vars(self._config).items()
            if name not in _ALWAYS_LEFT_OUT and value not in ("", None)
        }
        if self._config.rate:
            flags.pop("concurrency", None)
        if self._config.url:
            flags["address"] = flags.pop("url")
        else:
            del flags["api"]
        facts = {
            "model": model.name,
            "server": model.server,
            "started": started.isoformat(timespec="seconds"),
        }
        return {**flags, **facts, "seed": self._seed, "bench": f"pagewire {__version__}"}
