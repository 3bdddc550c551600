"""Reports kernels that Triton compiles while serving: a step that compiles one delays all rows by seconds.

Warm-up runs every configuration that serving can need. A configuration that it missed is logged, kernel by
kernel; tests fail on it.
"""

import logging
from typing import Any

from triton import knobs

logger = logging.getLogger(__name__)


class CompileWatch:
    """Counts kernel configurations that are compiled, or loaded from Triton's cache on disk."""

    def __init__(self) -> None:
        self.count = 0
        self.late: list[str] = []
        self._serving = False

    def begin(self) -> None:
        """Counts from now on."""
        knobs.runtime.jit_post_compile_hook = self._compiled

    def serving(self) -> None:
        """Marks the end of the warm-up: kernels compiled from now on are logged."""
        self._serving = True

    def _compiled(self, *, fn: Any, repr: str, **_: Any) -> None:
        """Called by Triton for each kernel configuration."""
        self.count += 1
        if self._serving:
            self.late.append(repr)
            logger.warning(
                "Triton compiled %s.%s while serving: warm-up lacks it: %s", fn.module, fn.name, repr
            )
