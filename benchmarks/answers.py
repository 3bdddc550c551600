"""What telling reasoning and calls apart costs.

    python -m benchmarks.answers

Per format: seconds of CPU time for a megabyte of its calls, in large pieces and in pieces of four characters,
about what a token has, and microseconds for each of these.
"""

import json
import time

from frontend.answers.binding import BoundFormat
from frontend.answers.formats import TOOL_FORMATS
from frontend.answers.machine import Machine
from tests.frontend.answers.transcripts import TRANSCRIPTS

MEGABYTE = 1 << 20
TOKEN, LARGE = 4, 4096
LONG = {"city": "a " * (MEGABYTE // 2)}


def seconds(name: str, text: str, size: int) -> float:
    """Returns the CPU time that one answer takes, in pieces of `size` characters."""
    table = BoundFormat(TOOL_FORMATS[name], None, {})
    machine = Machine(table, {}, str, state=table.format.start)
    pieces = [text[start : start + size] for start in range(0, len(text), size)]
    begin = time.process_time()
    for piece in pieces:
        machine.feed(piece)
    machine.finish()
    return time.process_time() - begin


def main() -> None:
    """Prints one line per format."""
    one = '<tool_call>{"name": "f", "arguments": ' + json.dumps(LONG) + "}</tool_call>"
    texts = {name: (name, text * (MEGABYTE // len(text))) for name, text in TRANSCRIPTS.items()}
    listed = TRANSCRIPTS["llama-4"][1:-1]  # the whole answer is one list
    texts["llama-4"] = ("llama-4", f"[{', '.join([listed] * (MEGABYTE // len(listed)))}]")
    print(f"{'format':18} {'large pieces':>12} {'as tokens':>12} {'us/token':>9}")
    for label, (name, text) in {**texts, "hermes, one call": ("hermes", one)}.items():
        large, small = seconds(name, text, LARGE), seconds(name, text, TOKEN)
        print(f"{label:18} {large:10.2f} s {small:10.2f} s {1e6 * small * TOKEN / len(text):9.2f}")


if __name__ == "__main__":
    main()
