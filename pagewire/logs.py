"""Log lines: one format for every process, on standard error. Never prompts or outputs."""

import logging
import os
import sys

_FORMAT = "%(asctime)s.%(msecs)03d %(levelname)-7s {process} %(name)s: %(message)s"
_CLEAR_LINE = "\r\x1b[K"


def setup(process_name: str, level: str) -> None:
    """Sends the log of this process to standard error.

    process_name: "frontend", "engine" ...; printed with the process id, since all share a terminal.
    level: "debug", "info", "warning" or "error".
    """
    line = _FORMAT.format(process=f"{process_name}[{os.getpid()}]")
    if sys.stderr.isatty():
        line = _CLEAR_LINE + line  # the supervisor may be showing progress on this line
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter(line, datefmt="%Y-%m-%d %H:%M:%S"))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    logging.captureWarnings(True)
