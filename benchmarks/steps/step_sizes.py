"""Measures steps of many sizes in the worker alone, and looks for those that cost more than their share.

    python -m benchmarks.steps.step_sizes                            # the demo model
    python -m benchmarks.steps.step_sizes MODEL --cpu-kernels avx2 --threads 1 --kinds greedy,sampled
    python -m benchmarks.steps.step_sizes MODEL --rows 1 --prompts "" --context 128 --steps 400

Steps decode rows, compute a prompt, or do both. Sizes that are not given are powers of two and the numbers
behind them; steps that do both have rows and tokens that are powers of eight. Rows are of a kind: greedy,
sampled at a temperature, with log-probabilities of the five most probable tokens, with a grammar, or
penalized.

A step is measured in processor time of all threads, which other processes change least. Sizes take turns,
--rounds times; a line has the median, the range of the middle half, and medians on the clock: of the step,
and of what is outside of its programs. It says what a size costs beyond its share where that is more than
3 %: the share is the cost of the last size, by rows or tokens, and of a step that does both, that of two
steps. Where the ranges overlap, it may be noise.
"""

import statistics
import time
from collections import defaultdict
from math import inf

from benchmarks.steps.cpu_worker import (
    BLOCK_SIZE,
    Runner,
    load_model,
    model_options,
    programs_timed,
    random_rows,
)
from benchmarks.steps.plans import new_row, plan, removal
from pagewire.internal.v1 import worker_pb2

BEYOND = 1.03
KINDS = {
    "greedy": worker_pb2.NewRow(),
    "sampled": worker_pb2.NewRow(sampling={"temperature": 0.8}),
    "logprobs": worker_pb2.NewRow(logprobs={"top_n": 5}),
    "grammar": worker_pb2.NewRow(grammar=r"start: /(.|\n)*/"),
    "penalties": worker_pb2.NewRow(sampling={"repetition_penalty": 1.2, "frequency_penalty": 0.3}),
}
Size = tuple[int, int]  # rows that decode, and tokens of a prompt
Times = tuple[float, float, float]  # ms: of processors, on the clock, and of that outside of programs


def borders(most: int) -> str:
    """1, 2, 3, 4, 5, 8, 9, 16, 17 and so on."""
    sizes = {(1 << bit) + more for bit in range(most.bit_length()) for more in (0, 1)}
    return ",".join(str(size) for size in sorted(sizes) if size <= most)


def visit(runner: Runner, kind: worker_pb2.NewRow, size: Size, context: int, steps: int) -> list[Times]:
    """Returns the times of steps of a size. Of the tokens before them, the cache has what it had."""
    (count, tokens), positions = size, context + steps + 1
    new_rows, decoding = random_rows(100, count, context, positions), [*range(count)]
    prompt = [count] if tokens else []
    if tokens:
        first = count * -(-positions // BLOCK_SIZE)
        new_rows.append(new_row(count, [5] * (tokens + 1), 1, range(first, first + tokens // BLOCK_SIZE + 1)))
    for row in new_rows:
        row.MergeFrom(kind)
    starts, counts = [context - 1] * count + [0] * len(prompt), [1] * count + [tokens] * len(prompt)
    runner.execute(plan(decoding + prompt, starts, 1, new_rows, decoding))
    found = list[Times]()
    with programs_timed() as programs:
        for _ in range(1 if tokens else steps):
            starts = [start + 1 for start in starts]
            step = plan(decoding + prompt, starts, counts)
            programs[0], processors, clock = 0.0, time.process_time(), time.perf_counter()
            runner.execute(step)
            taken, spent = 1000 * (time.perf_counter() - clock), 1000 * (time.process_time() - processors)
            found.append((spent, taken, taken - programs[0]))
    runner.execute(removal(decoding + prompt))
    return found if tokens else found[1:]  # the first decode step repeats no other one


def share_of(size: Size, costs: dict[Size, list[float]]) -> list[float]:
    """Returns the quartiles that a size should have at most."""
    if all(size):
        return [sum(both) for both in zip(costs[size[0], 0], costs[0, size[1]], strict=True)]
    before = [each for each in costs if not all(each) and bool(each[0]) == bool(size[0]) and each < size]
    last = max(before, default=None)
    return [inf] * 3 if last is None else [part * sum(size) / sum(last) for part in costs[last]]


def report(kind: str, size: Size, times: list[Times], costs: dict[Size, list[float]]) -> None:
    """Prints a line."""
    _, clock, outside = map(statistics.median, zip(*times, strict=True))
    (low, median, high), share = costs[size], share_of(size, costs)
    line = f"{kind:<9} {size[0]:4} rows {size[1]:5} tokens: {median:9.3f} ms of processors"
    line += f" ({low:.3f}..{high:.3f}), {clock:.3f} on the clock, {1000 * outside:.0f} us outside of programs"
    if median > BEYOND * share[1]:
        noise = ", maybe noise" if low <= BEYOND * share[2] else ""
        line += f"; {100 * (median / share[1] - 1):.0f} % beyond its share{noise}"
    print(line, flush=True)


def main() -> None:
    parser = model_options(__doc__)
    parser.add_argument("--rows", default=borders(512), help="that decode, such as 64,65")
    parser.add_argument("--prompts", default=borders(4096), help="in tokens")
    parser.add_argument("--context", type=int, default=64, help="tokens of a row before it decodes")
    parser.add_argument("--steps", type=int, default=4, help="in which rows decode one after the other")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--kinds", default=",".join(KINDS))
    options = parser.parse_args()
    given = options.rows, options.prompts
    rows, prompts = ([int(size) for size in text.split(",") if size] for text in given)
    kinds, eighths = options.kinds.split(","), [1 << bit for bit in range(0, 32, 3)]
    if unknown := set(kinds) - set(KINDS):
        parser.error(f"--kinds has {', '.join(sorted(unknown))}: the kinds are {', '.join(KINDS)}")
    if min(options.context, options.steps - 1, options.rounds - 1, *rows, *prompts) < 1:
        parser.error("--rows, --prompts and --context are at least 1, --steps and --rounds at least 2")
    both = [(count, tokens) for count in rows for tokens in prompts if {count, tokens}.issubset(eighths)]
    sizes = [(count, 0) for count in rows] + [(0, tokens) for tokens in prompts] + both
    most, longest = max(rows, default=0), max(prompts, default=0)
    blocks = most * -(-(options.context + options.steps + 1) // BLOCK_SIZE) + longest // BLOCK_SIZE + 1
    runner, ready = load_model(options, most + 1, blocks, max(most + longest, 2))
    if "grammar" in kinds and not ready.model.grammar_engine:
        parser.error(f"--kinds has grammar, which needs a tokenizer, and {options.model} has none")
    for kind in kinds:
        times = defaultdict[Size, list[Times]](list)
        for turn in range(-1, options.rounds):  # programs are recorded in the first turn
            for size in sizes:
                found = visit(runner, KINDS[kind], size, options.context, options.steps)
                times[size] += found if turn >= 0 else []
        costs = {size: statistics.quantiles([each[0] for each in times[size]], n=4) for size in sizes}
        for size in sizes:
            report(kind, size, times[size], costs)


if __name__ == "__main__":
    main()
