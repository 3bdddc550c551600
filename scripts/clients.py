"""Generates the blocking clients from the asyncio ones: pagewire_client/aio.py -> sync.py, and so on.

    python scripts/clients.py            writes the generated files
    python scripts/clients.py --check    fails if one of them is stale

The substitutions are those that the clients need, not a general translation. Code that cannot be shared is in
transport/io_aio.py and io_sync.py.
"""

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
CLIENT = ROOT / "packages" / "pagewire-client" / "src" / "pagewire_client"
FILES = {
    "aio.py": "sync.py",
    "operations_aio.py": "operations.py",
    "transport/connections_aio.py": "transport/connections.py",
    "transport/multiplex_aio.py": "transport/multiplex.py",
    "transport/stream_aio.py": "transport/stream.py",
}
HEADER = "# Generated from {source} by scripts/clients.py: change that file, then run 'make clients'.\n"

SUBSTITUTIONS = tuple(
    (re.compile(pattern), replacement)
    for pattern, replacement in (
        # Documentation.
        (r"The client for asyncio\. .* from this file\.", "The blocking client."),
        (r", for asyncio\.", ", for threads."),
        (r", to be used by one event loop\.", ". Thread-safe."),
        (r"Requests may be sent from one event loop\.", "Requests may be sent from any thread."),
        (r"an async with\b", "a with"),
        (r"\(a cancelled task, Ctrl-C\)", "(such as Ctrl-C)"),
        (r"such as CancelledError or Ctrl-C", "such as Ctrl-C"),
        # Modules and names.
        (r"\b(connections|multiplex|operations|stream)_aio\b", r"\1"),
        (r"\bio_aio\b", "io_sync"),
        (r"\bAsync(Client|Connections|Operations|Stream|Multiplex|Iterator|Inbox|Call|Pager)\b", r"\1"),
        (r"\bStopAsyncIteration\b", "StopIteration"),
        (r"__a(iter|next|enter|exit)__", r"__\1__"),
        (r"\baclose\b", "close"),
        # Keywords.
        (r"\basync (def|for|with)\b", r"\1"),
        (r"\bawait ", ""),
    )
)


def generate(source: str) -> str:
    """Returns the blocking twin of a file of the client, as ruff formats it."""
    text = (CLIENT / source).read_text(encoding="utf-8")
    for pattern, replacement in SUBSTITUTIONS:
        text = pattern.sub(replacement, text)
    text = HEADER.format(source=Path(source).name) + text
    return _ruff("format", _ruff("check", text, "--fix", "--unsafe-fixes", "--select", "I,UP028"))


def _ruff(command: str, text: str, *options: str) -> str:
    ruff = [sys.executable, "-m", "ruff", command, "--quiet", *options, "--stdin-filename", "sync.py", "-"]
    run = subprocess.run(ruff, input=text, capture_output=True, text=True, check=True, cwd=ROOT)
    return run.stdout


def main() -> None:
    check = sys.argv[1:] == ["--check"]
    for source, target in FILES.items():
        path, text = CLIENT / target, generate(source)
        if not check:
            path.write_text(text, encoding="utf-8")
        elif path.read_text(encoding="utf-8") != text:
            sys.exit(f"{path.relative_to(ROOT)} is stale: run 'make clients'")


if __name__ == "__main__":
    main()
