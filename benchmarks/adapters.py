"""Compares decode steps of rows with and without adapters, in one worker on a CPU.

    python -m benchmarks.adapters MODEL --rows 32 --rank 16 --different 32

Adapters are of random numbers in bfloat16, on all linear layers. Four cases take turns, round after
round: a program that knows no adapters, one whose steps have none, one adapter for all rows, and as many as
--different. A line has the median of a step's milliseconds on the clock, and the rate beside the first case:
the median of the rounds.
"""

import statistics
import time

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


def measure(runner: Runner, rows: int, context: int, steps: int, adapters: int) -> float:
    """Returns the milliseconds of a decode step. adapters: how many, which rows take turns to have."""
    new_rows = random_rows(100, rows, context, context + steps)
    for row, new in enumerate(new_rows):
        if adapters:
            new.adapter.digest = (row % adapters).to_bytes(32)
    runner.execute(plan(range(rows), context - 1, 1, new_rows))
    runner.execute(plan(range(rows), context, 1))
    began = time.perf_counter()
    for position in range(context + 1, context + steps - 1):
        runner.execute(plan(range(rows), position, 1))
    taken = 1000 * (time.perf_counter() - began) / (steps - 2)
    runner.execute(removal(range(rows)))
    return taken


def main() -> None:
    parser = model_options(__doc__)
    parser.set_defaults(dtype="bfloat16")
    parser.add_argument("--rows", type=int, default=32)
    parser.add_argument("--context", type=int, default=64, help="tokens of a row before it decodes")
    parser.add_argument("--rank", type=int, default=16)
    parser.add_argument("--different", type=int, default=32, help="adapters")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    blocks = options.rows * -(-(options.context + options.steps) // BLOCK_SIZE)
    runner, _ = load_model(options, options.rows, blocks, max(options.rows, 2))
    model, adapters = runner.backend.model, runner.backend.adapters
    if not isinstance(model, FusedDecoder) or adapters is None:
        raise SystemExit("this model does not run as a program: see the worker's log")
    store: AdapterStore = adapters.store
    for number in range(options.different):
        store.add(random_adapter(model, number, options.rank))
    with_adapters, without = {**model.programs}, dict[bool, object]()
    cases = {"no adapters known": None, "none used": 0, "one": 1, str(options.different): options.different}
    times: dict[str, list[float]] = {case: [] for case in cases}
    for turn in range(-1, options.rounds):  # programs are recorded in the first turn
        for case, count in cases.items():
            kept = without if count is None else with_adapters
            for number, layer in enumerate(number_layers(model)):
                layer.number = None if count is None else number
            model.programs.clear()
            model.programs.update(kept)  # type: ignore[arg-type]
            taken = measure(runner, options.rows, options.context, options.steps, count or 0)
            kept.update(model.programs)
            times[case] += [taken] if turn >= 0 else []
    first = times["no adapters known"]
    for case, taken in times.items():
        ratio = statistics.median(one / other for one, other in zip(first, taken, strict=True))
        print(f"{case:<18} {statistics.median(taken):8.3f} ms  {ratio:.3f} of the rate")


if __name__ == "__main__":
    main()
