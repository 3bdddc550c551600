"""`pagewire serve`."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from pagewire import logs
from pagewire.checkpoints.files import object_of_flag
from pagewire.checkpoints.paths import (
    OF_CONFIG,
    checkpoint_path,
    hub_adapters,
    hub_name,
    tokenizer_folder,
    with_local_model,
)
from pagewire.cli.extras import require_doors, require_launcher, require_worker
from pagewire.config import ServeConfig
from pagewire.errors import StartupError
from pagewire.flags import UsageError, flags_of
from pagewire.host import spawn as process
from pagewire.host.nodes import check_nodes, resolved
from pagewire.launchers.launcher import prepared
from pagewire.plugins import find_plugin
from pagewire.supervisor.child import Facts
from pagewire.supervisor.notices import log_exposure, tell

_WRITTEN = ("record",)
"""Flags whose files are written."""
_LEAST_KEY = 16
"""Characters of an --api-key: its hash is a fast one, from which a short key could be guessed."""
_HIDDEN_FACTS = ("address", "port", "suspects")
"""Facts that the ready line shows elsewhere, or that are for the supervisor."""

_HOW_TO_CALL = """\
call it:
  pagewire generate 'The capital of France is' --address {address}{flags}
  python:  pagewire.Client("{address}"{options}).generate("The capital of France is").text
  node:    {variables}node examples/node/client.js {address} stream 'The capital of France is'
"""
_HOW_TO_CURL = """\
  curl:    curl{flags} {url}/completions -H 'Content-Type: application/json' \\
             -d '{{"prompt": "The capital of France is"}}'
           curl{flags} {url}/chat/completions -H 'Content-Type: application/json' \\
             -d '{{"messages": [{{"role": "user", "content": "Hello!"}}]}}'
"""
_HOW_MUCH = """\
memory:    {gib:.2f} GiB of KV cache for {tokens:,} tokens; requests beyond it wait (--kv-cache-memory GIB)
"""
_HOW_TO_STOP = "stop it:   Ctrl-C"


def run(config: ServeConfig) -> int:
    """Runs the whole service until a signal, such as Ctrl-C; returns 0 then."""
    logs.setup("serve", config.log_level, config.log_format)
    require_worker("start a service", config.device)
    require_doors(config)
    require_launcher(config)
    with prepared(resolved(config)) as config:
        return _run(config)


def _run(config: ServeConfig) -> int:
    if config.gateway is not None:
        find_plugin("pagewire.commands", "gateway").load().check(config)
    check_nodes(config)
    _check_frontends(config)
    _check_transfers(config)
    named = hub_name(config.model) is not None or hub_name(config.tokenizer) is not None
    if named or hub_adapters(config.lora):
        _check_before_download(config)
    _check_shape(config)
    from pagewire.supervisor.supervisor import Supervisor  # not in a base install, which has no metrics

    with _api_keys(config) as config:
        config = with_local_model(config)
        checkpoint_path(config.model)
        return Supervisor(config, partial(_announce, config)).run()


@contextmanager
def _api_keys(config: ServeConfig) -> Iterator[ServeConfig]:
    """Yields the configuration with --api-key as a token file, which has the hashes of the keys and is
    removed at the end. Raises UsageError."""
    if not config.api_key:
        yield config
        return
    if config.auth_file:
        raise UsageError(
            "--api-key cannot be combined with --auth-file", todo="add the key's hash to the file"
        )
    if any(len(key) < _LEAST_KEY for key in config.api_key):
        what = f"an --api-key has at least {_LEAST_KEY} characters"
        raise UsageError(what, todo="openssl rand -hex 32 makes one")
    from frontend.auth.tokens import add_line, digest_of, entry_line

    text = ""
    for key in dict.fromkeys(config.api_key):
        text = add_line(text, entry_line(digest_of(key), "default", {}))
    # Not in /tmp if that can be helped, from which old files are removed.
    runtime = os.environ.get("XDG_RUNTIME_DIR", "")
    where = runtime if os.path.isdir(runtime) and os.access(runtime, os.W_OK) else None
    with TemporaryDirectory(prefix="pagewire-keys-", dir=where) as folder:
        file = Path(folder) / "tokens.yaml"
        file.write_text(text, encoding="utf-8")
        yield replace(config, api_key=(), auth_file=str(file))


def _check_shape(config: ServeConfig) -> None:
    """Raises StartupError for more ranks than those among which the model can be divided, by its
    configuration, which is downloaded before the weights. One that cannot be judged here is left to the
    worker."""
    if config.num_ranks == 1 or config.model_impl == "transformers":
        return
    from worker.families.registry import read_model_config
    from worker.startup.checks import check_shape

    alone = with_local_model(replace(config, tokenizer="", lora=()), OF_CONFIG)
    path = checkpoint_path(alone.model)
    try:
        stages = config.pipeline_parallel_size
        model = read_model_config(path, config.hf_overrides, stages=stages)
    except StartupError:
        return
    check_shape(model, config.tensor_parallel_size, config.pipeline_parallel_size)


def _check_before_download(config: ServeConfig) -> None:
    """Raises StartupError for what the processes of the service would refuse whatever the model: values of
    flags, and files that do not exist."""
    from engine_core.startup import check_config
    from frontend.answers.choice import check_format_name
    from frontend.answers.formats import REASONING_FORMATS, TOOL_FORMATS
    from worker.startup.checks import check_quantization, refuse_fast_matmul

    check_config(config)
    if config.device != "auto":
        check_quantization("" if config.quantization == "none" else config.quantization, config.device)
    if config.device in ("cpu", "simulated"):
        refuse_fast_matmul(config.fast_matmul, config.device)
    if hub_name(config.tokenizer) is None:
        tokenizer_folder(config.tokenizer)
    if config.override_generation_config:
        object_of_flag("--override-generation-config", config.override_generation_config)
    check_format_name("--tool-format", config.tool_format, TOOL_FORMATS)
    check_format_name("--reasoning-format", config.reasoning_format, REASONING_FORMATS)
    for flag in flags_of(ServeConfig).values():
        file = getattr(config, flag.name) if flag.metavar == "FILE" and flag.name not in _WRITTEN else ""
        if file and not Path(file).expanduser().exists():
            raise StartupError("cannot start the service", f"{flag.option}: there is no file {file}")


def _check_transfers(config: ServeConfig) -> None:
    """Raises StartupError for engine cores that cannot copy blocks of one another, as a flag asks for."""
    wanted = "--prefill-engines" if config.prefill_engines else "--share-prefixes"
    if not (config.prefill_engines or config.share_prefixes):
        return
    if config.prefill_engines and config.role != "both":
        why = f"{wanted} and --role {config.role}"
        raise StartupError("cannot start the engine cores", why, "leave out one of them")
    is_alone = config.frontends and config.data_parallel_size == 1
    if kept_by := config.keeps_blocks_by or ("one engine core" if is_alone else ""):
        raise StartupError(
            "engine cores cannot copy KV blocks of one another",
            f"{wanted} with {kept_by}",
            f"docs/distributed.md says what can be copied; leave out {wanted}",
        )
    if config.prefill_engines >= config.data_parallel_size:
        raise StartupError(
            "cannot start the engine cores",
            f"--prefill-engines {config.prefill_engines}: none of {config.data_parallel_size} would decode",
            "use a larger --data-parallel-size",
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
    if not config.frontends and (config.api_key or config.auth_file):
        raise StartupError(
            "cannot start a service without frontends",
            "--api-key and --auth-file are checked by frontends",
            "give --auth-file to pagewire frontend",
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
    tell(f"ready: {address} {rest}", sys.stdout)
    if not config.frontends:
        return
    log_exposure(config)
    if not process.is_child() and not logs.writes_json():
        tell(_how_to_call(config, facts), sys.stderr)


def _how_to_call(config: ServeConfig, facts: Facts) -> str:
    flags = options = variables = of_curl = ""
    if config.tls_cert:
        flags, options, variables = " --tls-ca ca.pem", ', tls="ca.pem"', "CA=ca.pem "
        of_curl = " --cacert ca.pem"
    if config.auth_file:
        of_curl += ' --oauth2-bearer "$TOKEN"'
        flags, options, variables = (
            f"{flags} --token-file token",
            f"{options}, token=token",
            f"TOKEN=pw_... {variables}",
        )
    text = _HOW_TO_CALL.format(address=facts["address"], flags=flags, options=options, variables=variables)
    if "openai" in facts:
        text += _HOW_TO_CURL.format(flags=of_curl, url=facts["openai"])
    if num_bytes := facts.get("kv_cache_bytes"):
        tokens = int(facts["num_blocks"]) * config.block_size
        text += _HOW_MUCH.format(gib=int(num_bytes) / 2**30, tokens=tokens)
    return text + _HOW_TO_STOP


COMMANDS = {"serve": (ServeConfig, run)}
