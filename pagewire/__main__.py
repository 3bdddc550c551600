"""The command `pagewire`."""

import logging
import os
import signal
import sys

from pagewire import cli, logs
from pagewire.errors import PagewireError, StartupError
from pagewire.flags import UsageError
from pagewire.host import spawn as process


def main() -> int:
    """Runs the command on the command line; the exit code: 0 done, 1 failed, 2 wrong usage, 130 Ctrl-C."""
    arguments = sys.argv[1:]
    # Else gRPC writes a line of its own, not in our format, for each handshake of a stranger's that fails.
    os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
    # A supervisor is asked to stop, so that it can remove its folder; its children die with it.
    process.die_with_parent(signal.SIGTERM if arguments[:1] == ["serve"] else signal.SIGKILL)
    try:
        return cli.run(arguments)
    except StartupError as error:
        logging.getLogger(__name__).debug("cannot start", exc_info=True)
        if not process.is_child():
            tell(error)
        process.Status().failed(error)  # unless the process has already said so itself
        return 2 if isinstance(error, UsageError) else 1
    except PagewireError as error:  # a client's
        print(f"error: {error}", file=sys.stderr)
        if error.todo:
            print(f"do:    {error.todo}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130


def tell(error: StartupError) -> None:
    """What happened, why, and what to do about it, as the last lines on standard error."""
    if logs.writes_json():
        logging.getLogger(__name__).error(error.what, extra={"why": error.why, "todo": error.todo})
        return
    print(f"error: {error.what}", file=sys.stderr)
    if error.why:
        print(f"why:   {error.why}", file=sys.stderr)
    if error.todo:
        print(f"do:    {error.todo}", file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
