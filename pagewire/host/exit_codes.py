"""Exit codes of child processes in words."""

import signal


def describe_exit(code: int) -> str:
    """Returns a clause for a return code of subprocess, such as "it was killed by SIGTERM"."""
    if code >= 0:
        return f"it ended with exit code {code}"
    why = f"it was killed by {signal.Signals(-code).name}"
    return f"{why}, which is also what happens when memory runs out" if code == -signal.SIGKILL else why
