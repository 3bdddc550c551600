"""Compares decode steps of rows with and without adapters, in one worker on a CPU.

    python -m benchmarks.adapters MODEL --rows 32 --rank 16 --different 32
    python -m benchmarks.adapters MODEL --rows 32 --rank 16 --different 32 --loaded 32,100,1000

Adapters are of random numbers in bfloat16, on all linear layers. Four cases take turns, round after
round: a program that knows no adapters, one whose steps have none, one adapter for all rows, and as many as
--different. With --loaded the cases are numbers of adapters that the worker holds, evenly spread among which
are the --different ones of the rows. A line has the median of a step's milliseconds on the clock, and the
rate beside the first case: the median of the rounds.
"""

import argparse
import statistics
import time
from collections.abc import Mapping, Sequence

import torch

from benchmarks.steps.cpu_worker import BLOCK_SIZE, Runner, load_model, model_options, random_rows
from benchmarks.steps.plans import plan, removal
from worker.adapters.adapter import Adapter, Delta, LayerDeltas
from worker.adapters.store import AdapterStore, number_layers
from worker.cpu.fused_decoder.decoder import FusedDecoder
from worker.layers.base import Layer
from worker.layers.linear import ColumnLinear, RowLinear
from worker.models.base import LanguageModel


def random_adapter(model: LanguageModel, number: int, rank: int) -> Adapter:
    """Returns an adapter on all linear layers. The digest is its number."""
    deltas: dict[Layer, LayerDeltas] = {}
    for layer in number_layers(model):
        if not isinstance(layer, ColumnLinear | RowLinear):
            continue
        of_parts = isinstance(layer, ColumnLinear)
        inputs = layer.in_features
        held = [part.held for part in layer.parts] if of_parts else [layer.out_features]
        a = [torch.randn(rank, inputs, dtype=torch.bfloat16) for _ in held]
        b = [torch.randn(rows, rank, dtype=torch.bfloat16) for rows in held]
        deltas[layer] = tuple(Delta(one, other, 1e-3) for one, other in zip(a, b, strict=True))
    return Adapter(number.to_bytes(32), rank, (), "", deltas)


def measure(runner: Runner, rows: int, context: int, steps: int, adapters: Sequence[int]) -> float:
    """Returns the milliseconds of a decode step. adapters: numbers of those that rows take turns to have."""
    new_rows = random_rows(100, rows, context, context + steps)
    for row, new in enumerate(new_rows):
        if adapters:
            new.adapter.digest = adapters[row % len(adapters)].to_bytes(32)
    runner.execute(plan(range(rows), context - 1, 1, new_rows))
    runner.execute(plan(range(rows), context, 1))
    began = time.perf_counter()
    for position in range(context + 1, context + steps - 1):
        runner.execute(plan(range(rows), position, 1))
    taken = 1000 * (time.perf_counter() - began) / (steps - 2)
    runner.execute(removal(range(rows)))
    return taken


def compare_use(runner: Runner, options: argparse.Namespace) -> Mapping[str, list[float]]:
    """Returns the milliseconds of each round, by case: programs that know adapters or not, and rows with some
    or none."""
    model, store = parts_of(runner)
    for number in range(options.different):
        store.add(random_adapter(model, number, options.rank))
    with_adapters, without = {**model.programs}, dict[bool, object]()
    counts = {"no adapters known": None, "none used": 0, "one": 1, str(options.different): options.different}
    times: dict[str, list[float]] = {case: [] for case in counts}
    for turn in range(-1, options.rounds):  # programs are recorded in the first turn
        for case, count in counts.items():
            kept = without if count is None else with_adapters
            for number, layer in enumerate(number_layers(model)):
                layer.number = None if count is None else number
            model.programs.clear()
            model.programs.update(kept)  # type: ignore[arg-type]
            taken = measure(runner, options.rows, options.context, options.steps, range(count or 0))
            kept.update(model.programs)
            times[case] += [taken] if turn >= 0 else []
    return times


def compare_loaded(
    runner: Runner, options: argparse.Namespace, loaded: Sequence[int]
) -> Mapping[str, list[float]]:
    """Returns the milliseconds of each round, by the number of adapters that the worker holds."""
    model, store = parts_of(runner)
    times: dict[str, list[float]] = {f"{count} loaded": [] for count in loaded}
    for turn in range(-1, options.rounds):
        for count, taken in zip(loaded, times.values(), strict=True):
            hold(store, model, count, options.rank)
            used = range(0, count, count // options.different)[: options.different]
            found = measure(runner, options.rows, options.context, options.steps, used)
            taken += [found] if turn >= 0 else []
    return times


def hold(store: AdapterStore, model: LanguageModel, count: int, rank: int) -> None:
    """Loads adapters until there are `count`, or drops those with the highest numbers."""
    for number in range(len(store.loaded), count):
        store.add(random_adapter(model, number, rank))
    for number in range(count, len(store.loaded)):
        store.drop(number.to_bytes(32))


def parts_of(runner: Runner) -> tuple[FusedDecoder, AdapterStore]:
    """Returns the model and its adapters. Exits where the model does not run as a program."""
    model, adapters = runner.backend.model, runner.backend.adapters
    if not isinstance(model, FusedDecoder) or adapters is None:
        raise SystemExit("this model does not run as a program: see the worker's log")
    return model, adapters.store


def rates(times: Mapping[str, list[float]]) -> Mapping[str, float]:
    """Returns the rate of each case beside the first one: the median of the rounds."""
    first = next(iter(times.values()))
    return {
        case: statistics.median(one / other for one, other in zip(first, taken, strict=True))
        for case, taken in times.items()
    }


def main() -> None:
    parser = model_options(__doc__)
    parser.set_defaults(dtype="bfloat16")
    parser.add_argument("--rows", type=int, default=32)
    parser.add_argument("--context", type=int, default=64, help="tokens of a row before it decodes")
    parser.add_argument("--rank", type=int, default=16)
    parser.add_argument("--different", type=int, default=32, help="adapters of the rows")
    parser.add_argument("--loaded", default="", metavar="N,N,N", help="adapters that the worker holds")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    loaded = [int(count) for count in filter(None, options.loaded.split(","))]
    if loaded and min(loaded) < options.different:
        parser.error(f"--loaded: the rows have {options.different} adapters (--different)")
    blocks = options.rows * -(-(options.context + options.steps) // BLOCK_SIZE)
    runner, _ = load_model(options, options.rows, blocks, max(options.rows, 2))
    times = compare_loaded(runner, options, loaded) if loaded else compare_use(runner, options)
    for case, rate in rates(times).items():
        print(f"{case:<18} {statistics.median(times[case]):8.3f} ms  {rate:.3f} of the rate")


if __name__ == "__main__":
    main()
