"""The report: what each part found, as JSON and in Markdown."""

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.gpu import kernels as gpu_kernels
from benchmarks.gpu import steps as gpu_steps
from benchmarks.gpu.first_hour import row_equality
from benchmarks.gpu.first_hour.parts import Part
from benchmarks.gpu.first_hour.runner import State

Figures = dict[str, Any]


def write_report(folder: Path, state: State, parts: Sequence[Part]) -> None:
    """Writes report.json and report.md."""
    figures = {part.name: read_figures(folder / f"{part.name}.json") for part in parts}
    whole = {
        "facts": state.facts,
        "seconds": round(state.used, 1),
        "parts": {name: vars(record) | {"figures": figures[name]} for name, record in state.parts.items()},
    }
    (folder / "report.json").write_text(json.dumps(whole, indent=1) + "\n")
    (folder / "report.md").write_text("\n".join(markdown(state, parts, figures)) + "\n")


def read_figures(path: Path) -> Figures:
    """Returns what a part has written; nothing where it is not whole."""
    try:
        found: Figures = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return found


def markdown(state: State, parts: Sequence[Part], figures: dict[str, Figures]) -> Iterator[str]:
    """Facts, how each part went, and its table."""
    yield f"# The first hour on {state.facts['device']}"
    yield ""
    yield from (f"- {name}: {value}" for name, value in state.facts.items() if name != "device")
    yield f"- time: {state.used / 60:.1f} minutes"
    yield ""
    yield from ("| part | how it went | seconds |", "| --- | --- | ---: |")
    for part in parts:
        if (record := state.parts.get(part.name)) is None:
            yield f"| {part.name} | not begun | |"
            continue
        yield f"| {part.name} | {record.status}{record.why and f': {record.why}'} | {record.seconds:.0f} |"
    for part in parts:
        lines = list(TABLES[part.name](figures[part.name])) if figures[part.name] else []
        if lines:
            yield from ("", f"## {part.name.capitalize()}", "", *lines)


def test_lines(figures: Figures) -> Iterator[str]:
    """Counts; the tests that did not pass, with the reason."""
    outcomes = list(figures["outcomes"].values())
    counts = {outcome: outcomes.count(outcome) for outcome in dict.fromkeys(outcomes)}
    yield ", ".join(f"{count} {outcome}" for outcome, count in counts.items())
    bad = {test: what for test, what in figures["outcomes"].items() if what not in ("passed", "skipped")}
    if bad:
        yield from ("", "| test | outcome | why |", "| --- | --- | --- |")
        for test, what in bad.items():
            yield f"| {test} | {what} | {_cell(figures['why'].get(test, ''))} |"


def equality_lines(figures: Figures) -> Iterator[str]:
    """A row per probe; sizes with the same bits stand together."""
    yield from ("| row | bits | sizes with the same bits | place changes them |", "| --- | --- | --- | --- |")
    yield from map(row_equality.line, figures["rows"])
    if figures["left_out"]:
        yield from ("", f"Left out, for want of time: {', '.join(figures['left_out'])}")


def kernel_lines(figures: Figures) -> Iterator[str]:
    """As benchmarks/gpu/kernels.py prints them."""
    copy, product = figures["bandwidth"] / 1e12, figures["rate"] / 1e12
    yield from (f"copy {copy:.3f} TB/s, product {product:.2f} TFLOP/s", "", *gpu_kernels.HEADER)
    yield from map(gpu_kernels.line, figures["rows"])


def step_lines(figures: Figures) -> Iterator[str]:
    """As benchmarks/gpu/steps.py prints them."""
    yield from gpu_steps.table(figures)


def service_lines(figures: Figures) -> Iterator[str]:
    """Of each workload what benchmarks/service/serve.py prints."""
    yield from (
        "| workload | tokens/s | TTFT p50 ms | ITL p50 ms | % between steps |",
        "| --- |" + " ---: |" * 4,
    )
    for name, summary in figures["workloads"].items():
        cells = (f"{summary[column]['median']:.1f}" for column in ("tokens_per_s", "ttft_p50", "itl_p50"))
        idle = figures["breakdowns"][name][0]["parts"]["between steps"]
        yield f"| {name} | {' | '.join(cells)} | {idle:.1f} |"


def kill_lines(figures: Figures) -> Iterator[str]:
    """Sums over all rounds, and what was wrong in which."""
    rounds = figures["rounds"]
    sums = {name: sum(one[name] for one in rounds) for name in ("kills", "streams", "refused")}
    yield ", ".join(f"{count} {name}" for name, count in sums.items())
    bad = [one for one in rounds if one["wrong"]]
    yield f"{len(rounds) - len(bad)} of {len(rounds)} rounds without a finding"
    yield from (f"- seed {one['seed']}: {_cell(line)}" for one in bad for line in one["wrong"][:5])
    yield from ("", "| seed | killed | kills | pauses | p50 s | p99 s | max s |")
    yield "| ---: | --- | ---: | ---: | ---: | ---: | ---: |"
    for one in rounds:
        for row in one["pauses"]:
            times = " | ".join(f"{row[name]:.3f}" for name in ("p50", "p99", "max"))
            yield f"| {one['seed']} | {row['kind']} | {row['strikes']} | {row['count']} | {times} |"


def _cell(text: str) -> str:
    return text.replace("|", "/").replace("\n", " ")


TABLES: dict[str, Callable[[Figures], Iterator[str]]] = {
    "tests": test_lines,
    "equality": equality_lines,
    "ranks": test_lines,
    "kernels": kernel_lines,
    "steps": step_lines,
    "service": service_lines,
    "kills": kill_lines,
}
