"""What recording costs: one service that records and one that does not, in turns, in one run.

    python benchmarks/recording.py [--repeats 7]

The loads are those of benchmarks/pipeline.py, on a simulated H200. Printed is the engine core's CPU time
per token, the recording thread included, without and with a recording; the ratio (the overhead), the median
of those of the rounds; the same for tokens/s; and the bytes of the recording per step and per token.
"""

import argparse
import contextlib
import multiprocessing
import statistics
import tempfile
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from pipeline import CLIENTS, LOADS, MAX_NUM_SEQS, Load, model_folder, run_once

from engine_core.recording.file import RecordingReader
from pagewire.config import ServeConfig
from pagewire.service import Service


def cpu_per_token(service: Service, clients: list[ProcessPoolExecutor], load: Load) -> tuple[float, float]:
    """Microseconds of the core per token, and tokens/s."""
    figures = run_once(service, clients, load)
    return 1e6 * figures.engine_cpu / figures.tokens, figures.tokens / figures.seconds


def measure(services: list[Service], clients: list[ProcessPoolExecutor], load: Load, repeats: int) -> None:
    """Prints a line for a load. services: one without and one with a recording."""
    for service in services:
        run_once(service, clients, load)
    rounds = []
    for number in range(repeats):
        order = (0, 1) if number % 2 else (1, 0)
        results = {i: cpu_per_token(services[i], clients, load) for i in order}
        rounds.append((results[0], results[1]))
    cpu = [statistics.median(pair[i][0] for pair in rounds) for i in (0, 1)]
    rate = [statistics.median(pair[i][1] for pair in rounds) for i in (0, 1)]
    more_cpu = [with_[0] / without[0] - 1 for without, with_ in rounds]
    less_rate = [1 - with_[1] / without[1] for without, with_ in rounds]
    print(
        f"| {load.name} | {cpu[0]:.2f} | {cpu[1]:.2f} | {statistics.median(more_cpu):+.1%}"
        f" ({min(more_cpu):+.1%}..{max(more_cpu):+.1%}) | {rate[0]:.0f} | {rate[1]:.0f}"
        f" | {statistics.median(less_rate):+.1%} ({min(less_rate):+.1%}..{max(less_rate):+.1%}) |",
        flush=True,
    )


def main() -> None:
    """Starts both services, runs the loads, prints."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeats", type=int, default=7)
    options = parser.parse_args()
    spawn = multiprocessing.get_context("spawn")
    with contextlib.ExitStack() as stack:
        folder = str(stack.enter_context(model_folder()))
        path = Path(stack.enter_context(tempfile.TemporaryDirectory())) / "recording"
        services = [
            stack.enter_context(
                Service(
                    ServeConfig(
                        model=folder,
                        device="simulated",
                        max_num_seqs=MAX_NUM_SEQS,
                        max_num_batched_tokens=8192,
                        port=0,
                        log_level="error",
                        record=record,
                    )
                )
            )
            for record in ("", str(path))
        ]
        clients = [
            stack.enter_context(ProcessPoolExecutor(max_workers=1, mp_context=spawn)) for _ in range(CLIENTS)
        ]
        print("| load | core, us/token: plain | recorded | overhead | tokens/s: plain | recorded | loss |")
        print("| --- | --- | --- | --- | --- | --- | --- |")
        for load in LOADS.values():
            measure(services, clients, load, options.repeats)
        services[1].close()
        results = sampled = 0
        for call in RecordingReader(path):
            results += call.HasField("result")
            sampled += call.end.num_output_tokens
        size = path.stat().st_size
        print(f"recording: {size / results:.0f} bytes per step, {size / sampled:.2f} bytes per token")


if __name__ == "__main__":
    main()
