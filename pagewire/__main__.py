"""The command `pagewire`."""

import errno
import logging
import os
import signal
import sys
from collections.abc import Sequence

if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C during the imports: no traceback

from pagewire import (
    cli,  # noqa: E402
    logs,  # noqa: E402
)
from pagewire.errors import PagewireError, StartupError  # noqa: E402
from pagewire.flags import UsageError  # noqa: E402
from pagewire.host import spawn as process  # noqa: E402
from pagewire.host import stack_dump  # noqa: E402


def main() -> int:
    """Runs the command line. Returns the exit code: 0 done, 1 failed, 2 wrong usage, 130 Ctrl-C, 141
    nothing reads the output any more."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    arguments = sys.argv[1:]
    # Otherwise gRPC writes lines of its own, not in our format, for each failed handshake.
    os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
    # A supervisor gets SIGTERM, so that it can remove its folder; its children die with it.
    process.die_with_parent(signal.SIGTERM if arguments[:1] == ["serve"] else signal.SIGKILL)
    if process.is_child():
        stack_dump.install()
    try:
        return _run(arguments)
    except StartupError as error:
        logging.getLogger(__name__).debug("cannot start", exc_info=True)
        if not process.is_child():
            tell(error)
        process.Status().failed(error)  # unless the process has reported it already
        return 2 if isinstance(error, UsageError) else 1
    except PagewireError as error:  # of a client
        print(f"error: {error}", file=sys.stderr)
        if error.todo:
            print(f"do:    {error.todo}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    except OSError as error:
        if error.errno not in (errno.EPIPE, errno.ENOSPC):
            raise
        # Python writes what is left at exit, which would fail again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if error.errno == errno.EPIPE:  # of a reader such as `head`
            return 128 + signal.SIGPIPE
        where = f"cannot write to {error.filename}" if error.filename else "cannot write"
        print(f"error: {where}: {error.strerror}", file=sys.stderr)
        return 1


def _run(arguments: Sequence[str]) -> int:
    """Runs a command and writes out what it has printed: at exit it is too late to say that nothing reads
    it."""
    try:
        return cli.run(arguments)
    finally:
        if sys.stdout is not None:  # closed by the shell: >&-
            sys.stdout.flush()


def tell(error: StartupError) -> None:
    """Prints what happened, why, and what to do about it, as the last lines on standard error."""
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
