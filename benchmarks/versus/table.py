"""The tables of a comparison, in Markdown: every figure with its spread, its roof and what else ran."""

import statistics
from collections.abc import Iterator, Sequence

from benchmarks.service.breakdown import spread
from benchmarks.versus.catalog import OURS, PEERS, SERVERS, WORKER
from benchmarks.versus.comparison import MAX_MODEL_LEN
from benchmarks.versus.records import POSITIONS, Records, Run, Timings, that_count
from benchmarks.versus.roof import Limits, roof_seconds
from pagewire_bench.workloads import SHORT, WORKLOADS

COLUMNS = (
    "",
    "peer",
    "n",
    "tokens/s",
    "of the roof",
    "one stream decodes",
    "TTFT ms",
    "ITL ms (p99)",
    f"tokens {', '.join(map(str, POSITIONS))} ms",
    "others %",
    "steal %",
)
DISTURBED = "*"

Groups = dict[tuple[str, str, str], list[Run]]
"""By model, workload and peer."""


def render(records: Records) -> str:
    """All tables, of one run at least."""
    limits, groups, tables = records.best_limits(), _groups(records.runs), list[str]()
    for title, peers in _parts({run.peer for run in records.runs}):
        shown = {key: runs for key, runs in groups.items() if key[2] in peers}
        tables += _part(title, shown, records, limits)
    return "\n".join(
        [
            _about(records, limits),
            *tables,
            *dict.fromkeys(
                f"- {each.model} {each.workload} {each.peer}: {each.why}" for each in records.failures
            ),
            *(f"- {peer}: {versions}" for peer, versions in _versions(records.runs).items()),
        ]
    )


def _parts(peers: set[str]) -> Iterator[tuple[str, set[str]]]:
    """Titles, and the peers of each table; ours over gRPC are in both."""
    over_grpc = OURS.keys() - {*SERVERS, WORKER}
    if peers.intersection(SERVERS):
        yield "Over HTTP, and ours over gRPC too", over_grpc.union(SERVERS)
    if peers <= over_grpc or not peers <= over_grpc.union(SERVERS):
        yield "Peers in their process, ours over gRPC", peers.difference(SERVERS)


def _part(title: str, groups: Groups, records: Records, limits: Limits) -> list[str]:
    """A table, and its ratios."""
    rows = [_row(key, runs, records, limits) for key, runs in groups.items()]
    return ["", f"{title}:", "", line(COLUMNS), line(["---"] * len(COLUMNS)), *rows, "", *_ratios(groups)]


def line(cells: Sequence[str]) -> str:
    """Of a table."""
    return "| " + " | ".join(cells) + " |"


def roof(key: tuple[str, str, str], weights: str, records: Records, limits: Limits) -> float:
    """Tokens per second at most."""
    model, workload, _ = key
    lengths = WORKLOADS[SHORT[workload]].lengths(MAX_MODEL_LEN)
    seconds = roof_seconds(records.shapes[model], weights, lengths, limits)
    return sum(output for _, _, output in lengths) / seconds


def _groups(runs: Sequence[Run]) -> Groups:
    """Those that count, in order; within a workload the fastest peer first."""
    found: Groups = {}
    for run in runs:
        found.setdefault((run.model, run.workload, run.peer), []).append(run)
    found = {key: that_count(group) for key, group in found.items()}
    return dict(sorted(found.items(), key=lambda entry: (*entry[0][:2], -_median(entry[1], "tokens_per_s"))))


def _about(records: Records, limits: Limits) -> str:
    read = [each.bandwidth / 1e9 for each in records.limits]
    dates = sorted(run.date for run in records.runs)
    return (
        f"{dates[0]} to {dates[-1]}. Roof: {limits.bandwidth / 1e9:.1f} GB/s (the best of"
        f" {len(read)} readings, the least {min(read):.1f}), {limits.bf16 / 1e9:.0f} GFLOP/s in bfloat16,"
        f" {limits.int8 / 1e9:.0f} GOP/s in int8. {DISTURBED}: every run was disturbed."
    )


def _row(key: tuple[str, str, str], runs: list[Run], records: Records, limits: Limits) -> str:
    model, workload, peer = key
    speeds = [run.tokens_per_s for run in runs]
    median = statistics.median(speeds)
    share = median / roof(key, runs[0].weights, records, limits)
    cells = [
        f"{model} {workload}",
        peer,
        str(len(runs)) + ("" if runs[0].is_quiet else DISTURBED),
        spread(speeds, 1),
        f"{share:.0%}",
    ]
    cells += _timings([run.timings for run in runs if run.timings])
    cells += [f"{max(run.others for run in runs):.1f}", f"{max(run.steal for run in runs):.1f}"]
    return line(cells)


def _timings(found: Sequence[Timings]) -> list[str]:
    """Four cells; empty ones of a peer that does not stream."""
    if not found:
        return ["", "", "", ""]
    positions = zip(*(timings.positions for timings in found), strict=False)  # or none
    return [
        f"{_median(found, 'decode_tokens_per_s'):.1f}",
        f"{_median(found, 'ttft'):.0f}",
        f"{_median(found, 'itl'):.1f} ({_median(found, 'itl_p99'):.1f})",
        ", ".join(f"{statistics.median(times):.0f}" for times in positions),
    ]


def _ratios(groups: Groups) -> Iterator[str]:
    """Ours over the fastest peer with such weights and as many adapters, and over our worker alone, where
    these are there."""
    best: dict[tuple[str, str, str, int], dict[str, float]] = {}
    for (model, workload, peer), runs in groups.items():
        adapters = PEERS[peer].adapters if peer in PEERS else 0
        key = model, workload, runs[0].weights, adapters
        best.setdefault(key, {})[peer] = _median(runs, "tokens_per_s")
    for (model, workload, weights, _), speeds in best.items():
        ours = [peer for peer in speeds if peer in OURS and peer != WORKER]
        theirs = [peer for peer in speeds if peer not in OURS]  # the fastest one first
        for own in ours:
            name = f", {own}" if len(ours) > 1 else ""
            for peer in theirs[:1] + [WORKER] * (WORKER in speeds):
                yield f"- {model} {workload} {weights}{name}: {speeds[own] / speeds[peer]:.2f} times {peer}"


def _versions(runs: Sequence[Run]) -> dict[str, str]:
    return {run.peer: ", ".join(f"{name} {text}" for name, text in run.versions.items()) for run in runs}


def _median(values: Sequence[Run] | Sequence[Timings], name: str) -> float:
    return float(statistics.median(getattr(value, name) for value in values))
