"""`pagewire bench`."""

import asyncio
import sys
from pathlib import Path

from pagewire.cli.connect import client_options, read_token
from pagewire.command_config import BenchConfig
from pagewire.flags import UsageError
from pagewire_bench.driver import INTERRUPTED
from pagewire_bench.plan import BenchPlan
from pagewire_bench.record import BenchRecord, read_record, write_record, write_text
from pagewire_bench.report.chart import svg_file
from pagewire_bench.report.charts import charts
from pagewire_bench.report.comparison import comparison_lines
from pagewire_bench.report.page import page
from pagewire_bench.report.table import table_lines
from pagewire_bench.targets.grpc_target import GrpcTarget
from pagewire_bench.targets.openai_target import OpenAiTarget
from pagewire_bench.targets.target import OutputOptions, Target
from pagewire_client.aio import AsyncClient

CONFIG = BenchConfig
_CTRL_C = 130


def run(config: BenchConfig) -> int:
    """Measures, or compares. Returns 0, 1 if no request succeeded, or 130 after Ctrl-C, with the figures of
    what had been measured. Raises UsageError, PagewireError."""
    if config.action == "compare":
        return _compare(config)
    if config.action != "run" or config.first:
        wrong = config.first or config.action
        raise UsageError(f"unknown argument {wrong!r}", todo="pagewire bench, or pagewire bench compare A B")
    plan = BenchPlan(config)
    record = asyncio.run(plan.measure(lambda: _target(config, plan.output_options), _show_progress))
    print("\n".join(table_lines(record)))
    _write(config, record)
    if INTERRUPTED in record.about:
        print(f"interrupted {record.about[INTERRUPTED]}: these are the figures so far", file=sys.stderr)
        return _CTRL_C
    return 0 if any(not trace.error for each in record.runs for trace in each.traces) else 1


def _write(config: BenchConfig, record: BenchRecord) -> None:
    """Writes the files that flags name. Raises UsageError."""
    if config.json:
        write_record(record, Path(config.json))
    if config.html:
        write_text(Path(config.html), "--html", page(record))
    for chart in charts(record) if config.svg else ():
        write_text(Path(config.svg, f"{chart.file_name}.svg"), "--svg", svg_file(chart))


def _compare(config: BenchConfig) -> int:
    if not config.first or not config.second:
        raise UsageError("two files are needed", todo="pagewire bench compare A.json B.json")
    first, second = read_record(Path(config.first)), read_record(Path(config.second))
    print("\n".join(comparison_lines(first, second)))
    return 0


def _target(config: BenchConfig, options: OutputOptions) -> Target:
    """Raises UsageError."""
    try:
        if not config.url:
            client = AsyncClient(config.address, model=config.model_name, **client_options(config))
            return GrpcTarget(client, options)
        return OpenAiTarget(
            config.url,
            config.api,
            options,
            model=config.model_name,
            token=read_token(config),
            tls_ca=config.tls_ca,
            request_timeout=config.request_timeout,
        )
    except (ValueError, OSError) as error:
        raise UsageError("cannot connect", str(error)) from None


def _show_progress(text: str) -> None:
    """Shows a line that the next one replaces, on a terminal only."""
    if sys.stderr.isatty():
        print(f"\r\x1b[K{text}", end="", file=sys.stderr, flush=True)
