"""Python runs this in each process that starts with this folder on its path: on SIGUSR1 the process hangs.

In native code that keeps the GIL: whatever else of Python wants to run in it, on any thread, waits.
"""

import ctypes
import signal


def _hang(number: int, frame: object) -> None:
    while True:
        ctypes.PyDLL(None).pause()


signal.signal(signal.SIGUSR1, _hang)
