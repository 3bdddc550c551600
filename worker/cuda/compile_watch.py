"""Watches that Triton compiles nothing while serving: a step in which it does takes seconds, for everybody.

Warm-up meets every configuration that serving can meet. What it forgot is told in the log, kernel by kernel;
tests fail on it.
"""

import logging
from typing import Any

from triton import knobs

logger = logging.getLogger(__name__)


class CompileWatch:
    """Counts kernels that are compiled, or read from Triton's cache on disk, in one configuration each."""

    def __init__(self) -> None:
        self.count = 0
        self.late: list[str] = []
        self._serving = False
        knobs.runtime.jit_post_compile_hook = self._compiled

    def serving(self) -> None:
        """From now on each is one too many."""
        self._serving = True

    def _compiled(self, *, fn: Any, repr: str, **_: Any) -> None:
        """Triton's hook."""
        self.count += 1
        if self._serving:
            self.late.append(repr)
            logger.warning(
                "Triton compiled %s.%s while serving: warm-up lacks it: %s", fn.module, fn.name, repr
            )
