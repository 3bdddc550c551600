"""A Ray cluster, as far as a launcher needs it. The only module that imports Ray."""

import socket
from typing import Any

import ray
from ray.exceptions import RayActorError, RayError
from ray.util.placement_group import placement_group, placement_group_table
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from pagewire.errors import StartupError, install_hint
from pagewire.launchers import WHAT
from pagewire.launchers.ray_actor import RankHost
from pagewire.launchers.ray_launcher import End

_OLDEST = (2, 49)
"""Version that places bundles by labels of nodes."""
_NODE_LABEL = "ray.io/node-id"
_CONNECT_S, _HEAD_S = 5.0, 1.0


class RayHost:
    """An actor that runs `pagewire ranks` on another node."""

    def __init__(self, actor: Any, arguments: list[str], key: str) -> None:
        self._actor = actor
        self._host = actor.host.remote()
        self._end = actor.run.remote(arguments, key)

    def look(self) -> str | End | None:
        """Returns the name of its host, once; None where nothing is new; how it has ended. Does not wait."""
        for reference in (self._host, self._end):
            if reference is None or not ray.wait([reference], timeout=0)[0]:
                continue
            try:
                answer = ray.get(reference)
            except RayError as error:
                return _end_of(error)
            if reference is self._host:
                self._host = None
                return str(answer)
            failure = StartupError(*answer) if len(answer) > 1 else None
            return End(str(failure or answer[0]), failure)
        return None

    def close(self) -> None:
        """Kills the actor, and with it what it runs."""
        ray.kill(self._actor)


def _end_of(error: RayError) -> End:
    """Returns the end of an actor: of its process or node, or of one whose node lacks pagewire."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if isinstance(error, RayActorError) and not error.actor_init_failed:
        return End(next((line for line in lines if "cause:" in line), lines[0]))
    todo = "install the same pagewire in the Python environment of Ray on each node"
    return End(lines[-1], StartupError("cannot start ranks in an actor of Ray", lines[-1], todo))


class RayCluster:
    """A connection to a cluster of which this host is a node. All that it starts ends with this process."""

    def __init__(self, address: str) -> None:
        """Connects. Raises StartupError."""
        _check_version()
        _check_address(address)
        try:
            ray.init(address=address, log_to_driver=False, configure_logging=False)
        except (OSError, RuntimeError, ValueError, AssertionError, RayError) as error:
            why = " ".join(str(error).split()) or type(error).__name__
            todo = "ray start --head here, or ray start --address=HEAD:6379; --ray-address names another one"
            raise StartupError(WHAT, f"{address}: {why}", todo) from error
        self._node = ray.get_runtime_context().get_node_id()
        self._bundles: list[dict[str, float]] = []
        self._group: Any = None

    @property
    def this_host(self) -> str:
        """Its address, by which other nodes reach it."""
        return str(ray.util.get_node_ip_address())

    def place(self, num_hosts: int, num_cpus: int) -> None:
        """Reserves CPUs on each of so many other nodes, as soon as they have them."""
        self._bundles = [{"CPU": num_cpus}] * num_hosts
        elsewhere = [{_NODE_LABEL: f"!{self._node}"}] * num_hosts
        self._group = placement_group(
            self._bundles, strategy="STRICT_SPREAD", bundle_label_selector=elsewhere
        )

    def missing(self) -> str:
        """Returns what the cluster lacks; "": all CPUs are reserved. Also when a node has died, until there
        is another one."""
        if placement_group_table(self._group)["state"] == "CREATED":
            return ""
        needed = int(self._bundles[0]["CPU"])
        others = [node for node in ray.nodes() if node["Alive"] and node["NodeID"] != self._node]
        cpus = [(node["NodeManagerAddress"], int(node["Resources"].get("CPU", 0))) for node in others]
        return (
            f"{len(self._bundles)} other nodes with {needed} free CPUs each; the cluster has"
            f" {', '.join(f'{address} with {count} CPUs' for address, count in cpus) or 'no other node'};"
            f" {int(ray.available_resources().get('CPU', 0))} CPUs are free in all"
        )

    def start(self, bundle: int, arguments: list[str], key: str) -> RayHost:
        """Starts `pagewire ranks ARGUMENTS` on the node of a bundle, now or when that has one. key: the
        content of its --curve-key."""
        where = PlacementGroupSchedulingStrategy(self._group, placement_group_bundle_index=bundle)
        options = {"num_cpus": self._bundles[bundle]["CPU"], "max_restarts": 0, "scheduling_strategy": where}
        return RayHost(ray.remote(RankHost).options(**options).remote(), arguments, key)

    def why_headless(self) -> str:
        """Returns why the head of the cluster cannot be reached; "": it can. Waits a second at most."""
        address = ray.get_runtime_context().gcs_address
        host, _, port = address.rpartition(":")
        try:
            socket.create_connection((host.strip("[]"), int(port)), _HEAD_S).close()
        except OSError as error:
            return f"Ray's head at {address} does not answer: {error.strerror or error}"
        return ""

    def close(self) -> None:
        """Disconnects, which ends all actors, and frees what is reserved."""
        ray.shutdown()


def _check_version() -> None:
    if tuple(map(int, ray.__version__.split(".")[:2])) < _OLDEST:
        oldest = ".".join(map(str, _OLDEST))
        raise StartupError(WHAT, f"Ray is {ray.__version__}, older than {oldest}", install_hint("ray"))


def _check_address(address: str) -> None:
    """Raises StartupError where nothing listens, which Ray would try for a minute."""
    host, _, port = address.rpartition(":")
    if address == "auto":
        return
    if "://" in address or not host or not port.isdigit():
        why = f"--ray-address {address} is neither auto nor HOST:PORT"
        raise StartupError(WHAT, why, "run pagewire serve on a node of the cluster, and name its head")
    try:
        socket.create_connection((host, int(port)), _CONNECT_S).close()
    except (OSError, OverflowError) as error:
        why = f"nothing listens at --ray-address {address}: {getattr(error, 'strerror', None) or error}"
        raise StartupError(WHAT, why, "see: ray status; ray start --head starts a cluster") from error
