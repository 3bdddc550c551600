"""Seeds of other kinds: requests that kill the engine, and kills from outside, one after another."""

from collections.abc import Callable
from dataclasses import replace
from itertools import count
from random import Random
from typing import Any

from pagewire.ipc.columns import unpack_u32
from tests.simulation.adapters import FATAL, FIXED, AdapterChange
from tests.simulation.draw import draw
from tests.simulation.moves import Moving, Strike
from tests.simulation.poison import Poison
from tests.simulation.requests import RequestWriter, log_uniform
from tests.simulation.workload import CACHE_KEY, STEP_S, Fault, Storm, Workload, checkpoint


def draw_poison(seed: int) -> Workload:
    """Some of the requests kill the engine. Half of the seeds are disturbed by nothing else."""
    workload = draw(seed)
    random = Random(f"poison {seed}")
    if random.random() < 0.5:
        workload.faults.clear()
    _poison(workload, random, random.choice([1, 1, 1, 2, 3]), random.choice([1.0, 1.0, 0.5]))
    return workload


def draw_crowd(seed: int) -> Workload:
    """64 requests that could all run together, one of which kills the engine whenever it runs."""
    return _draw_crowd(seed, 1, 1.0)


def draw_two(seed: int) -> Workload:
    """The same with two of them."""
    return _draw_crowd(seed, 2, 1.0)


def draw_moody(seed: int) -> Workload:
    """The same with one that kills it every other time."""
    return _draw_crowd(seed, 1, 0.5)


def draw_storm(seed: int) -> Workload:
    """Fifty kills of each core from outside, one in each life: no request is to blame for those. In a third
    of the storms there is a single request, which is there at each of its deaths."""
    workload = draw(seed, breaks=False)
    random = Random(f"storm {seed}")
    workload.faults.clear()
    if random.random() < 0.33:
        del workload.jobs[1:]
    step = workload.settings.slow_factor * STEP_S
    workload.storm = Storm(50, step * log_uniform(random, 30.0, 300.0))
    return workload


def draw_succession(seed: int) -> Workload:
    """One core after another is killed, or told to end, while it computes; the next one adopts its worker."""
    return _succeed(draw(seed, breaks=False))


def _succeed(workload: Workload) -> Workload:
    random = Random(f"succession {workload.seed}")
    workload.faults.clear()
    step = workload.settings.slow_factor * STEP_S
    workload.settings = replace(workload.settings, adopts=True, restart=30 * step)
    workload.storm = Storm(25, life_steps=log_uniform(random, 3.0, 40.0))
    return workload


def draw_states(seed: int) -> Workload:
    """The same of a model whose layers keep states, with room for checkpoints of them."""
    workload = draw_succession(seed)
    workload.settings = replace(workload.settings, has_states=True)
    slots = Random(f"states of a succession {seed}").choice([1, 1, 2, 3, 8])
    workload.config = replace(
        workload.config, swap_space=0.0, speculate="", no_prefix_cache=False, state_checkpoints=slots
    )
    return workload


def draw_groups(seed: int) -> Workload:
    """Workers are groups of two or four ranks, which get each plan at moments of their own, so that a core
    that is killed leaves plans that some of them have. Half of the groups have two stages. In half of the
    seeds one core after another ends."""
    workload = draw(seed, breaks=seed % 2 == 0, has_adapters=False)
    if seed % 2:
        _succeed(workload)
    random, step = Random(f"groups {seed}"), workload.settings.slow_factor * STEP_S
    hop = step * random.choice([0.01, 0.3, 2.0])
    workload.settings = replace(workload.settings, worker_hop=hop)
    size = random.choice([2, 2, 4])
    shape: dict[str, int] = {"tensor_parallel_size": size}
    if random.random() < 0.5:  # stages, without bursts, which they would do instead
        shape = {"tensor_parallel_size": size // 2, "pipeline_parallel_size": 2}
        workload.config = replace(workload.config, burst_ms=0.0)
    workload.config = replace(workload.config, speculate="", **shape)
    return workload


def draw_with_adapters(seed: int) -> Workload:
    """Requests with adapters in every seed; in a third of them one core after another ends, in another third
    streams break just when their adapter's name gets another one."""
    if seed % 3 == 0:
        return _succeed(draw(seed, breaks=False, has_adapters=True))
    workload = draw(seed, has_adapters=True)
    if seed % 3 == 1:
        _swap_under_streams(workload, Random(f"swaps {seed}"))
    return workload


def draw_with_images(seed: int) -> Workload:
    """Requests with images, many of them with the same ones, beside an encoder's cache and budget that have
    room for few. In a third of the seeds one core after another ends, in another third an image kills the
    worker; in some workers are groups of two ranks."""
    is_group = seed % 5 == 4 and seed % 3 != 1  # deaths are counted by worker
    has_adapters = seed % 4 == 0 and not is_group
    workload = draw(seed, breaks=seed % 3 > 0, has_adapters=has_adapters, has_images=True)
    if is_group:
        workload.config = replace(workload.config, tensor_parallel_size=2, speculate="")
    if seed % 3 == 0:
        return _succeed(workload)
    if seed % 3 == 1:
        _poison_an_image(workload, Random(f"images that kill {seed}"))
    return workload


def _poison_an_image(workload: Workload, random: Random) -> None:
    """Has the worker die in the step that encodes an image of some request."""
    assert workload.images is not None
    found = {job.number: workload.images.of_request(job.request.sampling.seed) for job in workload.jobs}
    if seeing := [number for number, items in found.items() if items]:
        number = random.choice(seeing)
        position = unpack_u32(random.choice(found[number]).positions)[0]
        poison = Poison(position=position, probability=random.choice([1.0, 0.5]), victim="worker")
        workload.jobs[number] = replace(workload.jobs[number], poison=poison)


def _swap_under_streams(workload: Workload, random: Random) -> None:
    adapters, step = workload.adapters, workload.settings.slow_factor * STEP_S
    assert adapters is not None
    names = [name for name in adapters.folders if name not in (FIXED, FATAL)]
    for version, job in enumerate(each for each in workload.jobs if each.adapters):
        name, after = job.adapter, step * random.uniform(5.0, 60.0)
        if name in names:
            workload.jobs[job.number] = replace(job, breaks_after=after)
            files = replace(adapters.folders[name], weights=b"swapped %d" % version)
            at, place = job.at + after * random.random(), random.randrange(workload.settings.num_frontends)
            adapters.changes.append(AdapterChange(at, place, folder=name, files=files))
            adapters.changes.append(AdapterChange(at, place, name, random.choice([name, *names])))
    for jobs in (workload.jobs, workload.embeds):
        jobs[:] = [replace(job, adapters=adapters.of_name(job.adapter)) for job in jobs]


def _draw_crowd(seed: int, num_poisoned: int, probability: float) -> Workload:
    random, plain = Random(f"crowd {seed}"), draw(seed)
    sizes = {"max_num_seqs": 256, "max_num_batched_tokens": 512, "block_size": 4, "num_blocks": 2048}
    config = replace(plain.config, max_model_len=80, record="", record_tokens=False, **sizes)
    workload = Workload(seed, replace(plain.settings, nan_rate=0.0, num_engines=1), config)
    writer = RequestWriter(random, workload, plain.settings.slow_factor * STEP_S, tight=False, breaks=False)
    for number in range(64):
        workload.add(writer.job(number))
    _poison(workload, random, num_poisoned, probability)
    return workload


def _poison(workload: Workload, random: Random, count: int, probability: float) -> None:
    for job in random.sample(workload.jobs, count):
        longest = len(job.prompt) + max(len(one.token_ids) for one in job.expected)
        poison = Poison(
            position=random.choice([0, len(job.prompt) - 1, random.randrange(longest), longest - 2]),
            probability=probability,
            victim=random.choice(["worker", "worker", "core"]),
        )
        workload.jobs[job.number] = replace(job, poison=poison)


def draw_moves(seed: int) -> Workload:
    """Cores are told to end, so that their requests go on at others, which copy their blocks. In the midst of
    copies reader, holder, their workers or all are killed or told to end, the link falls silent, and
    the cache is emptied. In half of the seeds blocks are short."""
    draws = (draw(seed + 1_000_003 * attempt, breaks=seed % 4 == 0) for attempt in count())
    workload = next(one for one in draws if one.settings.slow_factor * STEP_S > 2e-3)  # cores sleep for 5 ms
    random, step = Random(f"moves {seed}"), workload.settings.slow_factor * STEP_S
    costs = random.choice([(0.0, 0.0), (0.0, 0.0), (0.0, 0.0), (1.0, 0.5), None])
    num_engines = max(workload.settings.num_engines, 2)
    changes: dict[str, Any] = {"num_engines": num_engines, "has_states": False, "swap_costs": costs}
    workload.settings = replace(workload.settings, **changes)
    size = min(workload.config.block_size, random.choice([1, 2]))  # prompts are short
    workload.config = replace(
        workload.config,
        block_size=size,
        num_blocks=workload.config.num_blocks * workload.config.block_size // size,
        drain_timeout=random.choice([30 * step, 1.0, 10.0]),
        prefix_cache_key=str(checkpoint() / CACHE_KEY),
        no_prefix_cache=False,
        state_checkpoints=0,
        record="",
        record_tokens=False,
    )
    if random.random() < 0.6:
        workload.faults.clear()
    for job in random.sample(workload.jobs, min(len(workload.jobs), random.choice([2, 4, 6]))):
        at = job.at + step * random.choice([1.0, 10.0, 30.0]) * random.random()
        workload.faults.append(Fault(at, "drain", random.randrange(num_engines)))
    victims = ["reader", "holder", "both", "reader's worker", "holder's worker", "workers", "link", "link"]
    strikes = [
        Strike(
            random.randrange(1, 40),
            random.choice([*victims, "reset", "drain", "reader drains"]),
            step * random.choice([0.0, 0.0, 0.1, 1.0, 10.0]) * random.random(),
        )
        for _ in range(random.choice([0, 0, 1, 2, 3]))
    ]
    block_s = random.choice([0.01 * step, step, step, 0.3])
    moving = Moving(block_s, tuple(strikes), share_prefixes=random.random() < 0.7)
    if random.random() < 0.4:
        others = random.choices(["decode", "both", "prefill"], weights=[4, 1, 1], k=num_engines - 1)
        moving = replace(moving, roles=("prefill", *others))
    workload.moving = moving
    return workload


KINDS: dict[str, Callable[[int], Workload]] = {
    "plain": draw,
    "poison": draw_poison,
    "crowd": draw_crowd,
    "two": draw_two,
    "moody": draw_moody,
    "storm": draw_storm,
    "succession": draw_succession,
    "states": draw_states,
    "adapters": draw_with_adapters,
    "images": draw_with_images,
    "groups": draw_groups,
    "moves": draw_moves,
}
