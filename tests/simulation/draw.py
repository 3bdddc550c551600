"""Draws what a seed means. One stream of random numbers: a new draw changes all seeds."""

from dataclasses import replace
from random import Random

from pagewire.config import EngineConfig
from tests.simulation.adapters import draw_adapters
from tests.simulation.images import draw_images
from tests.simulation.requests import RequestWriter, log_uniform
from tests.simulation.workload import KV_BYTES, STEP_S, Fault, Settings, Workload, checkpoint


def draw(
    seed: int, *, breaks: bool = True, has_adapters: bool | None = None, has_images: bool = False
) -> Workload:
    """The same for the same seed, in every process. breaks: see RequestWriter. has_adapters: None: as
    drawn."""
    random = Random(f"workload {seed}")
    step = log_uniform(random, 5e-5, 2e-2)
    settings = Settings(
        slow_factor=step / STEP_S,
        latency=step * log_uniform(random, 0.003, 5.0),
        worker_hop=step * random.choice([0.0, 0.01, 0.3]),
        core_overhead=step * random.choice([0.0, 0.1, 1.0]),
        restart=random.choice([30 * step, 1.5]),
        num_frontends=random.choice([1, 2, 2, 3]),
        num_engines=random.choice([1, 1, 1, 2, 2, 3]),
        swap_costs=random.choice([None, (0.0, 0.0), (1.0, 0.5), (1.0, 4.0)]),
        nan_rate=random.choice([0.0] * 9 + [0.01]),
        adopts=Random(f"adoption {seed}").random() < 0.8,
        has_states=Random(f"states {seed}").random() < 0.15,
        disconnect_grace=Random(f"grace {seed}").choice([0.0, 30 * step, 2.0, 2.0]),
    )
    tight = random.random() < 0.5
    config = _draw_config(seed, random, tight)
    if settings.has_states:
        slots = Random(f"checkpoints {seed}").choice([0, 1, 3, 8, 8])
        config = replace(config, swap_space=0.0, speculate="", state_checkpoints=slots)
    workload = Workload(seed, settings, config)
    if Random(f"has adapters {seed}").random() < 0.2 if has_adapters is None else has_adapters:
        workload.adapters = draw_adapters(seed, step, settings.num_frontends)
        workload.config = replace(config, max_loras=Random(f"slots {seed}").choice([1, 1, 2, 0]))
    if has_images:
        workload.images = draw_images(seed)
        workload.config = replace(
            workload.config, model=str(checkpoint(seeing=True)), **workload.images.settings
        )
        if workload.images.whole:  # a step has room for the largest beside all other rows, and for no more
            least = max(workload.images.sizes) + workload.config.max_num_seqs - 1
            budget = max(least, workload.config.max_num_batched_tokens)
            workload.config = replace(workload.config, max_num_batched_tokens=budget)
    writer = RequestWriter(random, workload, step, tight, breaks=breaks)
    for number in range(random.choice([4, 8, 12, 16, 24])):
        workload.add(writer.job(number))
    workload.faults = _draw_faults(random, settings, writer.start, writer.now + 50 * step)
    if workload.adapters is not None:
        workload.adapters.schedule(writer.start, writer.now + 50 * step)
        workload.embeds = [writer.embed_job(number) for number in range(random.choice([0, 2, 5]))]
    return workload


def _draw_config(seed: int, random: Random, tight: bool) -> EngineConfig:
    """tight: many sequences at once, and room for few."""
    block_size = random.choice([1, 2, 2, 4] if tight else [1, 2, 4, 8, 16])
    num_blocks = random.choice([8, 9, 12, 16, 24] if tight else [8, 14, 24, 40, 64])
    return EngineConfig(
        model=str(checkpoint()),
        device="simulated",
        profile="cpu",
        dtype="bfloat16",
        max_model_len=random.choice([24, 80, 80]),
        max_num_seqs=random.choice([4, 6, 8, 12] if tight else [1, 2, 4, 8]),
        max_num_batched_tokens=random.choice([8, 16, 32] if tight else [1, 3, 5, 8, 16, 32, 64]),
        block_size=block_size,
        num_blocks=num_blocks,
        no_prefix_cache=random.random() < 0.15,
        scheduling=random.choice(["sync", "ahead"]),
        swap_space=random.choice([0, 0, 4, 16, 64]) * block_size * KV_BYTES / (1 << 30),
        record="recording" if (recorded := random.random() < 0.1) else "",
        record_tokens=recorded and random.random() < 0.5,
        policy=random.choice(["fair", "fair", "fcfs"]),
        tenant_weight=random.choice([(), ("b=3",), ("a=0.1", "b=10")]),
        output_token_weight=random.choice([2.0, 0.5]),
        speculate=_draw_speculation(seed),
        parent_starts_worker=True,
        listen_workers="ipc:///simulated/workers",
        no_row_sharing=Random(f"rows {seed}").random() < 0.2,
        preempt_rows=Random(f"better classes {seed}").random() < 0.3,
    )


def _draw_speculation(seed: int) -> str:
    """Half of the simulations draft; those that do not are what they were before there were drafts."""
    methods = [
        "lookup:tokens=4",
        "simulated:acceptance=70,tokens=4,batch=12",
        "simulated:acceptance=90,tokens=9,batch=64",
    ]
    return Random(f"speculation {seed}").choice(["", "", "", *methods])


def _draw_faults(random: Random, settings: Settings, start: float, end: float) -> list[Fault]:
    """A third of the simulations are undisturbed."""
    kinds = ["core", "worker", "cores", "frontend", "frontend", "link", "backlog", "reset"]
    count = random.choice([0, 0, 0, 1, 1, 2, 3, 4])
    faults = []
    for _ in range(count):
        kind = random.choice(kinds)
        places = settings.num_engines if kind in ("core", "worker") else settings.num_frontends
        faults.append(Fault(random.uniform(start, end), kind, random.randrange(places)))
    return sorted(faults, key=lambda fault: fault.at)
