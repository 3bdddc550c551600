"""Measures whether the device is idle between steps while there is work: one step ahead, and step by step.

    python -m benchmarks.ahead
    python -m benchmarks.ahead --streams 64 --trace trace.json

The engine core runs in this process, its worker in another one, on a simulated H200 with a model of
the shape of Llama-3-8B. So many streams are kept going: when one ends, the next one arrives. The gap
before a step is the time between the end of the step before it and its start, on the device's own
timeline (StepResult.started_ns and duration_us); `idle` is their sum, as a share of all time.

--trace writes what the core and the device did, for chrome://tracing or https://ui.perfetto.dev.
"""

import argparse
import contextlib
import json
import random
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import zmq

from benchmarks.pipeline import model_folder
from benchmarks.scheduler import SAMPLING
from engine_core.core import EngineCore
from engine_core.io.inbox import Inbox, Received
from engine_core.io.stop_signal import StopSignal
from engine_core.io.worker_group import WorkerGroup
from engine_core.startup import initialize_message, make_identity, make_scheduler
from engine_core.step.result import Result
from pagewire.config import EngineConfig
from pagewire.internal.v1 import engine_pb2
from pagewire.ipc.columns import pack_u32, unpack_u8
from pagewire.v1 import generation_pb2

WARM_UP_STEPS = 50
FRONTEND = b"frontend"


@dataclass(frozen=True)
class Span:
    """Something that took from `start` to `end`, in nanoseconds of the machine's monotonic clock."""

    who: str
    what: str
    start: int
    end: int
    step: int = 0


class Recorder:
    """Spans of the core and of the device."""

    def __init__(self) -> None:
        self.spans: list[Span] = []

    def watch(self, owner: Any, name: str) -> None:
        """From now on, calls of this method are spans of the core."""
        call: Callable[..., Any] = getattr(owner, name)

        def watched(*arguments: Any, **options: Any) -> Any:
            start = time.monotonic_ns()
            value = call(*arguments, **options)
            self.spans.append(Span("core", name, start, time.monotonic_ns()))
            if isinstance(value, Result):
                end = value.started_ns + 1000 * value.duration_us
                self.spans.append(Span("device", "step", value.started_ns, end, value.step))
            return value

        setattr(owner, name, watched)

    def steps(self) -> list[Span]:
        """Of the device, in order; without those that warm it up."""
        return [span for span in self.spans if span.who == "device"][WARM_UP_STEPS:]


class Clients:
    """In place of frontends: keeps so many streams going until all have been sent."""

    def __init__(self, inbox: Inbox, streams: int, total: int) -> None:
        self._inbox, self._left = inbox, total
        self._draw = random.Random(1)
        self.num_tokens = self.num_live = 0
        for _ in range(streams):
            self.arrive()

    def arrive(self) -> None:
        """A stream of 32 to 512 prompt tokens and 32 to 256 of output."""
        if not self._left:
            return
        self._left -= 1
        self.num_live += 1
        prompt = [self._draw.randrange(16, 1000) for _ in range(self._draw.randint(32, 512))]
        message = engine_pb2.AddRequest(
            handle=self._left,
            request_id=str(self._left),
            prompt_token_ids=pack_u32(prompt),
            sampling=SAMPLING,
            stopping=generation_pb2.StoppingCriteria(max_tokens=self._draw.randint(32, 256), min_tokens=0),
        )
        wrapped = engine_pb2.FrontendMessage(add_request=message)
        self._inbox.put(Received(FRONTEND, wrapped, time.monotonic()))

    def take(self, frontend: bytes, message: engine_pb2.EngineMessage) -> None:
        """A message of the core, which pays for its encoding as always."""
        message.SerializeToString()
        self.num_tokens += len(message.step_outputs.token_ids) // 4
        for _ in filter(None, unpack_u8(message.step_outputs.finish_reasons)):
            self.num_live -= 1
            self.arrive()


def measure(folder: Path, scheduling: str, streams: int, total: int) -> tuple[Recorder, float]:
    """One run; what happened in it, and tokens per second."""
    config = EngineConfig(
        model=str(folder),
        device="simulated",
        max_num_seqs=streams,
        max_num_batched_tokens=2048,
        listen_workers=f"ipc://{folder}/workers.ipc",
    )
    with contextlib.ExitStack() as stack:
        stop = stack.enter_context(StopSignal())
        inbox = stack.enter_context(contextlib.closing(Inbox()))
        context = stack.enter_context(zmq.Context())
        worker = stack.enter_context(contextlib.closing(WorkerGroup(context, config.listen_workers, stop)))
        worker.start(initialize_message(config), [["--log-level=error"]], external=False)
        ready = worker.wait_ready(lambda what, fraction: None)
        scheduler = make_scheduler(config, ready)
        clients = Clients(inbox, streams, total)
        identity = make_identity(config, ready, time.time_ns())
        ahead = scheduling == "ahead"
        core = EngineCore(identity, scheduler, worker, inbox, clients.take, ahead=ahead)
        recorder = Recorder()
        for owner, names in (
            (scheduler, ("schedule", "update")),
            (worker, ("submit", "collect", "await_result")),
        ):
            for name in names:
                recorder.watch(owner, name)
        began = time.monotonic()
        while clients.num_live:
            core.step()
        return recorder, clients.num_tokens / (time.monotonic() - began)


def print_row(scheduling: str, recorder: Recorder, tokens_per_s: float) -> None:
    """Gaps in microseconds."""
    steps = recorder.steps()
    gaps = [
        (later.start - earlier.end) // 1000 for earlier, later in zip(steps, steps[1:], strict=False)
    ]  # durations are rounded to microseconds: a gap of less is none
    gaps = sorted(max(0, gap) for gap in gaps)
    seconds = (steps[-1].end - steps[0].start) / 1e9
    cuts = statistics.quantiles(gaps, n=100)
    busy = statistics.median(step.end - step.start for step in steps) / 1000
    print(
        f"| {scheduling} | {len(steps)} | {busy:.0f} | {cuts[49]:.0f} | {cuts[98]:.0f} | {gaps[-1]:.0f} |"
        f" {sum(gap > 0 for gap in gaps)} | {sum(gaps) / 1e6 / seconds:.2%} | {tokens_per_s:.0f} |",
        flush=True,
    )


def write_trace(path: Path, recorders: dict[str, Recorder]) -> None:
    """Chrome's trace format: a process for each mode, in it a thread for the core and one for the device."""
    events: list[dict[str, Any]] = []
    for process, (scheduling, recorder) in enumerate(recorders.items()):
        events.append({"ph": "M", "name": "process_name", "pid": process, "args": {"name": scheduling}})
        first = recorder.spans[0].start
        for thread, who in enumerate(("core", "device")):
            place = {"pid": process, "tid": thread}
            events.append({"ph": "M", "name": "thread_name", "args": {"name": who}} | place)
            events += [
                {
                    "ph": "X",
                    "name": f"{span.what} {span.step}" if span.step else span.what,
                    "ts": (span.start - first) / 1000,
                    "dur": (span.end - span.start) / 1000,
                }
                | place
                for span in recorder.spans
                if span.who == who
            ]
    path.write_text(json.dumps({"traceEvents": events}))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--streams", type=int, default=256, help="at once; default: %(default)s")
    parser.add_argument("--total", type=int, default=0, help="streams in all; default: four times as many")
    parser.add_argument("--trace", metavar="FILE", type=Path, help="write what core and device did")
    options = parser.parse_args()
    total = options.total or 4 * options.streams
    print("| scheduling | steps | step µs (p50) | gap µs (p50) | p99 | max | gaps | idle | tokens/s |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- | --- |")
    recorders = {}
    for scheduling in ("sync", "ahead"):
        with model_folder() as folder:
            recorders[scheduling], tokens_per_s = measure(folder, scheduling, options.streams, total)
        print_row(scheduling, recorders[scheduling], tokens_per_s)
    if options.trace:
        write_trace(options.trace, recorders)


if __name__ == "__main__":
    main()
