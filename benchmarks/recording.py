"""Measures what recording costs, as a share of what the engine core spends on a step.

    python -m benchmarks.recording [--repeats 5]

What it adds is measured in this process: two schedulers with the same load, one of them recorded, step in
turns (benchmarks/scheduler.py), and the medians of schedule(), update() and encoding are subtracted; what
the recording's thread uses is added. What a step costs is the CPU time of a real core's process, all
threads and sockets included, under loads of benchmarks/pipeline.py, of which one service records and one
does not, in turns. The difference of these two is printed, too: on a machine that does other things it is
mostly noise.
"""

import argparse
import contextlib
import multiprocessing
import statistics
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path

from benchmarks import scheduler as scheduler_benchmark
from benchmarks.pipeline import CLIENTS, LOADS, MAX_NUM_SEQS, Load, model_folder, run_once
from engine_core.recording.file import RecordingReader, RecordingWriter, open_recording
from engine_core.recording.reconstructed_requests import facts_of
from engine_core.recording.recorder import RecordedScheduler
from pagewire.config import ServeConfig
from pagewire.local_service import Service

STEPS = 600
COMPARED = ("light", "heavy")


def added_us(running: int, path: Path) -> tuple[float, float]:
    """Microseconds per step that a recording adds: in the step loop, and in its thread."""
    before = time.process_time() - time.thread_time()
    plain = scheduler_benchmark.Load(running, STEPS)
    recording = open_recording(path)
    with replaced_scheduler(recording):
        recorded = scheduler_benchmark.Load(running, STEPS)
    parts: list[list[float]] = [[], []]
    for _ in range(STEPS):
        for times, load in zip(parts, (plain, recorded), strict=True):
            times.append(sum(load.step()))
    loop = statistics.median(parts[1]) - statistics.median(parts[0])
    recording.close()
    thread = time.process_time() - time.thread_time() - before
    return 1e6 * loop, 1e6 * thread / STEPS


@contextlib.contextmanager
def replaced_scheduler(recording: RecordingWriter) -> Iterator[None]:
    """Loads made here are recorded."""
    real = scheduler_benchmark.Scheduler
    scheduler_benchmark.Scheduler = partial(RecordedScheduler, recording)
    try:
        yield
    finally:
        scheduler_benchmark.Scheduler = real


def core_us(services: list[Service], clients: list[ProcessPoolExecutor], load: Load, repeats: int):
    """CPU time of the core per step, by service; the median of the repeats. (A step has all streams.)"""
    runs: list[list[float]] = [[], []]
    for number in range(2 * (repeats + 1)):
        service = number % 2
        figures = run_once(services[service], clients, load)
        if number > 1:
            runs[service].append(1e6 * figures.engine_cpu / load.output)
    return [statistics.median(run) for run in runs]


def start(folder: str, record: str) -> Service:
    """A service on a simulated H200."""
    config = ServeConfig(
        model=folder,
        device="simulated",
        max_num_seqs=MAX_NUM_SEQS,
        max_num_batched_tokens=8192,
        port=0,
        log_level="error",
        record=record,
    )
    return Service(config)


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    spawn = multiprocessing.get_context("spawn")
    with contextlib.ExitStack() as stack:
        temporary = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        path = temporary / "service"
        folder = str(stack.enter_context(model_folder()))
        services = [stack.enter_context(start(folder, record)) for record in ("", str(path))]
        clients = [
            stack.enter_context(ProcessPoolExecutor(max_workers=1, mp_context=spawn)) for _ in range(CLIENTS)
        ]
        print("us per step       streams  loop  thread  core's step  share  (core that records)")
        for load in map(LOADS.get, COMPARED):
            loop, thread = added_us(load.streams, temporary / load.name)
            plain, recorded = core_us(services, clients, load, options.repeats)
            share = (loop + thread) / plain
            print(
                f"{load.name:<18}{load.streams:>7}{loop:>6.1f}{thread:>8.1f}{plain:>13.0f}{share:>7.1%}"
                f"{recorded:>22.0f}",
                flush=True,
            )
        services[1].close()
        steps = tokens = 0
        for call in RecordingReader(path):
            steps += call.HasField("result")
            if call.event.name == "ended":
                tokens += facts_of(call.event)["num_output_tokens"]
        size = path.stat().st_size
        print(f"the service's recording: {size / steps:.0f} bytes per step, {size / tokens:.2f} per token")


if __name__ == "__main__":
    main()
