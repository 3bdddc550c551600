"""A frontend's process: the real generator, engine client, journal and streams, without gRPC and threads."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from random import Random
from types import SimpleNamespace
from typing import Any, TypeVar

from frontend.answers.choice import AnswerFormats
from frontend.auth.caller import ANONYMOUS
from frontend.call.call import Call
from frontend.call.limits import ConcurrencyLimits
from frontend.call.serving_state import ServingState
from frontend.engine.client import EngineClient
from frontend.engine.core import ANYWHERE, Core, Routing, Sink
from frontend.engine.core_list import GivenAddresses
from frontend.engine.socket import Listener
from frontend.model.info import DEFAULT_SAMPLING, ModelInfo
from frontend.model.pooling_config import PoolingDefaults
from frontend.prompts.prompt_reader import PromptReader
from frontend.streams.generator import Generator
from frontend.streams.pooling import Embedder, PromptPooler, Vectors
from frontend.streams.request_spec import CallMode
from frontend.streams.stream import Stream
from frontend.text.tokenizer import Tokenizer
from pagewire.config import FrontendConfig
from pagewire.internal.v1 import engine_pb2
from pagewire.v1 import generation_pb2, pooling_pb2
from tests.frontend.fakes import BEGIN, PAD, byte_level_tokenizer
from tests.simulation.images import Images
from tests.simulation.machine import Machine
from tests.simulation.network import Network, Socket
from tests.simulation.workload import EMBED_SEED

T = TypeVar("T")
Deliver = Callable[[generation_pb2.GenerateResponse], Awaitable[None]]

TOKENIZER = Tokenizer(byte_level_tokenizer())
MODEL = ModelInfo(
    names=("simulated",),
    source="simulated",
    tokenizer=TOKENIZER,
    chat_template=None,
    default_sampling=generation_pb2.SamplingParams(**DEFAULT_SAMPLING),
    bos_token_id=BEGIN,
    pad_token_id=PAD,
    archive=SimpleNamespace(),  # type: ignore[arg-type]  # never requested
    answers=AnswerFormats(TOKENIZER, None, None),
    pooling=PoolingDefaults(engine_pb2.POOLING_TYPE_LAST, normalize=False),
)
RESUME_TIMEOUT_S = 60.0


class Prompts(PromptReader):
    """Reads prompts on the loop; what a thread would take, it waits."""

    def __init__(self, random: Random, longest: float) -> None:
        """longest: seconds for one piece of work."""
        super().__init__(TOKENIZER, None, 1)  # its threads start with the first work that they get
        self._random, self._longest = random, longest

    async def run(
        self, function: Callable[[], T], tenant: str | None, weight: int, patience: float | None = None
    ) -> T:
        await asyncio.sleep(self._longest * self._random.random())
        return function()


class CheckedSink:
    """A stream, to which the core must not say anything about a sequence that it has ended itself."""

    def __init__(self, stream: Sink) -> None:
        assert isinstance(stream, Stream)
        object.__setattr__(self, "_stream", stream)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._stream, name, value)

    def push(self, index: int, *output: Any) -> bool:
        """See frontend.engine.core.Sink."""
        finish = self._stream._sequences[index].finish
        by_frontend = finish is not None and finish.WhichOneof("matched") == "stop"
        assert finish is None or by_frontend, "the core goes on with a sequence that it has ended"
        return self._stream.push(index, *output)


class CheckedClient(EngineClient):
    """An engine client whose streams are watched, and which puts images into requests: what a frontend makes
    of a client's images is no part of simulations."""

    images: Images | None = None

    def submit(
        self,
        request: engine_pb2.AddRequest,
        sink: Sink,
        routing: Routing = ANYWHERE,
        *,
        begun: bool = False,
        media: bytes | bytearray = b"",
    ) -> int:
        if self.images is not None:
            request.media.extend(self.images.of_request(request.sampling.seed))
        return super().submit(request, CheckedSink(sink), routing, begun=begun, media=media)

    def on_lost(self, core: Core) -> None:
        """See frontend.engine.client."""
        super().on_lost(core)
        assert not (self._journal.waiting() and any(other.serves for other in self.cores)), (
            "a request waits though a core serves"
        )


class FrontendProcess:
    """One life of a frontend."""

    def __init__(
        self,
        machine: Machine,
        networks: Sequence[Network],
        random: Random,
        tokenizing: float,
        grace: float,
        share_prefixes: bool,
        images: Images | None,
    ) -> None:
        """networks: one for each engine core. tokenizing: seconds that it takes, at most. grace: of
        --disconnect-grace."""
        self._machine = machine
        self._handlers: dict[asyncio.Task[Any], None] = {}  # in the order in which they began
        config = FrontendConfig(resume_timeout=RESUME_TIMEOUT_S, disconnect_grace=grace, seed=EMBED_SEED)
        self.sockets: list[Socket] = []

        def make_socket(address: str, identity: bytes, listener: Listener) -> Socket:
            self.sockets.append(networks[int(address)].socket(address, identity, listener))
            return self.sockets[-1]

        addresses = GivenAddresses([str(place) for place in range(len(networks))])
        state, patience = ServingState(), config.resume_timeout
        parts = addresses, state, patience, make_socket, random
        self.client = CheckedClient(*parts, share_prefixes=share_prefixes)
        self.client.images = images
        self.generator = Generator(
            config, MODEL, Prompts(random, tokenizing), self.client, ConcurrencyLimits(0, 0)
        )
        self._embedder = Embedder(self.generator, PromptPooler(self.generator))
        self.name = networks[0].name(self.client.identity)
        self.client.start()

    def serve(
        self,
        request: generation_pb2.GenerateRequest,
        time_left: float | None,
        deliver: Deliver,
        *,
        whole: bool,
    ) -> "asyncio.Task[None]":
        """Answers a request, as its RPC would. deliver: returns when the client reads on."""
        return self.handle(self._serve(request, time_left, deliver, whole))

    def embed(self, request: pooling_pb2.EmbedRequest) -> "asyncio.Task[Vectors]":
        """Embeds prompts, as its RPC would."""
        return self.handle(self._embedder.embed(request, Call(ANONYMOUS, None)))

    def handle(self, work: Coroutine[object, object, T]) -> "asyncio.Task[T]":
        """Runs a call, until this process dies."""
        task = asyncio.create_task(work)
        self._handlers[task] = None
        task.add_done_callback(self._handlers.pop)
        return task

    def die(self) -> None:
        """SIGKILL: what its coroutines still do has no effect."""
        for socket in self.sockets:
            socket.close()
        for handler in list(self._handlers):
            handler.cancel()
        assert self.client._heartbeat is not None
        self.client._heartbeat.cancel()

    def check(self) -> None:
        """After any event. Raises AssertionError."""
        assert not self.client.protocol_errors, f"{self.name}: protocol errors"

    def check_at_rest(self) -> None:
        """Checks that nothing is left once all requests have ended. Raises AssertionError."""
        self.check()
        assert not self._handlers, f"{self.name}: handlers still run"
        assert not len(self.client.journal), f"{self.name}: the journal is not empty"
        assert not any(core.in_flight for core in self.client.cores), f"{self.name}: a core has requests"
        assert not self.client._journal._waiting, f"{self.name}: a request waits in the journal"
        assert not any(map(len, (core.utility_calls for core in self.client.cores))), (
            f"{self.name}: utility_calls"
        )
        assert not self.generator.registry, f"{self.name}: requests are in flight"

    async def _serve(
        self, request: generation_pb2.GenerateRequest, time_left: float | None, deliver: Deliver, whole: bool
    ) -> None:
        call = Call(ANONYMOUS, time_left)
        async with self.generator.open(request, call, CallMode(one_message=whole, resumable=True)) as stream:
            while (message := await stream.take()) is not None:
                await deliver(message)
