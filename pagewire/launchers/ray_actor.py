"""What runs in an actor of Ray, on another host. Imports nothing of Ray."""

import json
import os
import socket

from pagewire.host import spawn as process
from pagewire.host.proc_stat import describe_exit


class RankHost:
    """Runs `pagewire ranks` as a child, which dies with this process. Gets and returns text alone."""

    def host(self) -> str:
        """Returns the name of this host."""
        return socket.gethostname()

    def run(self, arguments: list[str], key: str) -> list[str]:
        """Runs `pagewire ranks ARGUMENTS` to its end. Returns how it has ended, as one text, or what, why and
        what to do of the StartupError that it reports. key: the content of its --curve-key, which stays in
        memory: a file without a name, which ends with this process."""
        descriptor = os.memfd_create("curve-key")
        try:
            os.fchmod(descriptor, 0o600)
            os.write(descriptor, key.encode())
            own_key = f"--curve-key=/proc/{os.getpid()}/fd/{descriptor}"
            # The main thread of an actor lives as long as its process, which has threads of Ray.
            child, status = process.spawn(["ranks", *arguments, own_key], from_birth=False)
            with os.fdopen(status) as events:
                failures = [event for event in map(json.loads, events) if event["event"] == "failed"]
            code = child.wait()
        finally:
            os.close(descriptor)
        return [failures[-1][name] for name in ("what", "why", "todo")] if failures else [describe_exit(code)]
