"""Writes docs/limits.md from the one table (scripts/limits/field_rows.py)."""

from collections.abc import Iterable
from itertools import groupby
from pathlib import Path

from scripts.limits.field_rows import Row, answer_rows, request_rows, requests
from scripts.limits.field_tables import NOT_BUILT

PAGE = Path(__file__).resolve().parent.parent / "docs" / "limits.md"

HEAD = """# Limits

Every field of every public message: its type, the values that are fine, what it means when it is not set, and
the file that judges it. Made by `python -m scripts.limits_page` from the table that the server itself uses
(`frontend/validation/fields.py`, `scripts/limits/field_tables.py`); a test fails when a field has no row.
What the fields mean is said in [protos/pagewire/v1](../protos/pagewire/v1).

A value outside its range is INVALID_ARGUMENT, before the first header, with the field's path in `BadRequest`;
a field that is not built is INVALID_ARGUMENT with `FEATURE_UNSUPPORTED`, never ignored. `Limits` is in the
answer of `GetModel`: those of a running server. The engine core judges again what reaches it
(`engine_core/intake/validation.py`): a frontend is not trusted either.
"""

WORK = """## A request as a whole

| what | bound | where |
| --- | --- | --- |
| bytes of one message | `--max-request-bytes` (16 MiB), before it is parsed | gRPC: RESOURCE_EXHAUSTED |
| bytes of one answer | 64 MiB | gRPC |
| calls like GenerateMultiplexed of a tenant | 64 | frontend/call/limits.py |
| requests of one stream at once | `--max-multiplexed-requests` (1,024) | frontend/streams/multiplexer.py |
| bytes of an answer to many | 1 MiB, or what one request has | frontend/streams/multiplexer.py |
| nesting | 100 messages deep; deeper is MALFORMED_MESSAGE | protobuf, frontend/rpc/interceptors/decoding.py |
| fields, from 128 KiB | 300,000, or TOO_MANY_FIELDS; packed list: 1 | frontend/rpc/interceptors/decoding.py |
| messages among them | 32,768, likewise before they are decoded | frontend/rpc/interceptors/decoding.py |
| values of JSON | 1,048,576, estimated, a key counting as four | frontend/validation/json_objects.py |
| nesting of JSON | 256 objects and lists | frontend/validation/json_objects.py |
| messages inside a request | 16,384 | frontend/validation/requests.py |
| tokenizing, small prompts | a thread, 10 s; then only processes read | frontend/prompts/prompt_reader.py |
| tokenizing, above 64 KiB | a process: 5 s of CPU, 2 GiB more at most | frontend/prompts/process.py |
| a chat template's processor time | 1 s | frontend/templates/watchdog.py |
| a chat template's memory | 32 Mi characters per value, 256 Mi in all | frontend/templates/jinja_sandbox.py |
"""


def table(rows: Iterable[Row]) -> str:
    """Markdown."""
    lines = ["| field | type | range | default | judged in |", "| --- | --- | --- | --- | --- |"]
    lines += [
        f"| `{row.path}` | {row.type.replace('<', '&lt;')} | {row.range} | {row.default} | {row.where} |"
        for row in rows
    ]
    return "\n".join(lines) + "\n"


def page() -> str:
    """The whole of it."""
    parts = [HEAD, WORK, "## Requests\n"]
    for name in requests():
        rows = request_rows(name)
        if name not in NOT_BUILT:
            parts.append(f"### {name}\n\n{table(rows) if rows else 'No fields.'}\n")
    parts.append("## Requests that are not built\n")
    parts += [f"### {name}\n\n{table(request_rows(name))}\n" for name in requests() if name in NOT_BUILT]
    parts.append("## Answers\n")
    for name, rows_of in groupby(answer_rows(), key=lambda row: row.message):
        parts.append(f"### {name}\n\n{table(rows_of)}\n")
    return "\n".join(part.rstrip("\n") + "\n" for part in parts)


if __name__ == "__main__":
    PAGE.write_text(page())
