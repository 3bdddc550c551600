"""The tables of a comparison, in Markdown: every figure with its spread, its roof and what else ran."""

import statistics
from collections.abc import Iterator, Sequence

from benchmarks.versus.catalog import OURS
from benchmarks.versus.comparison import MAX_MODEL_LEN
from benchmarks.versus.records import Records, Run, Timings, that_count
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
    "others %",
    "steal %",
)
DISTURBED = "*"

Groups = dict[tuple[str, str, str], list[Run]]
"""By model, workload and peer."""


def render(records: Records) -> str:
    """All tables, of one run at least."""
    limits, groups = records.best_limits(), _groups(records.runs)
    return "\n".join(
        [
            _about(records, limits),
            "",
            line(COLUMNS),
            line(["---"] * len(COLUMNS)),
            *(_row(key, runs, records, limits) for key, runs in groups.items()),
            "",
            *_ratios(groups),
            *dict.fromkeys(
                f"- {each.model} {each.workload} {each.peer}: {each.why}" for each in records.failures
            ),
            *(f"- {peer}: {versions}" for peer, versions in _versions(records.runs).items()),
        ]
    )


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
        f"{median:.1f} ({min(speeds):.1f}..{max(speeds):.1f})",
        f"{share:.0%}",
    ]
    cells += _timings([run.timings for run in runs if run.timings])
    cells += [f"{max(run.others for run in runs):.1f}", f"{max(run.steal for run in runs):.1f}"]
    return line(cells)


def _timings(found: Sequence[Timings]) -> list[str]:
    """Three cells; empty ones of a peer that does not stream."""
    if not found:
        return ["", "", ""]
    return [
        f"{_median(found, 'decode_tokens_per_s'):.1f}",
        f"{_median(found, 'ttft'):.0f}",
        f"{_median(found, 'itl'):.1f} ({_median(found, 'itl_p99'):.1f})",
    ]


def _ratios(groups: Groups) -> Iterator[str]:
    """Ours over the fastest peer with such weights, where both are there."""
    best: dict[tuple[str, str, str], dict[str, float]] = {}
    for (model, workload, peer), runs in groups.items():
        best.setdefault((model, workload, runs[0].weights), {})[peer] = _median(runs, "tokens_per_s")
    for (model, workload, weights), speeds in best.items():
        ours = {peer: speed for peer, speed in speeds.items() if peer in OURS}
        theirs = {peer: speed for peer, speed in speeds.items() if peer not in OURS}
        if ours and theirs:
            peer = max(theirs, key=lambda name: theirs[name])
            for own, speed in ours.items():
                name = f", {own}" if len(ours) > 1 else ""
                yield f"- {model} {workload} {weights}{name}: {speed / theirs[peer]:.2f} times {peer}"


def _versions(runs: Sequence[Run]) -> dict[str, str]:
    return {run.peer: ", ".join(f"{name} {text}" for name, text in run.versions.items()) for run in runs}


def _median(values: Sequence[Run] | Sequence[Timings], name: str) -> float:
    return float(statistics.median(getattr(value, name) for value in values))
