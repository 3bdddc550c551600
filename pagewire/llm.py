"""Offline use: a model as a Python object."""

import math
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, Self, TypeVar, Unpack, cast, overload

import grpc
from google.protobuf import message as protobuf
from tqdm import tqdm

from pagewire import flags
from pagewire.config import DEMO_MODEL, ServeConfig
from pagewire.limits import MAX_VECTOR_VALUES
from pagewire.local_service import Service
from pagewire.v1 import generation_pb2, model_pb2, pooling_pb2, prompt_pb2
from pagewire_client.embeddings import TokenVectors, to_sparse_vectors, to_token_vectors, to_vectors
from pagewire_client.errors import RpcError, Unavailable, from_grpc
from pagewire_client.params import (
    EmbedOptions,
    GenerateOptions,
    Message,
    PromptLike,
    SamplingParams,
    embed_request,
    generate_request,
    output_parser,
    prompts_of,
    to_prompt,
    to_prompts,
)
from pagewire_client.results import Classes, Generation, classes
from pagewire_client.transport import channel
from pagewire_client.transport.exchange import Command
from pagewire_client.transport.multiplex import Multiplex
from pagewire_client.transport.recovery import Recovery

Q = TypeVar("Q", bound=protobuf.Message)
R = TypeVar("R", bound=protobuf.Message)
Prompts = PromptLike | Iterable[PromptLike]
Inputs = Sequence[prompt_pb2.Prompt]
Conversations = Sequence[Message] | Iterable[Sequence[Message]]
Params = SamplingParams | Sequence[SamplingParams] | None
_AHEAD = 2
"""Requests in flight per sequence that can run, so that the engine's queue never runs dry."""
_INPUTS_PER_CALL = 256
"""Of a call that pools: enough to fill the engine's steps, few enough to be computed again."""
_BYTES_PER_CALL = 8 << 20
"""Of such a call, with what all inputs have counted for each: half of what a service takes."""
_PAUSE_S = 0.2
"""Between two attempts while the service restarts what has died."""
_NO_BOUNDS = {
    "max_concurrent_requests": 0,
    "max_tokenizing_bytes": 0,
    "max_num_queued_reqs": 0,
    "max_num_queued_tokens": 0,
    "max_queue_wait": 0.0,
}
"""Overload limits of the private service: there are no other clients to protect."""


class LLM:
    """Starts a private service for a model and sends it prompts.

    >>> with LLM("demo") as llm:
    ...     for answer in llm.generate(["The capital of France is"], max_tokens=8):
    ...         print(answer.text)

    When a process of the service dies, its requests continue after the restart. close(), the end of a with
    statement, and the end of this process stop the service. A forked process cannot use it.
    """

    def __init__(self, model: str = DEMO_MODEL, **options: Any) -> None:
        """model: folder of a checkpoint. options: flags of `pagewire serve`, such as max_model_len.

        Raises StartupError if the service cannot start, TypeError for an unknown option, and ValueError for a
        value that the flag does not accept.
        """
        self._config = _config(model, options)
        with tqdm(
            total=100, desc="loading", bar_format="{desc} {bar} {n:.0f} %", leave=False, disable=None
        ) as bar:

            def show(what: str, fraction: float) -> None:
                bar.set_description_str(f"loading {what}", refresh=False)
                bar.n = round(100 * fraction)
                bar.refresh()

            self._service = Service(self._config, show)
        self._owner = os.getpid()
        address = self._service.address
        self._channel = grpc.insecure_channel(address, options=channel.options(address))

    @property
    def address(self) -> str:
        """HOST:PORT of the private service, for a Client."""
        return self._service.address

    @overload
    def generate(
        self,
        prompts: Prompts,
        params: Params = None,
        *,
        progress: bool = True,
        on_error: Literal["raise"] = "raise",
        **options: Unpack[GenerateOptions],
    ) -> list[Generation]: ...

    @overload
    def generate(
        self,
        prompts: Prompts,
        params: Params = None,
        *,
        progress: bool = True,
        on_error: Literal["return"],
        **options: Unpack[GenerateOptions],
    ) -> list[Generation | RpcError]: ...

    def generate(
        self,
        prompts: Prompts,
        params: Params = None,
        *,
        progress: bool = True,
        on_error: Literal["raise", "return"] = "raise",
        **options: Unpack[GenerateOptions],
    ) -> Any:
        """Continues prompts, many at a time; results are in the order of the prompts.

        prompts: one text or list of token ids, or several. params: for all of them, or one for each. options:
        as in Client.generate(), for all prompts. progress: show a progress bar. on_error: "raise" raises the
        first RpcError and cancels the other requests; "return" puts each RpcError in place of its result.
        """
        many = prompts_of(prompts)
        if params is None or isinstance(params, SamplingParams):
            each: list[SamplingParams | None] = [params] * len(many)
        else:
            each = list(params)
        if len(each) != len(many):
            raise ValueError(f"{len(many)} prompts, but {len(each)} sampling parameters")
        if on_error not in ("raise", "return"):
            raise ValueError(f"on_error is 'raise' or 'return', not {on_error!r}")
        requests = [generate_request(*pair, options, "") for pair in zip(many, each, strict=True)]
        results = self._run(requests, progress, on_error == "raise")
        for result, one in zip(results, each, strict=True):
            if isinstance(result, Generation):
                result.parser = output_parser(one, options)
        return results

    @overload
    def chat(
        self,
        conversations: Conversations,
        params: Params = None,
        *,
        progress: bool = True,
        on_error: Literal["raise"] = "raise",
        **options: Unpack[GenerateOptions],
    ) -> list[Generation]: ...

    @overload
    def chat(
        self,
        conversations: Conversations,
        params: Params = None,
        *,
        progress: bool = True,
        on_error: Literal["return"],
        **options: Unpack[GenerateOptions],
    ) -> list[Generation | RpcError]: ...

    def chat(
        self,
        conversations: Conversations,
        params: Params = None,
        *,
        progress: bool = True,
        on_error: Literal["raise", "return"] = "raise",
        **options: Unpack[GenerateOptions],
    ) -> Any:
        """Answers one or several conversations, rendered by the model's chat template; otherwise as
        generate()."""
        many = list(conversations)
        one = bool(many) and isinstance(many[0], Mapping)
        prompts = cast(list[PromptLike], [many] if one else many)
        return self.generate(prompts, params, progress=progress, on_error=on_error, **options)

    def embed(
        self, inputs: Prompts, *, progress: bool = True, **options: Unpack[EmbedOptions]
    ) -> list[list[float]]:
        """Returns a vector per input: of one text or list of token ids, or of several.

        progress: show a progress bar. options: as in Client.embed(). Raises RpcError, also where the model
        makes no embeddings.
        """

        kind = pooling_pb2.EMBEDDING_KIND_UNSPECIFIED
        responses = self._embed(kind, inputs, progress, _INPUTS_PER_CALL, options)
        return [vector for response in responses for vector in to_vectors(response)]

    def embed_tokens(
        self, inputs: Prompts, *, progress: bool = True, **options: Unpack[EmbedOptions]
    ) -> list[TokenVectors]:
        """Returns the vectors of each input's tokens; otherwise as embed()."""
        model = self._describe()
        most = MAX_VECTOR_VALUES // (model.embedding_size * model.max_model_len or 1)
        responses = self._embed(pooling_pb2.EMBEDDING_KIND_TOKENS, inputs, progress, most, options)
        return [each for response in responses for each in to_token_vectors(response)]

    def embed_sparse(
        self, inputs: Prompts, *, progress: bool = True, **options: Unpack[EmbedOptions]
    ) -> list[dict[int, float]]:
        """Returns weights of the vocabulary by token id for each input; otherwise as embed()."""
        most = MAX_VECTOR_VALUES // (self._describe().embedding_size or 1)
        responses = self._embed(pooling_pb2.EMBEDDING_KIND_SPARSE, inputs, progress, most, options)
        return [each for response in responses for each in to_sparse_vectors(response)]

    def classify(self, inputs: Prompts, *, progress: bool = True) -> Classes:
        """Returns the classes of one input, or of several; otherwise as embed()."""

        def request(part: Inputs) -> pooling_pb2.ClassifyRequest:
            return pooling_pb2.ClassifyRequest(inputs=part)

        found = list(map(classes, self._pool(channel.CLASSIFY, to_prompts(inputs), progress, request)))
        rows = [row for each in found for row in each.probabilities]
        return Classes(found[0].labels if found else [], rows)

    def score(
        self, query: PromptLike, documents: Prompts, *, instruction: str = "", progress: bool = True
    ) -> list[float]:
        """Returns the relevance of one document, or of several, to a query, in the order of the documents.

        instruction: what makes a document relevant, for templates that have it. Otherwise as embed().
        """
        asked = to_prompt(query)

        def request(part: Inputs) -> pooling_pb2.ScoreRequest:
            return pooling_pb2.ScoreRequest(query=asked, documents=part, instruction=instruction)

        scores: list[float] = []
        for response in self._pool(channel.SCORE, to_prompts(documents), progress, request):
            scores += [each.score for each in sorted(response.scores, key=lambda each: each.index)]
        return scores

    def close(self) -> None:
        """Stops the service. Does nothing in a forked process."""
        if os.getpid() == self._owner:
            self._channel.close()
            self._service.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _run(
        self, messages: list[generation_pb2.GenerateRequest], progress: bool, raise_errors: bool
    ) -> list[Generation | RpcError]:
        """Sends requests, a bounded number at a time, and collects the results as they arrive."""
        self._check_owner()
        bar = _Bar(len(messages), progress)
        try:
            with self._stream() as stream:
                requests = []
                for message in messages:
                    message.output.mode = generation_pb2.OutputOptions.MODE_FINAL
                    requests.append(stream.send_message(message))
                for request in stream.results():
                    if request.error is not None and raise_errors:
                        request.error.add_note(f"in prompt {requests.index(request)} (the first is 0)")
                        raise request.error
                    bar.add(request.generation)
        finally:
            bar.close()
        return [request.error or request.generation for request in requests]

    def _embed(
        self,
        kind: pooling_pb2.EmbeddingKind,
        inputs: Prompts,
        progress: bool,
        most: int,
        options: EmbedOptions,
    ) -> Iterator[pooling_pb2.EmbedResponse]:
        """Yields the responses to calls of at most so many inputs. Raises RpcError."""

        def request(part: Inputs) -> pooling_pb2.EmbedRequest:
            return embed_request(part, kind, "", options)

        return self._pool(channel.EMBED, to_prompts(inputs), progress, request, most)

    def _describe(self) -> model_pb2.Model:
        self._check_owner()
        request = model_pb2.GetModelRequest()
        return _answer(self._channel, self._service, channel.GET_MODEL, request).model

    def _pool(
        self,
        method: channel.Method[Q, R],
        inputs: Inputs,
        progress: bool,
        request: Callable[[Inputs], Q],
        most: int = _INPUTS_PER_CALL,
    ) -> Iterator[R]:
        """Yields the responses of calls with a bounded number of inputs, and of bytes. request: makes that of
        some inputs. most: inputs of a call. Raises RpcError."""
        self._check_owner()
        with tqdm(total=len(inputs), unit="input", dynamic_ncols=True, disable=not progress) as bar:
            for part in _parts(inputs, request(()).ByteSize(), min(max(most, 1), _INPUTS_PER_CALL)):
                yield _answer(self._channel, self._service, method, request(part))
                bar.update(len(part))

    def _check_owner(self) -> None:
        if os.getpid() != self._owner:
            raise RuntimeError("this LLM belongs to the process that made it, not to a fork of that")

    def _stream(self) -> Multiplex:
        """Opens a multiplexed stream, whose requests wait for the service as long as that runs."""
        method = channel.GENERATE_MULTIPLEXED
        start = self._channel.stream_stream(method.path, **method.codec)

        def start_call(server: int, commands: Iterator[Command]) -> Any:
            return start(commands)

        most = min(_AHEAD * self._config.max_num_seqs, self._config.max_multiplexed_requests)
        return Multiplex(start_call, lambda message: _ServiceRecovery(message, self._service), "", most)


class _ServiceRecovery(Recovery):
    """Waits for a private service, which restarts what dies, until that service has ended."""

    def __init__(self, message: generation_pb2.GenerateRequest, service: Service) -> None:
        super().__init__(message, num_servers=1, server=0, timeout=None, patience=math.inf)
        self._service = service

    def after(self, error: RpcError) -> float | None:
        if not self._service.is_running:
            error.todo = "the service of this LLM has ended, as its last log lines say: make a new LLM"
            return None
        return super().after(error)


class _Bar:
    """Progress in prompts, with tokens per second."""

    def __init__(self, total: int, shown: bool) -> None:
        self._bar = tqdm(total=total, unit="prompt", dynamic_ncols=True, disable=not shown)
        self._start = time.monotonic()
        self._input = self._output = 0

    def add(self, result: Generation) -> None:
        self._input += result.usage.prompt_tokens
        self._output += result.usage.completion_tokens
        seconds = time.monotonic() - self._start
        speed = f"input {self._input / seconds:.0f} tok/s, output {self._output / seconds:.0f} tok/s"
        self._bar.set_postfix_str(speed, refresh=False)
        self._bar.update()

    def close(self) -> None:
        """Leaves the bar as it is."""
        self._bar.close()


def _config(model: str, options: Mapping[str, Any]) -> ServeConfig:
    known = flags.flags_of(ServeConfig)
    values: dict[str, Any] = {
        "model": model,
        "port": 0,
        "http_port": -1,
        "log_level": "warning",
        "no_standby": True,
        **_NO_BOUNDS,
    }
    for name, value in options.items():
        if name not in known:
            raise TypeError(f"LLM() got an unexpected option {name!r}; options are flags of pagewire serve")
        try:
            values[name] = known[name].convert(value)
        except ValueError as error:
            raise ValueError(f"{name}: {error}") from None
    return ServeConfig(**values)


def _parts(inputs: Inputs, shared: int, most: int = _INPUTS_PER_CALL) -> Iterator[Inputs]:
    """Yields inputs for one call after another. shared: bytes that count for each input. most: of a call."""
    part: list[prompt_pb2.Prompt] = []
    size = 0
    for each in inputs:
        more = each.ByteSize() + shared
        if part and (len(part) == most or size + more > _BYTES_PER_CALL):
            yield part
            part, size = [], 0
        part.append(each)
        size += more
    if part:
        yield part


def _answer(connection: grpc.Channel, service: Service, method: channel.Method[Q, R], request: Q) -> R:
    """Calls until there is an answer, or the service has ended. Raises RpcError."""
    call = connection.unary_unary(method.path, **method.codec)
    while True:
        try:
            response: R = call(request)
            return response
        except grpc.RpcError as caught:
            error = from_grpc(caught)
            if not isinstance(error, Unavailable) or not service.is_running:
                raise error from None
        time.sleep(_PAUSE_S)
