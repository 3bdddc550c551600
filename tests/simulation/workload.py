"""What a seed means, as data: the engine's configuration, the requests, and what goes wrong when."""

import json
import tempfile
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from pagewire.config import EngineConfig
from pagewire.v1 import generation_pb2
from tests.simulation.adapters import Adapters
from tests.simulation.expected import Expected
from tests.simulation.images import Images
from tests.simulation.moves import Moving
from tests.simulation.poison import Poison
from tests.simulation.vocabulary import EOS, VOCAB_SIZE, tokenizer_json

MODEL = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 256,
    "eos_token_id": EOS,
}
SEEING = {
    "architectures": ["LlavaForConditionalGeneration"],
    "text_config": {"model_type": "llama", **MODEL},
    "vision_config": {
        "model_type": "pixtral",
        "hidden_size": 16,
        "intermediate_size": 32,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "image_size": 64,
        "patch_size": 2,
    },
    "vision_feature_layer": -1,
    "vision_feature_select_strategy": "full",
    "image_token_index": 9,
}
"""The same with an encoder of images of any size: a square of two pixels is a vector."""
CACHE_KEY = "cache.key"
"""Beside the model: the key of cores whose blocks move."""
KV_BYTES = 2 * 2 * 2 * 16
"""Of one token: keys and values, two bytes, two layers."""
EMBED_SEED = 0
"""Of requests that have none: prompts that are embedded."""
STEP_S = 36e-6
"""What a step of this model takes on the profile "cpu": nearly all of it is overhead of two layers."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What surrounds the processes. Times in seconds."""

    slow_factor: float  # of the device
    latency: float  # of a frame between frontend and core
    worker_hop: float
    core_overhead: float  # of the core's own work in a step
    restart: float  # of the core, at most
    num_frontends: int
    num_engines: int
    swap_costs: tuple[float, float] | None  # microseconds per token and block; None: as measured
    nan_rate: float  # steps in which a row has no logits
    adopts: bool  # a worker outlives its core
    has_states: bool  # layers keep a state per row
    disconnect_grace: float  # for which requests go on when their calls have broken


@dataclass(frozen=True, kw_only=True)
class Job:
    """A request, and how its client behaves."""

    number: int
    at: float
    request: generation_pb2.GenerateRequest
    prompt: list[int]
    expected: list[Expected]  # by index
    sampled: list[Expected]  # of which those are the most probable; the same without best_of
    is_refused: bool  # as it cannot fit
    max_model_len: int
    adapters: dict[bytes, tuple[int, ...]] = field(default_factory=dict)
    """What its adapter's name may stand for, invocations by digest; `expected` is with the first of them."""
    seen: bytes = b""  # what images add to its prompt: see pagewire_simulated.media
    whole: bool = False  # GenerateUnary
    place: int = 0  # of the frontend that it asks first
    timeout: float | None = None
    cancel_after: float | None = None
    reading: float = 0.0  # seconds between two messages: a slow client
    aborted_after: float | None = None  # an operator ends it by its id
    half_open_after: float | None = None  # its first call breaks, and the frontend does not notice
    breaks_after: float | None = None  # a call breaks, and the frontend notices
    poison: Poison | None = None

    @property
    def adapter(self) -> str:
        """The name of its adapter."""
        return self.request.adapter or self.request.model


@dataclass(frozen=True)
class EmbedJob:
    """A call that embeds prompts."""

    number: int
    at: float
    adapter: str
    prompts: list[list[int]]
    adapters: dict[bytes, tuple[int, ...]]  # as in Job
    place: int
    cancel_after: float | None


@dataclass(frozen=True)
class Fault:
    """Something goes wrong."""

    at: float
    kind: str  # see world.py
    place: int = 0  # a frontend's, or a core's


@dataclass(frozen=True)
class Storm:
    """Kill after kill, at random moments."""

    kills: int
    life: float = 0.0  # seconds from the readiness of a core to its death, on average
    life_steps: float = 0.0  # or steps; then no request is suspected, as chance would blame one


@dataclass
class Workload:
    """Everything that is drawn before a simulation begins."""

    seed: int
    settings: Settings
    config: EngineConfig
    jobs: list[Job] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)
    storm: Storm | None = None
    adapters: Adapters | None = None
    embeds: list[EmbedJob] = field(default_factory=list)
    moving: Moving | None = None  # None: blocks stay where they are
    images: Images | None = None  # None: the model has no encoder
    _namespaces: dict[int, int] = field(default_factory=dict)

    def namespace(self, seed: int) -> int:
        """Of the request with this seed: equal where blocks may be shared."""
        return (
            self._namespaces[seed]
            if seed != EMBED_SEED
            else self._names.setdefault(("", "", -1), len(self._names))
        )

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
def checkpoint(*, seeing: bool = False) -> Path:
    """A folder with the model's configuration; it lives as long as this process. seeing: with an encoder."""
    _folders.append(tempfile.TemporaryDirectory(prefix="pagewire-simulation-"))
    folder = Path(_folders[-1].name)
    (folder / "config.json").write_text(json.dumps(SEEING if seeing else MODEL))
    (folder / "preprocessor_config.json").write_text(
        json.dumps({"image_mean": [0.5] * 3, "image_std": [0.5] * 3})
    )
    (folder / "tokenizer.json").write_text(tokenizer_json())
    (folder / CACHE_KEY).write_text("0" * 64)
    (folder / CACHE_KEY).chmod(0o600)
    return folder


_folders: list["tempfile.TemporaryDirectory[str]"] = []
