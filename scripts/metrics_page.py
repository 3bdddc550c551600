"""Writes the tables of docs/metrics.md."""

import re
from collections.abc import Sequence
from pathlib import Path

from engine_core import metrics as engine_core
from frontend import metrics as frontend
from pagewire.supervisor import metrics as supervisor
from pagewire.telemetry.board import BUILD_INFO
from pagewire.telemetry.figures import Metric
from pagewire.telemetry.vllm_names import VLLM

PAGE = Path(__file__).resolve().parent.parent / "docs" / "metrics.md"
TABLES: dict[str, Sequence[Metric]] = {
    "Every process": [BUILD_INFO],
    "Frontend": frontend.METRICS,
    "Engine core and worker": engine_core.METRICS,
    "Supervisor": supervisor.METRICS,
}
BEGIN, END = "<!-- Written by python -m scripts.metrics_page -->", "<!-- until here -->"


def row(metric: Metric) -> str:
    """One line of a table."""
    labels = ", ".join(f"`{label}`" for label in metric.labels)
    theirs = ", ".join(f"`{name}`" for name in VLLM[metric.name].names) if metric.name in VLLM else ""
    cells = (f"`{metric.name}`", metric.kind, labels, metric.help, theirs)
    return "".join(f"| {cell} " if cell else "| " for cell in cells) + "|"


def tables() -> str:
    """All tables, with their headings."""
    parts = []
    for title, metrics in TABLES.items():
        head = ["| name | kind | labels | what | vLLM |", "| --- | --- | --- | --- | --- |"]
        parts.append("\n".join([f"### {title}\n", *head, *map(row, metrics)]))
    return "\n\n".join(parts)


def page(old: str) -> str:
    """The page with fresh tables between the two marks."""
    pattern = re.compile(f"(?<={BEGIN}\n\n).*?(?=\n\n{END})", re.DOTALL)
    fresh, count = pattern.subn(lambda match: tables(), old)
    if count != 1:
        raise ValueError(f"docs/metrics.md has {count} parts between {BEGIN!r} and {END!r}")
    return fresh


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text()))
