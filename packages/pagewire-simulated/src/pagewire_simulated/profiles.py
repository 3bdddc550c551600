"""The machines that can be simulated."""

import math
from dataclasses import dataclass, replace

from pagewire.errors import StartupError


@dataclass(frozen=True, kw_only=True)
class Profile:
    """The parameters of a machine in the roofline model."""

    name: str
    bandwidth: float
    """Bytes per second that kernels read from memory."""
    peak: float
    """FLOP per second of large products of 2-byte numbers."""
    memory: float
    """Bytes for weights and KV cache together, before --gpu-memory-utilization."""
    host_bandwidth: float
    """Bytes per second between the KV cache and host memory, one way at a time."""
    layer_overhead: float
    """Seconds per layer that a step takes beyond those two: launches, and gaps between them."""

    def times(self, size: int, stages: int = 1) -> "Profile":
        """Returns so many of these machines for each stage of a model, which they divide evenly. A step
        goes from stage to stage. What machines exchange takes no time."""
        return replace(
            self,
            bandwidth=size * self.bandwidth,
            peak=size * self.peak,
            memory=size * stages * self.memory,
            host_bandwidth=size * stages * self.host_bandwidth,
        )


H200 = Profile(
    name="h200",
    # 4.8 TB/s in the datasheet. Copies reach 4.3 TB/s, and the best attention kernels read at nine
    # tenths of the peak: 4.4 TB/s for reads is the expectation between the two.
    bandwidth=4.4e12,
    # Measured on random bfloat16 matrices of 8192 x 8192: 769 to 798 TFLOP/s.
    peak=790e12,
    memory=141e9,  # datasheet
    # PCIe 5.0 x16 carries 63 GB/s each way, of which large copies from pinned memory reach about 50.
    host_bandwidth=50e9,
    # About ten kernels per layer, and 1 to 1.5 us from one to the next inside a captured graph: an
    # estimate, for an engine whose host work is hidden.
    layer_overhead=10 * 1.25e-6,
)

CPU = Profile(
    name="cpu",
    # Two cores of a Zen 4 server, measured: a product of one bfloat16 row and packed weights that
    # come from memory reads 50 GB/s, about what these cores can read at all.
    bandwidth=50e9,
    # The same cores at 128 rows: 450 GFLOP/s, of 469 that the instruction could do.
    peak=450e9,
    memory=16e9,
    # Host memory is the same memory: a copy reads and writes at half of the bandwidth each.
    host_bandwidth=25e9,
    # Ten parallel regions per layer at 1.8 us each, measured for two threads.
    layer_overhead=10 * 1.8e-6,
)

INSTANT = Profile(
    name="instant",
    bandwidth=math.inf,
    peak=math.inf,
    memory=H200.memory,
    host_bandwidth=math.inf,
    layer_overhead=0.0,
)
"""Steps take no time: for tests."""

PROFILES = {profile.name: profile for profile in (H200, CPU, INSTANT)}


def find_profile(name: str) -> Profile:
    """Returns a profile by name. Raises StartupError when there is none."""
    if name not in PROFILES:
        raise StartupError(
            "cannot simulate this machine",
            f"there is no profile {name!r}",
            f"use --profile {', '.join(PROFILES)}",
        )
    return PROFILES[name]
