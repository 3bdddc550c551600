"""The parts of a frontend that the OpenAI endpoints use, and facts that all of them need."""

import time
from dataclasses import dataclass, field
from hashlib import sha256

from frontend.auth.authenticator import Authenticator
from frontend.concurrency_limits import ConcurrencyLimits
from frontend.engine.client import EngineClient
from frontend.large_messages import LargeMessages
from frontend.model_info import ModelInfo
from frontend.pooling.embedder import Embedder
from frontend.prompts.prompt_reader import PromptReader
from frontend.receiving_slots import ReceivingSlots
from frontend.state import ServingState
from frontend.streams.generator import Generator
from frontend.telemetry.counters import Counters
from frontend.write_timeout import WriteTimeouts
from pagewire import __version__
from pagewire.config import FrontendConfig


@dataclass(frozen=True, slots=True)
class ApiParts:
    """The same objects as those of the gRPC servicers: one set of slots, quotas, timeouts and counters."""

    config: FrontendConfig
    model: ModelInfo
    generator: Generator
    prompts: PromptReader
    engine: EngineClient
    state: ServingState
    limits: ConcurrencyLimits
    write_timeouts: WriteTimeouts
    authenticator: Authenticator
    counters: Counters
    embedder: Embedder
    receiving_slots: ReceivingSlots
    large_messages: LargeMessages
    start_time: int = field(default_factory=lambda: int(time.time()))

    @property
    def vocab_size(self) -> int:
        """All ids below this are valid, though the last ones may have no token."""
        facts = self.engine.facts
        return max(self.model.tokenizer.vocab_size, facts.model.vocab_size if facts else 0)

    @property
    def max_model_len(self) -> int | None:
        """The context's length; None: not known before an engine has been seen."""
        facts = self.engine.facts
        return facts.model.max_model_len if facts is not None else None

    @property
    def fingerprint(self) -> str:
        """`system_fingerprint`: changes with everything besides the request that decides an answer."""
        facts = self.engine.facts
        if facts is None:
            return ""
        model = facts.model
        decides = (__version__, self.model.name, model.dtype, model.quantization, model.arithmetic)
        return f"pw_{sha256(repr(decides).encode()).hexdigest()[:12]}"
