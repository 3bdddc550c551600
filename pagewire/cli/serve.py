"""`pagewire serve`."""

import sys

from pagewire import logs, process
from pagewire.child import Facts
from pagewire.cli.extras import require_worker
from pagewire.config import ServeConfig
from pagewire.models import checkpoint_folder
from pagewire.supervisor import Supervisor

CONFIG = ServeConfig

_HOW_TO_CALL = """\
call it:
  pagewire generate 'The capital of France is' --address {address}
  python:  pagewire.Client("{address}").generate("The capital of France is").text
  node:    node examples/node/client.js {address} stream 'The capital of France is'
stop it:   Ctrl-C"""


def run(config: ServeConfig) -> int:
    """Runs the whole service until a signal; returns 0 then, Ctrl-C included."""
    logs.setup("serve", config.log_level, config.log_format)
    require_worker("start a service", config.device)
    checkpoint_folder(config.model)
    return Supervisor(config, _announce).run()


def _announce(facts: Facts) -> None:
    rest = " ".join(f"{name}={value}" for name, value in facts.items() if name not in ("address", "port"))
    print(f"ready: grpc://{facts['address']} {rest}", flush=True)
    if not process.is_child() and not logs.writes_json():
        print(_HOW_TO_CALL.format(address=facts["address"]), file=sys.stderr, flush=True)
