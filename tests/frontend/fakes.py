"""Small public fakes for the frontend: tokenizers made in code, a checkpoint's small files, and an
engine core that speaks the real protocol over a real socket and does what a test tells it."""

import asyncio
import contextlib
import json
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar

import grpc
import tokenizers
import zmq
import zmq.asyncio
from google.rpc import error_details_pb2
from grpc_status import rpc_status
from tokenizers import AddedToken, decoders, models, pre_tokenizers, processors

from frontend.model.info import ModelInfo, load_model
from frontend.server import Frontend
from pagewire.config import FrontendConfig
from pagewire.internal.v1 import engine_pb2
from pagewire.ipc.columns import pack_u8, pack_u32, pack_u64, unpack_u32
from pagewire.ipc.transport import configure, pack, unpack
from pagewire.v1 import (
    admin_pb2,
    admin_pb2_grpc,
    generation_pb2,
    generation_pb2_grpc,
    model_pb2_grpc,
    pooling_pb2_grpc,
    tokenizer_pb2_grpc,
)
from tests.logprob_columns import Scored, pack_f32, put_together
from tests.patience import until

T = TypeVar("T")
VOCAB_SIZE = 512
MAX_MODEL_LEN = 200
EMBEDDING_SIZE = 8
SPECIAL = ("<|pad|>", "<|begin|>", "<|end|>", "<|user|>", "<|assistant|>")
PAD, BEGIN, END, USER, ASSISTANT = range(5)
TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}{{ '<|' + m['role'] + '|>' + m['content'] + eos_token }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)


# Tokenizers.


def byte_alphabet() -> list[str]:
    """The characters that byte-level tokenizers write bytes as, in the order of the bytes."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = iter(range(0x100, 0x200))
    return [chr(byte) if byte in printable else chr(next(others)) for byte in range(256)]


def byte_level_model() -> models.BPE:
    """All bytes, and a few merges; some of them cross the borders of code points."""
    alphabet = byte_alphabet()
    spell = {byte: character for byte, character in enumerate(alphabet)}

    def word(text: bytes) -> str:
        return "".join(spell[byte] for byte in text)

    pairs = [(b"t", b"h"), (b"th", b"e"), (b" ", b"the"), (b"h", b"i"), (b" ", b"hi")]
    pairs += [(b"\xe4", b"\xbd"), (b"\xa0", b"\xe5"), (b"\xf0", b"\x9f"), (b"\x99", b"\x82"), (b"\n", b"\n")]
    vocab = {text: place for place, text in enumerate(SPECIAL)}
    for character in alphabet:
        vocab[character] = len(vocab)
    for left, right in pairs:
        vocab[word(left + right)] = len(vocab)
    return models.BPE(vocab, [(word(left), word(right)) for left, right in pairs])


def byte_level_tokenizer() -> tokenizers.Tokenizer:
    """Like GPT-2's, Llama 3's and Qwen's, with a BOS."""
    tokenizer = tokenizers.Tokenizer(byte_level_model())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(text, special=True) for text in SPECIAL])
    tokenizer.add_tokens([AddedToken("<think>", special=False), AddedToken("   ", special=False)])
    tokenizer.post_processor = processors.TemplateProcessing(
        single=["<|begin|>", "$A"], special_tokens=[("<|begin|>", BEGIN)]
    )
    return tokenizer


PIECES = ["▁", "▁Hello", "▁world", "a", "b", "c", "▁▁", "é", "你", "好", "▁the", "ing", "🙂", "\n", "▁a▁b"]


def piece_tokenizer(decoder: decoders.Decoder) -> tokenizers.Tokenizer:
    """Like SentencePiece's, with byte tokens. decoder: what distinguishes them."""
    vocab = {"<unk>": 0, "<s>": 1, "</s>": 2}
    for byte in range(256):
        vocab[f"<0x{byte:02X}>"] = len(vocab)
    for piece in PIECES:
        vocab[piece] = len(vocab)
    model = models.BPE(vocab, [], byte_fallback=True, unk_token="<unk>", fuse_unk=True)
    tokenizer = tokenizers.Tokenizer(model)
    tokenizer.decoder = decoder
    tokenizer.add_special_tokens([AddedToken(text, special=True) for text in ("<unk>", "<s>", "</s>")])
    tokenizer.add_tokens([AddedToken("<think>", special=False)])
    return tokenizer


# A checkpoint, as far as a frontend reads it.


def write_checkpoint(folder: Path, **changes: Any) -> Path:
    """The small files of a checkpoint. changes: "name.json" with _ for . -> contents, None: no file."""
    files: dict[str, Any] = {
        "config_json": {"architectures": ["FakeForCausalLM"], "vocab_size": VOCAB_SIZE},
        "tokenizer_json": byte_level_tokenizer().to_str(),
        "tokenizer_config_json": {
            "bos_token": "<|begin|>",
            "eos_token": {"content": "<|end|>", "special": True},
            "pad_token": "<|pad|>",
        },
        "generation_config_json": {"temperature": 0.5, "top_k": 40},
        "chat_template_jinja": TEMPLATE,
        **changes,
    }
    folder.mkdir(parents=True, exist_ok=True)
    for key, content in files.items():
        stem, _, ending = key.rpartition("_")
        if content is not None:
            text = content if isinstance(content, str) else json.dumps(content)
            (folder / f"{stem}.{ending}").write_text(text, encoding="utf-8")
    return folder


# The engine.


@dataclass(frozen=True)
class Output:
    """What a step produced for one sequence."""

    token_ids: Sequence[int] = ()
    finish: int = 0
    matched: int = 0
    index: int = 0
    position: int | None = None
    """None: the right one."""


Script = Callable[[engine_pb2.AddRequest], Iterable[Output | Sequence[Output]]]
"""From a request to the steps in which it is answered."""


def fake_score(position: int, token: int, options: generation_pb2.LogprobOptions) -> Scored:
    """The log-probabilities that the engine gives a token. Exact in float32."""
    ids = list(options.token_ids.ids) or list(range(options.top_n))
    values = [-(position + i + 1) / 4 for i in ids]
    return Scored(-(position + token) / 64, token % 7 + 1, ids, values, [i + 1 for i in ids])


def fake_vector(token_ids: Sequence[int], pooling: engine_pb2.Pooling) -> list[float]:
    """The vector that the engine gives a prompt, or those of its tokens. Exact in float32."""
    if pooling.type == engine_pb2.POOLING_TYPE_ALL:
        of_one = engine_pb2.Pooling(type=1, dimensions=pooling.dimensions, normalize=pooling.normalize)
        return [value for token in token_ids for value in fake_vector([token], of_one)]
    vector = [sum(token_ids) / 4, len(token_ids), -pooling.type, 0.5 * pooling.normalize, *token_ids[:4]]
    return (vector + [0.0] * EMBEDDING_SIZE)[: pooling.dimensions or len(pooling.token_ids) or EMBEDDING_SIZE]


def pool(request: engine_pb2.AddRequest) -> Iterable["Output"]:
    """A script: a request that pools ends with its vector."""
    assert request.HasField("pooling")
    return [Output((), generation_pb2.FINISH_REASON_STOP)]


def say(*pieces: Sequence[int], finish: int = generation_pb2.FINISH_REASON_MAX_TOKENS) -> Script:
    """A script: each of the pieces in a step of its own, the last one with a finish."""
    return lambda request: [
        Output(piece, finish if place == len(pieces) - 1 else 0) for place, piece in enumerate(pieces)
    ]


def _digests(table: engine_pb2.AdapterTable) -> list[bytes]:
    held = table.held_digests
    return [held[start : start + 32] for start in range(0, len(held), 32)]


@dataclass
class _Request:
    message: engine_pb2.AddRequest
    frontend: bytes
    counts: dict[int, int] = field(default_factory=dict)
    prompt_told: bool = False


class FakeEngine:
    """An engine core without a model. `script` says how requests are answered; None: not by itself."""

    def __init__(self, address: str, *, epoch: int = 1, script: Script | None = None, **facts: Any) -> None:
        self.address = address
        self.epoch = epoch
        self.script = script
        self.load = admin_pb2.RankLoad(kv_total_tokens=1024)
        self.num_resets = 0  # of the prefix cache
        self.answers: dict[str, engine_pb2.UtilityResult] = {}  # to calls of these kinds
        self.asked: list[engine_pb2.Utility] = []  # of these kinds
        self.silent = False  # answers nothing, as if it were loading
        self.transfer_namespace = b""
        self.role = engine_pb2.CORE_ROLE_UNSPECIFIED
        self._adapters = engine_pb2.AdapterTable()  # as each Welcome has them: a frontend may greet twice
        self.requests: asyncio.Queue[engine_pb2.AddRequest] = asyncio.Queue()
        self.aborts: asyncio.Queue[engine_pb2.Abort] = asyncio.Queue()
        self.watches: asyncio.Queue[engine_pb2.WatchCache] = asyncio.Queue()
        self.hellos: asyncio.Queue[engine_pb2.Hello] = asyncio.Queue()
        sizes = {"vocab_size": VOCAB_SIZE, "max_model_len": MAX_MODEL_LEN, "embedding_size": EMBEDDING_SIZE}
        self._facts = {**sizes, **facts}
        self._in_flight: dict[int, _Request] = {}
        self._frontend = b""
        self._frontends: dict[bytes, engine_pb2.Hello] = {}
        self._step = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self._context = zmq.asyncio.Context()
        self._router: zmq.asyncio.Socket | None = None

    async def start(self) -> None:
        """Binds. It can be done again after stop()."""
        self._adapters.Clear()
        self._router = self._context.socket(zmq.ROUTER)
        configure(self._router)
        self._router.bind(self.address)
        self._spawn(self._serve(self._router))

    async def stop(self) -> None:
        """Dies: the connections are cut, requests are forgotten."""
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._router is not None:
            self._router.close(linger=0)
            self._router = None
        self._in_flight.clear()

    async def close(self) -> None:
        """Ends for good."""
        await self.stop()
        self._context.term()

    async def send(self, message: engine_pb2.EngineMessage, *, raw: bytes | None = None) -> None:
        """Any message, to the frontend that spoke last."""
        assert self._router is not None
        await self._router.send_multipart([self._frontend, pack(message) if raw is None else raw])

    async def tell_adapters(self, table: engine_pb2.AdapterTable) -> None:
        """What has adapters[] or held_digests, or what has changed of them, but for `unnamed`."""
        table.epoch, known = self.epoch, self._adapters
        if not table.is_change:
            known.Clear()
        known.adapters.extend(table.adapters)
        held = {*_digests(known), *_digests(table)}
        dropped = engine_pb2.AdapterTable(held_digests=table.dropped_digests)
        known.held_digests = b"".join(held - {*_digests(dropped)})
        await self.send(engine_pb2.EngineMessage(adapters=table))

    async def output(self, handle: int, *outputs: Output, queue_us: int | None = None) -> None:
        """One step's output for one request."""
        request = self._in_flight.get(handle)
        counts = request.counts if request is not None else {}
        positions = []
        for output in outputs:
            position = counts.get(output.index, 0)
            counts[output.index] = position + len(output.token_ids)
            positions.append(position if output.position is None else output.position)
        self._step += 1
        started = [] if queue_us is None else [handle]
        message = engine_pb2.StepOutputs(
            epoch=self.epoch,
            step=self._step,
            handles=pack_u64([handle] * len(outputs)),
            indexes=pack_u32([output.index for output in outputs]),
            positions=pack_u32(positions),
            counts=pack_u32([len(output.token_ids) for output in outputs]),
            token_ids=pack_u32([token for output in outputs for token in output.token_ids]),
            finish_reasons=pack_u8([output.finish for output in outputs]),
            finish_token_ids=pack_u32([output.matched for output in outputs]),
            started_handles=pack_u64(started),
            started_queue_us=pack_u32([queue_us or 0] * len(started)),
            started_cached_tokens=pack_u32([0] * len(started)),
        )
        if request is not None:
            _put_scores(message, request, outputs, positions)
        await self.send(engine_pb2.EngineMessage(step_outputs=message))

    async def score_prompt(self, handle: int, start: int, end: int) -> None:
        """Log-probabilities of a part of the prompt; otherwise all of them come with the first output."""
        request = self._in_flight[handle]
        request.prompt_told = True
        message = engine_pb2.StepOutputs(epoch=self.epoch, prompt_logprobs=[_part(request, start, end)])
        await self.send(engine_pb2.EngineMessage(step_outputs=message))

    async def fail(
        self,
        handle: int,
        code: int,
        reason: str,
        message: str,
        field: str = "",
        retry_delay: timedelta | None = None,
    ) -> None:
        """Ends a request by an error."""
        failure = engine_pb2.RequestFailed(
            epoch=self.epoch,
            handle=handle,
            code=code,
            reason=reason,
            message=message,
            field=field,
            retry_delay=retry_delay,
        )
        await self.send(engine_pb2.EngineMessage(request_failed=failure))

    def _spawn(self, coroutine: Any) -> None:
        task = asyncio.create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, router: zmq.asyncio.Socket) -> None:
        while True:
            self._frontend, frame = await router.recv_multipart()
            message = engine_pb2.FrontendMessage.FromString(unpack(frame))
            kind = message.WhichOneof("message")
            if kind == "hello":
                self.hellos.put_nowait(message.hello)
                self._frontends[self._frontend] = message.hello
                if not self.silent:
                    await self.send(self._greeting(message.hello))
            elif kind == "abort":
                self.aborts.put_nowait(message.abort)
                if not message.abort.indexes:
                    self._in_flight.pop(message.abort.handle, None)
            elif kind == "utility":
                await self._answer(message.utility)
            elif kind == "frontend_reply":
                reply = message.frontend_reply
                result = engine_pb2.UtilityResult(call_id=reply.call_id, frontend_status=reply.status)
                self._frontend = reply.asker
                await self.send(engine_pb2.EngineMessage(utility_result=result))
            elif kind == "watch_cache":
                self.watches.put_nowait(message.watch_cache)
            elif kind == "add_request":
                request = message.add_request
                self._in_flight[request.handle] = _Request(request, self._frontend)
                self.requests.put_nowait(request)
                if self.script is not None:
                    self._spawn(self._play(request, self.script(request)))

    async def _play(self, request: engine_pb2.AddRequest, steps: Iterable[Output | Sequence[Output]]) -> None:
        queue_us: int | None = 0
        for step in steps:
            if request.handle not in self._in_flight:
                return
            outputs = [step] if isinstance(step, Output) else step
            await self.output(request.handle, *outputs, queue_us=queue_us)
            queue_us = None
        self._in_flight.pop(request.handle, None)

    def _greeting(self, hello: engine_pb2.Hello) -> engine_pb2.EngineMessage:
        if hello.known_epoch == self.epoch:
            return engine_pb2.EngineMessage(load=engine_pb2.Load(epoch=self.epoch, load=self.load))
        welcome = engine_pb2.Welcome(
            epoch=self.epoch,
            engine_version="fake",
            instance_id="cafe",
            model=engine_pb2.ModelFacts(
                architecture="FakeForCausalLM", dtype="float32", eos_token_ids=[END], **self._facts
            ),
            block_size=16,
            num_blocks=64,
            max_num_seqs=32,
            max_num_batched_tokens=256,
            device="cpu",
            parallelism=admin_pb2.Parallelism(tensor=1, pipeline=1, data=1, expert=1),
            max_priority=1000,
            eos_origins=["config.json, tokenizer_config.json"],
            transfer_namespace=self.transfer_namespace,
            role=self.role,
            adapters=self._adapters,
        )
        return engine_pb2.EngineMessage(welcome=welcome)

    async def _answer(self, utility: engine_pb2.Utility) -> None:
        result = engine_pb2.UtilityResult(call_id=utility.call_id)
        if (kind := str(utility.WhichOneof("call"))) in self.answers:
            self.asked.append(utility)
            result.MergeFrom(self.answers[kind])
        elif utility.HasField("reset_cache"):
            self.num_resets += 1
            result.cache_reset.SetInParent()
        elif utility.HasField("list_frontends"):
            result.frontends.SetInParent()
            for identity, hello in self._frontends.items():
                result.frontends.frontends.add(
                    instance_id=identity.hex(), name=hello.name, address=hello.address
                )
        elif utility.HasField("command_frontend"):
            command = utility.command_frontend
            command.asker, command.call_id = self._frontend, utility.call_id
            if command.frontend in self._frontends:
                self._frontend = command.frontend
                await self.send(engine_pb2.EngineMessage(frontend_command=command))
                return
        elif utility.HasField("get_load"):
            result.load.CopyFrom(engine_pb2.Load(epoch=self.epoch, load=self.load))
        else:
            ids = {request.message.request_id: handle for handle, request in self._in_flight.items()}
            known = [name for name in utility.abort_by_ids.request_ids if name in ids]
            result.aborted.request_ids.extend(known)
            for name in known:
                n = self._in_flight[ids[name]].message.sampling.n
                ends = [Output((), generation_pb2.FINISH_REASON_ABORTED, index=index) for index in range(n)]
                await self.output(ids[name], *ends)
                del self._in_flight[ids[name]]
        await self.send(engine_pb2.EngineMessage(utility_result=result))


def _part(request: _Request, start: int, end: int) -> engine_pb2.PromptLogprobs:
    message = request.message
    tokens = unpack_u32(message.prompt_token_ids)
    scores = [fake_score(p, tokens[p], message.prompt_logprobs) for p in range(start, end)]
    return engine_pb2.PromptLogprobs(handle=message.handle, start=start, columns=put_together(scores))


def _put_scores(
    message: engine_pb2.StepOutputs, request: _Request, outputs: Sequence[Output], positions: list[int]
) -> None:
    asked = request.message
    has_tokens = any(output.token_ids for output in outputs)
    if asked.HasField("prompt_logprobs") and has_tokens and not request.prompt_told:
        request.prompt_told = True
        prompt_len = len(asked.prompt_token_ids) // 4
        message.prompt_logprobs.append(_part(request, max(asked.prompt_logprobs_start, 1), prompt_len))
    if asked.HasField("pooling") and any(
        output.finish == generation_pb2.FINISH_REASON_STOP for output in outputs
    ):
        values = fake_vector(unpack_u32(asked.prompt_token_ids), asked.pooling)
        message.vectors.add(handle=asked.handle, values=pack_f32(values))
    if asked.HasField("logprobs"):
        message.has_logprobs = bytes([len(output.token_ids) > 0 for output in outputs])
        scores = [
            fake_score(position + place, token, asked.logprobs)
            for output, position in zip(outputs, positions, strict=True)
            for place, token in enumerate(output.token_ids)
        ]
        message.logprobs.CopyFrom(put_together(scores))


# All of it.


@dataclass
class Service:
    """A frontend in this process, its fake engine, and a channel to it."""

    frontend: Frontend
    engine: FakeEngine
    channel: grpc.aio.Channel
    port: int

    def __post_init__(self) -> None:
        self.generation = generation_pb2_grpc.GenerationServiceStub(self.channel)
        self.tokenizer = tokenizer_pb2_grpc.TokenizerServiceStub(self.channel)
        self.models = model_pb2_grpc.ModelServiceStub(self.channel)
        self.pooling = pooling_pb2_grpc.PoolingServiceStub(self.channel)
        self.admin = admin_pb2_grpc.AdminServiceStub(self.channel)

    async def generate(self, **fields: Any) -> list[generation_pb2.GenerateResponse]:
        """All messages of a request; the prompt is "hi" unless given."""
        return [message async for message in self.generation.Generate(make_request(**fields))]


def make_request(**fields: Any) -> generation_pb2.GenerateRequest:
    """A GenerateRequest; its prompt is "hi" unless given."""
    fields.setdefault("prompt", {"text": "hi"})
    return generation_pb2.GenerateRequest(**fields)


async def abort_in_turn(service: Service, ask: Callable[[], Awaitable[T]]) -> T:
    """Returns the result of ask(), a large request named "mine" that is aborted while it waits for a turn.
    Fails when the Abort does not find it, or something of it reaches the engine."""
    turns = service.frontend.parts.large_messages._turns
    await turns.begin("another")
    asked = asyncio.ensure_future(ask())
    await until(lambda: turns.num_waiting > 0)
    response = await service.generation.Abort(generation_pb2.AbortRequest(request_ids=["mine", "other"]))
    assert list(response.aborted_request_ids) == ["mine"]
    turns.end("another")
    result = await asked
    assert service.engine.requests.empty() and not service.frontend.parts.generator.registry._arriving
    return result


async def in_time(service: Service, call: Callable[[float], Any]) -> tuple[Any, engine_pb2.AddRequest, float]:
    """Makes a call that reaches the engine before its deadline: a busy machine needs more time for that.

    call: makes it, with a deadline in so many seconds. Returns the call, its request, and the seconds.
    """
    for seconds in (0.5, 5.0, 50.0):
        made = call(seconds)
        with contextlib.suppress(TimeoutError):
            return made, await asyncio.wait_for(service.engine.requests.get(), seconds), seconds
    raise AssertionError("no call reaches the engine")


@contextlib.contextmanager
def engine_address() -> Iterable[str]:
    """An address in a folder of its own; its path is short, as ipc demands."""
    with tempfile.TemporaryDirectory(prefix="pw-", dir="/tmp") as folder:
        yield f"ipc://{folder}/frontends.ipc"


def new_channel(port: int) -> grpc.aio.Channel:
    """Returns a connection of its own, shared with no other channel."""
    return grpc.aio.insecure_channel(f"127.0.0.1:{port}", options=[("grpc.use_local_subchannel_pool", 1)])


@contextlib.asynccontextmanager
async def run_service(
    checkpoint: Path,
    script: Script | None = None,
    *,
    model: ModelInfo | None = None,
    wait: bool = True,
    engine_options: dict[str, Any] | None = None,
    **config: Any,
) -> AsyncIterator[Service]:
    """A running service on a free port. wait: until it serves."""
    with engine_address() as address:
        settings = FrontendConfig(
            model=str(checkpoint), port=0, engine=(address,), **{"served_model_name": ("fake",), **config}
        )
        engine = FakeEngine(address, script=script, **(engine_options or {}))
        if wait:
            await engine.start()
        frontend = Frontend(settings, model or load_model(settings))
        port = frontend.open()
        await frontend.start()
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            try:
                if wait:
                    await frontend.wait_until_serving()
                yield Service(frontend, engine, channel, port)
            finally:
                await frontend.stop(0)
                await engine.close()


# Reading what comes out.


def text_of(messages: Iterable[generation_pb2.GenerateResponse], index: int = 0) -> str:
    """Joined text of one sequence."""
    return "".join(
        output.text for message in messages for output in message.sequences if output.index == index
    )


def tokens_of(messages: Iterable[generation_pb2.GenerateResponse], index: int = 0) -> list[int]:
    """Joined token ids of one sequence."""
    return [
        token
        for message in messages
        for output in message.sequences
        if output.index == index
        for token in output.token_ids
    ]


def finishes_of(messages: Iterable[generation_pb2.GenerateResponse]) -> list[generation_pb2.Finish]:
    """All finishes."""
    return [
        output.finish for message in messages for output in message.sequences if output.HasField("finish")
    ]


def details_of(error: grpc.aio.AioRpcError) -> dict[str, Any]:
    """google.rpc details of an error, by the name of their type."""
    status = rpc_status.from_call(error)
    found: dict[str, Any] = {}
    for detail in status.details if status is not None else ():
        name = detail.TypeName().rpartition(".")[2]
        message = getattr(error_details_pb2, name)()
        assert detail.Unpack(message)
        found[name] = message
    return found


def encode(text: str | bytes) -> list[int]:
    """Token ids of single bytes in byte_level_tokenizer, one per byte."""
    data = text.encode() if isinstance(text, str) else text
    return [len(SPECIAL) + byte for byte in data]
