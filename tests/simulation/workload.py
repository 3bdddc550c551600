"""What a seed means: the engine's configuration, the requests, and what goes wrong when."""

import json
import math
import tempfile
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from random import Random

from pagewire.config import EngineConfig
from pagewire.v1 import generation_pb2
from tests.frontend.fakes import SPECIAL, encode
from tests.simulation.expected import EOS, VOCAB_SIZE, Expected, expect

MODEL = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "max_position_embeddings": 256,
    "eos_token_id": EOS,
}
KV_BYTES = 2 * 2 * 2 * 16
"""Of one token: keys and values, two bytes, two layers."""
STEP_S = 36e-6
"""What a step of this model takes on the profile "cpu": nearly all of it is overhead of two layers."""
LETTERS = encode("abcdefgh")


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What surrounds the processes. Times in seconds."""

    slow_factor: float  # of the device
    latency: float  # of a frame between frontend and core
    worker_hop: float
    core_overhead: float  # of the core's own work in a step
    restart: float  # of the core, at most
    num_frontends: int
    swap_costs: tuple[float, float] | None  # microseconds per token and block; None: as measured
    nan_rate: float  # steps in which a row has no logits


@dataclass(frozen=True, kw_only=True)
class Job:
    """A request, and how its client behaves."""

    number: int
    at: float
    request: generation_pb2.GenerateRequest
    prompt: list[int]
    expected: list[Expected]  # by index
    whole: bool = False  # GenerateUnary
    place: int = 0  # of the frontend that it asks first
    timeout: float | None = None
    cancel_after: float | None = None
    reading: float = 0.0  # seconds between two messages: a slow client
    aborted_after: float | None = None  # an operator ends it by its id


@dataclass(frozen=True)
class Fault:
    """Something goes wrong."""

    at: float
    kind: str  # see world.py
    place: int = 0  # a frontend's


@dataclass
class Workload:
    """Everything that is drawn before a simulation begins."""

    seed: int
    settings: Settings
    config: EngineConfig
    jobs: list[Job] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)
    _namespaces: dict[int, int] = field(default_factory=dict)

    def namespace(self, seed: int) -> int:
        """Of the request with this seed: equal where blocks may be shared."""
        return self._namespaces[seed]

    def add(self, job: Job) -> None:
        """One request more."""
        self.jobs.append(job)
        request = job.request
        own = job.number if request.cache.bypass else -1
        names: dict[tuple[str, str, int], int] = self._names
        key = request.tenant, request.cache.salt, own
        self._namespaces[request.sampling.seed] = names.setdefault(key, len(names))

    _names: dict[tuple[str, str, int], int] = field(default_factory=dict)


@cache
def checkpoint() -> Path:
    """A folder with the model's configuration; it lives as long as this process."""
    _folders.append(tempfile.TemporaryDirectory(prefix="pagewire-simulation-"))
    folder = Path(_folders[-1].name)
    (folder / "config.json").write_text(json.dumps(MODEL))
    return folder


_folders: list["tempfile.TemporaryDirectory[str]"] = []


def draw(seed: int) -> Workload:
    """The same for the same seed, in every process."""
    random = Random(f"workload {seed}")
    step = _log_uniform(random, 5e-5, 2e-2)
    settings = Settings(
        slow_factor=step / STEP_S,
        latency=step * _log_uniform(random, 0.003, 5.0),
        worker_hop=step * random.choice([0.0, 0.01, 0.3]),
        core_overhead=step * random.choice([0.0, 0.1, 1.0]),
        restart=random.choice([30 * step, 1.5]),
        num_frontends=random.choice([1, 2, 2, 3]),
        swap_costs=random.choice([None, (0.0, 0.0), (1.0, 0.5), (1.0, 4.0)]),
        nan_rate=random.choice([0.0] * 9 + [0.01]),
    )
    tight = random.random() < 0.5
    workload = Workload(seed, settings, _draw_config(random, tight))
    writer = _Writer(random, workload, step, tight)
    for number in range(random.choice([4, 8, 12, 16, 24])):
        workload.add(writer.job(number))
    workload.faults = _draw_faults(random, settings, writer.start, writer.now + 50 * step)
    return workload


def _draw_config(random: Random, tight: bool) -> EngineConfig:
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
    )


class _Writer:
    """Writes requests, one after another, each a little later than the one before."""

    def __init__(self, random: Random, workload: Workload, step: float, tight: bool) -> None:
        # Usually after the start of all processes.
        self.start = self.now = 0.0 if random.random() < 0.2 else 2 * workload.settings.restart
        self._random, self._workload, self._step = random, workload, step
        self._tight = tight
        self._gap = 0.0 if random.random() < 0.3 else step * _log_uniform(random, 0.3, 20.0)
        config = workload.config
        self._max_model_len = min(config.max_model_len, config.num_blocks * config.block_size)
        self._max_n = min(4, config.max_num_seqs, config.max_num_batched_tokens)
        self._documents = [self._tokens(60) for _ in range(2)]

    def job(self, number: int) -> Job:
        random = self._random
        self.now += self._gap * random.expovariate(1.0)
        prompt = self._prompt()
        request = self._request(number, prompt)
        expected = [
            expect(request, prompt, index, self._max_model_len) for index in range(request.sampling.n)
        ]
        if expected[0].reason.value in ("max_tokens", "context_length") and random.random() < 0.3:
            self._documents.append(prompt + expected[0].token_ids)  # the next turn of a chat
        patience = self._step * _log_uniform(random, 1.0, 300.0)
        whims = random.choice([[], [], [], ["timeout"], ["cancel"], ["limit"], ["abort"], ["reading"]])
        if "limit" in whims:
            request.stopping.time_limit.FromNanoseconds(max(1, round(1e9 * patience)))
        return Job(
            number=number,
            at=self.now,
            request=request,
            prompt=prompt,
            expected=expected,
            whole=random.random() < 0.1,
            place=random.randrange(self._workload.settings.num_frontends),
            timeout=patience if "timeout" in whims else None,
            cancel_after=patience if "cancel" in whims else None,
            reading=self._step * random.uniform(0, 30) if "reading" in whims else 0.0,
            aborted_after=patience if "abort" in whims else None,
        )

    def _prompt(self) -> list[int]:
        """A part of a document that others begin with, and something of its own."""
        random = self._random
        longest = random.choice([4, 8, 80] if self._tight else [12, 80])
        length = random.randint(1, min(longest, self._max_model_len - 1))
        document = random.choice(self._documents)
        common = document[: random.choice([length, random.randint(0, length), 0])]
        return common + self._tokens(length - len(common))

    def _tokens(self, count: int) -> list[int]:
        return [self._random.randrange(len(SPECIAL), VOCAB_SIZE) for _ in range(count)]

    def _request(self, number: int, prompt: list[int]) -> generation_pb2.GenerateRequest:
        random = self._random
        seed = 1 + number + 1000 * random.randrange(1 << 40)
        request = generation_pb2.GenerateRequest(
            request_id=f"job-{number}",
            prompt={"token_ids": {"ids": prompt}},
            sampling={
                "temperature": random.choice([1.0, 1.0, 0.0]),
                "seed": seed,
                "n": random.choice([1, 1, 1, random.randint(1, self._max_n)]),
            },
            output={
                "token_ids": True,
                "text": random.random() < 0.5,
                "stream_interval": random.choice([1, 1, 2, 5]),
                "timings": True,
            },
            tenant=random.choice(["", "a", "b"]),
            priority=random.choice([0, 0, 0, -2, 5]) if self._workload.config.policy == "fair" else 0,
            cache={"salt": random.choice(["", "", "salt"]), "bypass": random.random() < 0.1},
        )
        if random.random() < 0.9:
            request.stopping.max_tokens = random.choice([12, 30, 60] if self._tight else [1, 3, 12, 30])
        if random.random() < 0.1:
            request.output.mode = generation_pb2.OutputOptions.MODE_FINAL
        self._score(request, len(prompt))
        self._end_early(request)
        return request

    def _score(self, request: generation_pb2.GenerateRequest, prompt_len: int) -> None:
        """Some want log-probabilities, of the output, of the prompt or of both."""
        random, output = self._random, request.output
        if random.random() < 0.15:
            output.logprobs.top_n = random.choice([0, 0, 3])
        if random.random() < 0.15:
            output.prompt_logprobs.top_n = random.choice([0, 2])
            output.prompt_logprobs_start = random.randrange(prompt_len)

    def _end_early(self, request: generation_pb2.GenerateRequest) -> None:
        """EOS and stop tokens come only where they are allowed by name."""
        random, stopping = self._random, request.stopping
        way = random.choice(["", "", "tokens", "string"])
        if way == "tokens":
            request.sampling.allowed_token_ids.extend([EOS, *random.sample(range(VOCAB_SIZE), 12)])
            stopping.stop_token_ids.extend(random.sample(list(request.sampling.allowed_token_ids[1:]), 2))
            stopping.ignore_eos = random.random() < 0.2
            stopping.include_stop = random.random() < 0.3
            stopping.min_tokens = random.choice([0, 0, 1, 3])
            if stopping.HasField("max_tokens"):
                stopping.min_tokens = min(stopping.min_tokens, stopping.max_tokens)
        elif way == "string":
            request.sampling.allowed_token_ids.extend(LETTERS)
            stopping.stop.append(random.choice(["a", "bc", "ef", "gg"]))


def _draw_faults(random: Random, settings: Settings, start: float, end: float) -> list[Fault]:
    """A third of the simulations are undisturbed."""
    kinds = ["core", "worker", "frontend", "frontend", "link", "backlog", "reset"]
    count = random.choice([0, 0, 0, 1, 1, 2, 3, 4])
    faults = [
        Fault(random.uniform(start, end), random.choice(kinds), random.randrange(settings.num_frontends))
        for _ in range(count)
    ]
    return sorted(faults, key=lambda fault: fault.at)


def _log_uniform(random: Random, low: float, high: float) -> float:
    return math.exp(random.uniform(math.log(low), math.log(high)))
