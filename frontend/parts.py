"""The parts of a frontend that its services share, whichever transport a call comes by."""

import time
from dataclasses import dataclass, field
from functools import partial
from hashlib import sha256

from frontend.auth.authenticator import Authenticator
from frontend.call.limits import ConcurrencyLimits
from frontend.call.messages import LargeMessages, ReceivingSlots
from frontend.call.serving_state import ServingState
from frontend.call.write_timeout import WriteTimeouts
from frontend.engine.client import EngineClient
from frontend.engine.core_list import GivenAddresses
from frontend.engine.socket import EngineSocket
from frontend.fetching.urls import media_hosts
from frontend.model.info import ModelInfo
from frontend.prompts.media_fetcher import MediaFetcher
from frontend.prompts.process_pool import PromptProcesses
from frontend.prompts.prompt_reader import PromptReader
from frontend.streams.classifier import Classifier
from frontend.streams.generator import Generator
from frontend.streams.pooling import ContinuationScorer, Embedder, PromptPooler
from frontend.streams.scorer import Scorer
from frontend.telemetry.counters import Counters
from frontend.telemetry.tracing import make_tracer
from pagewire import __version__
from pagewire.config import FrontendConfig
from pagewire.host.standby import Fork
from pagewire.ipc.curve import read_client_key
from pagewire.ipc.transport import default_folder, frontends_address
from pagewire.telemetry.tracing import Tracer


@dataclass(frozen=True, slots=True)
class FrontendParts:
    """One set of slots, quotas, timeouts and counters for all services."""

    config: FrontendConfig
    model: ModelInfo
    authenticator: Authenticator
    state: ServingState
    prompts: PromptReader
    engine: EngineClient
    limits: ConcurrencyLimits
    receiving_slots: ReceivingSlots
    large_messages: LargeMessages
    write_timeouts: WriteTimeouts
    counters: Counters
    tracer: Tracer | None
    generator: Generator
    embedder: Embedder
    classifier: Classifier
    scorer: Scorer
    continuation_scorer: ContinuationScorer
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


def make_parts(
    config: FrontendConfig, model: ModelInfo, authenticator: Authenticator, fork_reader: Fork | None = None
) -> FrontendParts:
    """Makes the parts; nothing is connected yet. fork_reader: see PromptProcesses. Raises StartupError."""
    state, counters, tracer = ServingState(), Counters(), make_tracer(config)
    limits = ConcurrencyLimits(config.max_concurrent_requests, config.max_tokenizing_bytes)
    prompts = PromptReader(
        model.tokenizer,
        model.chat_template,
        config.tokenizer_threads,
        PromptProcesses(config, fork_reader),
        answers=model.answers,
        serves_others=limits.serves_others,
        pair_template=None if model.scoring is None else model.scoring.template,
        images=model.media,
        media=MediaFetcher(config, fork_reader) if media_hosts(config.media_hosts) else None,
    )
    engine = _make_engine_client(config, state)
    generator = Generator(config, model, prompts, engine, limits, counters, tracer)
    pooler = PromptPooler(generator)
    return FrontendParts(
        config=config,
        model=model,
        authenticator=authenticator,
        state=state,
        prompts=prompts,
        engine=engine,
        limits=limits,
        receiving_slots=ReceivingSlots(config.max_request_bytes),
        large_messages=generator.large_messages,
        write_timeouts=WriteTimeouts(config.write_timeout),
        counters=counters,
        tracer=tracer,
        generator=generator,
        embedder=Embedder(generator, pooler),
        classifier=Classifier(generator, pooler),
        scorer=Scorer(generator, pooler),
        continuation_scorer=ContinuationScorer(generator),
    )


def _make_engine_client(config: FrontendConfig, state: ServingState) -> EngineClient:
    addresses = GivenAddresses(config.engine or [frontends_address(default_folder())])
    key = read_client_key(config.curve_key) if config.curve_key else None
    return EngineClient(
        addresses,
        state,
        config.resume_timeout,
        partial(EngineSocket, key=key),
        ready_timeout=config.ready_timeout,
        share_prefixes=config.share_prefixes,
    )
