"""`pagewire serve` with fake children: fake_serve.py ENGINE FRONTEND [FLAG ...], see fake_child.py.

ENGINE and FRONTEND are behaviours of fake_child.py, or FIRST,LATER: of the first process and of its
successors.

Prints the facts of the children when they are ready, and reports errors as the command line does.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

from pagewire import flags
from pagewire.__main__ import tell
from pagewire.config import ServeConfig
from pagewire.errors import StartupError
from pagewire.host import liveness
from pagewire.host import spawn as process
from pagewire.supervisor import supervisor

BEHAVIOURS = dict(zip(("engine", "frontend"), sys.argv[1:3], strict=True))

spawned: list[str] = []


def fake_spawn(arguments, **options):
    reading, writing = os.pipe()
    environment = {**os.environ, "PAGEWIRE_STATUS_FD": str(writing), "PAGEWIRE_PARENT_PID": str(os.getpid())}
    command = [sys.executable, str(Path(__file__).with_name("fake_child.py"))]
    first, _, later = BEHAVIOURS[arguments[0]].partition(",")
    spawned.append(arguments[0])
    command += [later or first if spawned.count(arguments[0]) > 1 else first, *arguments]
    child = subprocess.Popen(command, env=environment, pass_fds=(writing,), **options)
    os.close(writing)
    return child, reading


process.spawn = fake_spawn
liveness.STARTING_PATIENCE_S = float(os.environ.get("STARTING_PATIENCE_S", liveness.STARTING_PATIENCE_S))
arguments = sys.argv[3:]
if not any(argument.startswith("--port") for argument in arguments):
    arguments.append("--port=0")
config = flags.parse(ServeConfig, arguments, command="serve")
try:
    sys.exit(supervisor.Supervisor(config, lambda facts: print(json.dumps(facts), flush=True)).run())
except StartupError as error:
    tell(error)
    sys.exit(1)
