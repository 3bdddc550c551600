"""`pagewire serve`."""

import sys
from functools import partial

from pagewire.checkpoints.hub import with_local_model
from pagewire.checkpoints.paths import checkpoint_path
from pagewire.cli.common.extras import check_gateway, require_doors, require_worker
from pagewire.config import ServeConfig
from pagewire.errors import StartupError
from pagewire.host import spawn as process
from pagewire.logs import process_log
from pagewire.supervisor.child import Facts
from pagewire.supervisor.exposure_warning import log_exposure
from pagewire.supervisor.supervisor import Supervisor

CONFIG = ServeConfig

_HIDDEN_FACTS = ("address", "port", "suspects")
"""Facts that the ready line shows elsewhere, or that are for the supervisor."""

_HOW_TO_CALL = """\
call it:
  pagewire generate 'The capital of France is' --address {address}{flags}
  python:  pagewire.Client("{address}"{options}).generate("The capital of France is").text
  node:    {variables}node examples/node/client.js {address} stream 'The capital of France is'
stop it:   Ctrl-C"""


def run(config: ServeConfig) -> int:
    """Runs the whole service until a signal, such as Ctrl-C; returns 0 then."""
    process_log.setup("serve", config.log_level, config.log_format)
    require_worker("start a service", config.device)
    require_doors(config)
    check_gateway(config)
    _check_parallelism(config)
    _check_frontends(config)
    config = with_local_model(config)
    checkpoint_path(config.model)
    return Supervisor(config, partial(_announce, config)).run()


def _check_parallelism(config: ServeConfig) -> None:
    """Raises StartupError before a model is downloaded for several ranks, which no worker supports yet."""
    for flag, size in (
        ("--tensor-parallel-size", config.tensor_parallel_size),
        ("--pipeline-parallel-size", config.pipeline_parallel_size),
    ):
        if size > 1:
            raise StartupError(
                "cannot split the model",
                f"{flag} is {size}, and a model runs in one worker",
                "leave it out; --data-parallel-size N starts N engines, each with the whole model",
            )


def _check_frontends(config: ServeConfig) -> None:
    """Raises StartupError for engine cores that no frontend could reach."""
    if not config.frontends and not config.listen:
        raise StartupError(
            "cannot start a service without frontends",
            "--frontends is 0, and frontends elsewhere need an address",
            "add --listen ipc:///folder/frontends.ipc",
        )
    if not config.frontends and (config.openai_port is not None or config.gateway is not None):
        raise StartupError(
            "cannot start a service without frontends",
            "--openai-port and --gateway are served by frontends",
            "give them to pagewire frontend",
        )
    if config.listen and config.data_parallel_size > 1:
        raise StartupError(
            "cannot start the engine cores",
            "--listen is the address of one, and --data-parallel-size is larger",
            "start a service for each",
        )


def _announce(config: ServeConfig, facts: Facts) -> None:
    rest = " ".join(f"{name}={value}" for name, value in facts.items() if name not in _HIDDEN_FACTS)
    address = f"grpc://{facts['address']}" if config.frontends else facts["address"]
    print(f"ready: {address} {rest}", flush=True)
    if not config.frontends:
        return
    log_exposure(config)
    if not process.is_child() and not process_log.writes_json():
        print(_how_to_call(config, str(facts["address"])), file=sys.stderr, flush=True)


def _how_to_call(config: ServeConfig, address: str) -> str:
    flags = options = variables = ""
    if config.tls_cert:
        flags, options, variables = " --tls-ca ca.pem", ', tls="ca.pem"', "CA=ca.pem "
    if config.auth_file:
        flags, options, variables = (
            f"{flags} --token-file token",
            f"{options}, token=token",
            f"TOKEN=pw_... {variables}",
        )
    return _HOW_TO_CALL.format(address=address, flags=flags, options=options, variables=variables)
