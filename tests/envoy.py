"""A real Envoy with the configuration of deploy/envoy, on other ports."""

import contextlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from tests.free_ports import free_ports
from tests.patience import PATIENCE_S

ENVOY = shutil.which(
    "envoy", path=os.pathsep.join((str(Path(sys.executable).parent), os.environ.get("PATH", "")))
)
CONFIG = Path(__file__).parents[1] / "deploy" / "envoy" / "envoy.yaml"
SOON = "0.1s"


def write_config(
    path: Path, port: int, backends: list[int], refill: str | None = None, delay: str | None = None
) -> None:
    """The published file with other ports, and weights that follow reports sooner. refill: time after which
    a client's address has more calls without an accepted token. delay: time until one beyond the limit is
    refused. Defaults: as published."""
    config: dict[str, Any] = yaml.safe_load(CONFIG.read_text())
    (listener,), (cluster,) = config["static_resources"].values()
    listener["address"]["socket_address"]["port_value"] = port
    (group,) = cluster["load_assignment"]["endpoints"]
    for entry, backend in zip(group["lb_endpoints"], backends, strict=True):
        entry["endpoint"]["address"]["socket_address"]["port_value"] = backend
    (policy,) = cluster["load_balancing_policy"]["policies"]
    policy["typed_extension_config"]["typed_config"] |= {
        "blackout_period": SOON,
        "weight_update_period": SOON,
    }
    (chain,) = listener["filter_chains"]
    filters = {
        one["name"]: one["typed_config"] for one in chain["filters"][0]["typed_config"]["http_filters"]
    }
    if refill is not None:
        limit = filters["envoy.filters.http.local_ratelimit"]
        limit["descriptors"][0]["token_bucket"]["fill_interval"] = refill
    if delay is not None:
        filters["envoy.filters.http.fault"]["delay"]["fixed_delay"] = delay
    path.write_text(yaml.safe_dump(config))


@contextlib.contextmanager
def running_envoy(
    folder: Path, backends: list[int], refill: str | None = None, delay: str | None = None
) -> Iterator[int]:
    """Yields its port. backends: of two frontends. refill, delay: of write_config()."""
    (port,) = free_ports(1)
    write_config(folder / "envoy.yaml", port, backends, refill, delay)
    command = [str(ENVOY), "-c", str(folder / "envoy.yaml"), "--concurrency", "1", "--use-dynamic-base-id"]
    envoy = subprocess.Popen([*command, "--log-level", "error"], cwd=folder)
    try:
        yield port
    finally:
        envoy.terminate()
        envoy.wait(PATIENCE_S)
