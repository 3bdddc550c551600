"""Flags of workers, and of faults in tests."""

from dataclasses import dataclass, fields

from pagewire.config.base import CommonConfig, flag


@dataclass(frozen=True, kw_only=True)
class WorkerConfig(CommonConfig):
    """`pagewire worker`: executes the steps of an engine core, which sends all other settings."""

    engine: str = flag("", "address of the engine core (ipc:///folder/workers.ipc)", metavar="ADDRESS")
    rank: int = flag(0, "rank in the parallel group", at_least=0)
    group_size: int = flag(0, "ranks of the parallel group, if it is over several hosts", at_least=0)
    master_addr: str = flag(
        "",
        "address of the host of rank 0, if the parallel group is over several hosts",
        metavar="ADDRESS",
    )
    threads: int = flag(0, "CPU threads; 0: one per core that this process may use", at_least=0)
    cores: str = flag("", "CPU cores reserved for this process, such as 1-3,6; default: all", metavar="LIST")
    standby: str = flag(
        "",
        "import what computes, with kernels of this instruction set or auto, and fork workers",
        metavar="SET",
    )
    outlives_core: bool = flag(
        False,
        "serve the next engine core at the same address when this one is gone: see pagewire serve",
    )
    # For tests of processes that depend on a worker; simulated devices and CPUs only.
    fault_die_at_step: int = flag(0, "test: kill itself at this step; 0: never", at_least=0)
    fault_hang_at_step: int = flag(0, "test: stop answering at this step; 0: never", at_least=0)
    fault_hold_gil_at_step: int = flag(
        0, "test: stop answering at this step, with all threads stopped; 0: never", at_least=0
    )
    fault_slow_factor: float = flag(1.0, "test: multiply the duration of steps", at_least=0)
    fault_die_on_token: int | None = flag(
        None, "test: kill itself when a prompt contains this token", at_least=0, metavar="ID"
    )
    fault_die_at_output: int = flag(
        0, "test: with --fault-die-on-token: after this many output tokens", at_least=0
    )
    fault_die_probability: float = flag(
        1.0, "test: probability of the two faults above", at_least=0, at_most=1
    )

    @property
    def fails_on_purpose(self) -> bool:
        """True if any --fault flag is set."""
        faults = [field for field in fields(self) if field.name.startswith("fault_")]
        return any(getattr(self, field.name) != field.default for field in faults)
