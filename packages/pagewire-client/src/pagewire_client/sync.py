# Generated from aio.py by scripts/clients.py: change that file, then run 'make clients'.
"""The blocking client."""

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any, Generic, Self, TypeVar, Unpack

import grpc
from grpc_health.v1 import health_pb2

from pagewire.v1 import (
    admin_pb2,
    generation_pb2,
    inspection_pb2,
    model_pb2,
    pooling_pb2,
    prompt_pb2,
    tokenizer_pb2,
)
from pagewire_client.embeddings import (
    EmbedOptions,
    TokenVectors,
    embed_request,
    to_sparse_vectors,
    to_token_vectors,
    to_vectors,
)
from pagewire_client.errors import RpcError, Unavailable, from_grpc
from pagewire_client.frontends import FrontendStatus, frontend_states
from pagewire_client.params import (
    GenerateOptions,
    Message,
    PromptLike,
    SamplingParams,
    generate_request,
    output_parser,
    to_prompt,
    to_prompts,
)
from pagewire_client.results import (
    Classes,
    ContinuationScore,
    Delta,
    DocumentScore,
    FinishReason,
    Generation,
    Tokenized,
    classes,
    continuation_scores,
    document_scores,
    tokenized,
)
from pagewire_client.tools import ToolLoopError, choice_after_calls, functions_of, tool
from pagewire_client.transport import channel, io_sync
from pagewire_client.transport.channel import Method, Q, R
from pagewire_client.transport.credentials import AccessOptions, Credentials
from pagewire_client.transport.exchange import MAX_IN_FLIGHT, Command
from pagewire_client.transport.multiplex import Multiplex
from pagewire_client.transport.recovery import Recovery

_POLL_S = 0.05
_NOT_READY = "the service is not ready: it starts, drains, or has no engine"
T = TypeVar("T")


class Pager(Generic[T]):
    """Iterates over a list that the server sends in pages, and requests each page when it is needed.

    `total` is the number of items that the list had when the last page was sent. A new iteration begins with
    the first page. Raises RpcError.
    """

    total = 0

    def __init__(self, field: str, request: Any, send: Callable[[Any], Any]) -> None:
        """field: name of the items in a response. request: that of the first page."""
        self._field, self._request, self._send = field, request, send

    def __iter__(self) -> Iterator[T]:
        self._request.page_token = ""
        while True:
            page = self._send(self._request)
            self.total = page.total
            yield from getattr(page, self._field)
            if not page.next_page_token:
                return
            self._request.page_token = page.next_page_token


class Stream:
    """An iterator of the deltas of one running generation, in the order in which they were generated.

    When the server dies, the stream continues on another one, or on the same one once it is back. The
    request lives as long as this object: close(), the end of a with statement, an exception while
    it waits (such as Ctrl-C), and dropping the last reference cancel it and free its memory on the
    server. `generation` holds everything received so far.
    """

    _closed = True  # until the request is sent

    def __init__(self, recovery: Recovery, send: Callable[[Recovery], Any]) -> None:
        self._recovery = recovery
        self._send = send
        self._call = send(recovery)
        self._closed = False
        self._ready: deque[Delta] = deque()
        self.generation = recovery.generation

    def __iter__(self) -> Iterator[Delta]:
        return self

    def __next__(self) -> Delta:
        while not self._ready:
            if self._closed:
                raise StopIteration
            try:
                response = io_sync.read(self._call)
            except grpc.RpcError as error:
                self._send_again(from_grpc(error))
                continue
            except BaseException:  # such as Ctrl-C
                self._cancel()
                raise
            if response is None:
                self._closed = True
                raise StopIteration
            self._ready.extend(self._recovery.received(response))
        return self._ready.popleft()

    def _send_again(self, error: RpcError) -> None:
        """Sends the request again after a pause. Raises the error where another attempt cannot help."""
        if self._recovery.is_complete_despite(error):
            self._closed = True
            return
        pause = self._recovery.after(error)
        if pause is None or self._closed:
            self._closed = True
            raise error from None
        try:
            io_sync.sleep(pause)
        except BaseException:
            self._closed = True
            raise
        if not self._closed:
            self._call = self._send(self._recovery)

    def result(self) -> Generation:
        """Reads to the end and returns the whole generation."""
        for _ in self:
            pass
        return self.generation

    def close(self) -> None:
        """Cancels the request, unless it has ended. Idempotent."""
        self._cancel()

    def _cancel(self) -> None:
        if not self._closed:
            self._closed = True
            self._call.cancel()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        self._cancel()


class Client:
    """Connections to a service. Thread-safe.

    Close it with close() or a with statement. Every call raises an RpcError of pagewire_client.errors
    and takes `timeout`, in seconds, after which the server drops the request and DeadlineExceeded is raised.
    """

    def __init__(
        self,
        address: str | Sequence[str] = "127.0.0.1:50051",
        *,
        model: str = "",
        **access: Unpack[AccessOptions],
    ) -> None:
        """Connects lazily: the first call opens the connection.

        address: HOST:PORT or a name that gRPC resolves. Several addresses are frontends of one service; the
        client uses one until it fails. model: served name; default: the only model. access: token and TLS.
        Raises ValueError for a wrong argument, and OSError for certificate files that cannot be read.
        """
        self._credentials = Credentials(**access)
        self._channels = [self._connect(each) for each in channel.addresses(address)]
        self._server = 0  # index of the channel in use
        self._model = model

    def generate(
        self,
        prompt: PromptLike,
        params: SamplingParams | None = None,
        *,
        timeout: float | None = None,
        **options: Unpack[GenerateOptions],
    ) -> Generation:
        """Continues a prompt and returns the whole generation. Options are the fields of SamplingParams,
        which take precedence over `params`, and of RequestOptions."""
        request = generate_request(prompt, params, options, self._model)
        recovery = self._recovery(request, timeout)
        recovery.generation.parser = output_parser(params, options)
        while True:
            request, left = recovery.attempt()
            self._server = recovery.server
            try:
                recovery.received(self._call(channel.GENERATE_UNARY, request, left))
                return recovery.generation
            except RpcError as error:
                pause = recovery.after(error)
                if pause is None:
                    raise
            io_sync.sleep(pause)

    def chat(
        self,
        messages: Sequence[Message],
        params: SamplingParams | None = None,
        *,
        timeout: float | None = None,
        **options: Unpack[GenerateOptions],
    ) -> Generation:
        """Answers a conversation, rendered by the model's chat template."""
        return self.generate(messages, params, timeout=timeout, **options)

    def run_tools(
        self,
        messages: Sequence[Message],
        functions: Sequence[Callable[..., Any]],
        params: SamplingParams | None = None,
        *,
        strict: bool = False,
        max_rounds: int = 8,
        timeout: float | None = None,
        **options: Unpack[GenerateOptions],
    ) -> Generation:
        """Answers a conversation, and calls the functions that the model asks for, until it asks for none.

        A call that cannot be made (an unknown tool, arguments that do not fit) is answered with what is
        wrong; an exception of a function is raised. strict: the arguments of all functions fit their schemas
        (of one: pagewire.tool). timeout: of each answer. Raises ToolLoopError when the model still calls
        tools after `max_rounds` answers. A tool_choice that requires calls is for the first answer.
        """
        by_name, conversation = functions_of(functions), list(messages)
        options["tools"] = [tool(each, strict=True) for each in by_name.values()] if strict else functions
        for _ in range(max_rounds):
            answer = self.chat(conversation, params, timeout=timeout, **options)
            if answer.finish_reason is not FinishReason.TOOL_CALLS:
                return answer
            conversation.append(answer.outputs[0].message)
            if "tool_choice" in options:
                options["tool_choice"] = choice_after_calls(options["tool_choice"])
            for call in answer.tool_calls:
                conversation.append(io_sync.call_tool(call, by_name))
        raise ToolLoopError(f"the model still calls tools after {max_rounds} answers")

    def stream(
        self,
        prompt: PromptLike,
        params: SamplingParams | None = None,
        *,
        timeout: float | None = None,
        **options: Unpack[GenerateOptions],
    ) -> Stream:
        """Streams the continuation of a prompt or a conversation. The request is sent at once."""
        request = generate_request(prompt, params, options, self._model)

        def send(recovery: Recovery) -> Any:
            request, left = recovery.attempt()
            self._server = recovery.server
            return self._streaming(channel.GENERATE, request, left)

        recovery = self._recovery(request, timeout)
        recovery.generation.parser = output_parser(params, options)
        return Stream(recovery, send)

    def multiplex(self, *, max_in_flight: int = MAX_IN_FLIGHT, timeout: float | None = None) -> Multiplex:
        """Opens one stream for many requests, which costs less per token than a stream for each: for gateways
        and batch jobs. Use it in a with statement. max_in_flight: requests sent to the server at a
        time; more wait in the client. timeout: seconds for all of them together."""
        ends = None if timeout is None else time.monotonic() + timeout

        def call(server: int, commands: Iterator[Command]) -> Any:
            self._server = server
            method = channel.GENERATE_MULTIPLEXED
            begin = self._channels[server].stream_stream(method.path, **method.codec)
            left = None if ends is None else max(ends - time.monotonic(), 0.0)
            return begin(commands, timeout=left, metadata=self._credentials.metadata())

        return Multiplex(call, lambda request: self._recovery(request, None), self._model, max_in_flight)

    def abort(
        self, request_ids: Sequence[str], *, tenant: str = "", timeout: float | None = None
    ) -> list[str]:
        """Ends requests with FinishReason.ABORTED and returns the ids that were in flight. With
        authentication, a token reaches its own requests, and an admin's token those of `tenant`."""
        request = generation_pb2.AbortRequest(request_ids=request_ids, tenant=tenant)
        response = self._unary(channel.ABORT, request, timeout)
        return list(response.aborted_request_ids)

    def embed(
        self,
        inputs: PromptLike | Iterable[PromptLike],
        *,
        timeout: float | None = None,
        **options: Unpack[EmbedOptions],
    ) -> list[list[float]]:
        """Returns a vector per input: of one text or list of token ids, or of several."""
        request = embed_request(to_prompts(inputs), model=self._model, **options)
        return to_vectors(self._unary(channel.EMBED, request, timeout))

    def embed_tokens(
        self,
        inputs: PromptLike | Iterable[PromptLike],
        *,
        timeout: float | None = None,
        **options: Unpack[EmbedOptions],
    ) -> list[TokenVectors]:
        """Returns the vectors of each input's tokens: of one text or list of token ids, or of several."""
        kind = pooling_pb2.EMBEDDING_KIND_TOKENS
        request = embed_request(to_prompts(inputs), kind, self._model, **options)
        return to_token_vectors(self._unary(channel.EMBED, request, timeout))

    def embed_sparse(
        self,
        inputs: PromptLike | Iterable[PromptLike],
        *,
        timeout: float | None = None,
        **options: Unpack[EmbedOptions],
    ) -> list[dict[int, float]]:
        """Returns weights of the vocabulary by token id for each input: of one text or list of token ids, or
        of several. Without dimensions and precision."""
        kind = pooling_pb2.EMBEDDING_KIND_SPARSE
        request = embed_request(to_prompts(inputs), kind, self._model, **options)
        return to_sparse_vectors(self._unary(channel.EMBED, request, timeout))

    def classify(
        self,
        inputs: PromptLike | Iterable[PromptLike],
        *,
        request_id: str = "",
        priority: int = 0,
        tenant: str = "",
        cache_salt: str = "",
        cache_bypass: bool = False,
        timeout: float | None = None,
    ) -> Classes:
        """Returns the classes of each input: of one text or list of token ids, or of several. Options: see
        RequestOptions."""
        request = pooling_pb2.ClassifyRequest(
            request_id=request_id,
            model=self._model,
            inputs=to_prompts(inputs),
            priority=priority,
            tenant=tenant,
            cache=generation_pb2.CacheOptions(salt=cache_salt, bypass=cache_bypass),
        )
        response = self._unary(channel.CLASSIFY, request, timeout)
        return classes(response)

    def score(
        self,
        query: PromptLike,
        documents: PromptLike | Iterable[PromptLike],
        *,
        top_n: int | None = None,
        instruction: str = "",
        request_id: str = "",
        priority: int = 0,
        tenant: str = "",
        cache_salt: str = "",
        cache_bypass: bool = False,
        timeout: float | None = None,
    ) -> list[DocumentScore]:
        """Returns the relevance of each document to the query, best first.

        top_n: only so many. instruction: what makes a document relevant, for templates that have it. Other
        options: see RequestOptions.
        """
        request = pooling_pb2.ScoreRequest(
            request_id=request_id,
            model=self._model,
            query=to_prompt(query),
            documents=to_prompts(documents),
            top_n=top_n,
            instruction=instruction,
            priority=priority,
            tenant=tenant,
            cache=generation_pb2.CacheOptions(salt=cache_salt, bypass=cache_bypass),
        )
        response = self._unary(channel.SCORE, request, timeout)
        return document_scores(response)

    def score_continuations(
        self,
        prompt: PromptLike,
        continuations: Sequence[str],
        *,
        token_logprobs: bool = False,
        request_id: str = "",
        priority: int = 0,
        tenant: str = "",
        cache_salt: str = "",
        cache_bypass: bool = False,
        timeout: float | None = None,
    ) -> list[ContinuationScore]:
        """Returns the log-probability of each continuation of the prompt. Options: see RequestOptions."""
        request = pooling_pb2.ScoreContinuationsRequest(
            request_id=request_id,
            model=self._model,
            prompt=to_prompt(prompt),
            continuations=continuations,
            token_logprobs=token_logprobs,
            priority=priority,
            tenant=tenant,
            cache=generation_pb2.CacheOptions(salt=cache_salt, bypass=cache_bypass),
        )
        response = self._unary(channel.SCORE_CONTINUATIONS, request, timeout)
        return continuation_scores(response)

    def tokenize(self, prompt: PromptLike, *, timeout: float | None = None) -> Tokenized:
        """Returns the token ids of a text or a conversation."""
        request = tokenizer_pb2.TokenizeRequest(
            model=self._model, prompts=[to_prompt(prompt)], rendered_text=not isinstance(prompt, str)
        )
        response = self._unary(channel.TOKENIZE, request, timeout)
        return tokenized(response.results)[0]

    def detokenize(
        self,
        token_ids: Sequence[int],
        *,
        skip_special_tokens: bool | None = None,
        timeout: float | None = None,
    ) -> str:
        """Returns the text of token ids."""
        request = tokenizer_pb2.DetokenizeRequest(
            model=self._model,
            sequences=[prompt_pb2.TokenIds(ids=token_ids)],
            skip_special_tokens=skip_special_tokens,
        )
        response = self._unary(channel.DETOKENIZE, request, timeout)
        return response.texts[0]

    def models(self, *, timeout: float | None = None) -> list[model_pb2.Model]:
        """Returns the models that requests can name."""
        response = self._unary(channel.LIST_MODELS, model_pb2.ListModelsRequest(), timeout)
        return list(response.models)

    def model(self, name: str = "", *, timeout: float | None = None) -> model_pb2.Model:
        """Returns the model with this served name; default: the client's model."""
        request = model_pb2.GetModelRequest(name=name or self._model)
        response = self._unary(channel.GET_MODEL, request, timeout)
        return response.model

    def load_adapter(
        self,
        name: str,
        source: str = "",
        *,
        pinned: bool = False,
        tenants: Sequence[str] = (),
        timeout: float | None = None,
    ) -> model_pb2.Adapter:
        """Loads a LoRA adapter, for admins. Requests name it as their model. source: its folder on the
        engine's host, below --lora-folder; "": the subfolder with that name. pinned: it stays loaded.
        tenants: those that may use it; none: all."""
        request = model_pb2.LoadAdapterRequest(name=name, source=source, pinned=pinned, tenants=tenants)
        response = self._unary(channel.LOAD_ADAPTER, request, timeout)
        return response.adapter.adapter

    def unload_adapter(self, name: str, *, timeout: float | None = None) -> None:
        """Unloads a LoRA adapter, for admins. Returns when no request has it any more."""
        self._unary(channel.UNLOAD_ADAPTER, model_pb2.UnloadAdapterRequest(name=name), timeout)

    def adapters(self, *, timeout: float | None = None) -> list[model_pb2.Adapter]:
        """Returns all LoRA adapters, for admins."""
        response = self._unary(channel.LIST_ADAPTERS, model_pb2.ListAdaptersRequest(), timeout)
        return list(response.adapters)

    def server_info(self, *, timeout: float | None = None) -> admin_pb2.GetServerInfoResponse:
        """Returns the versions, configuration and state of the server."""
        return self._unary(channel.GET_SERVER_INFO, admin_pb2.GetServerInfoRequest(), timeout)

    def load(self, *, timeout: float | None = None) -> admin_pb2.Load:
        """Returns how busy the service is."""
        response = self._unary(channel.GET_LOAD, admin_pb2.GetLoadRequest(), timeout)
        return response.load

    def list_requests(
        self, *, tenant: str = "", page_size: int = 0, timeout: float | None = None
    ) -> Pager[inspection_pb2.RequestInfo]:
        """Iterates over the requests in flight, the oldest first. With authentication, the token's own; with
        an admin's token all, or those of `tenant`. page_size: requests in a response, 1 to 1000; 0: 100.
        timeout: seconds, for each page."""
        request = inspection_pb2.ListRequestsRequest(tenant=tenant, page_size=page_size)
        return Pager("requests", request, partial(self._unary, channel.LIST_REQUESTS, timeout=timeout))

    def explain_request(
        self, request_id: str, *, tenant: str = "", timeout: float | None = None
    ) -> inspection_pb2.ExplainRequestResponse:
        """Returns where a request's time went, what it waits for and which requests share its KV blocks.
        Raises NotFound when it is not in flight. tenant: of the request, for admins."""
        request = inspection_pb2.ExplainRequestRequest(request_id=request_id, tenant=tenant)
        return self._unary(channel.EXPLAIN_REQUEST, request, timeout)

    def kv_pool(self, *, max_cells: int = 1024, timeout: float | None = None) -> list[inspection_pb2.KvPool]:
        """Returns the KV pool of each engine core, as a picture of at most so many cells (1 to 16384)."""
        request = inspection_pb2.GetKvPoolRequest(max_cells=max_cells)
        response = self._unary(channel.GET_KV_POOL, request, timeout)
        return list(response.pools)

    def list_tenants(
        self, *, page_size: int = 0, timeout: float | None = None
    ) -> Pager[inspection_pb2.TenantInfo]:
        """Iterates over the tenants with requests in flight, by name and then by engine core. page_size:
        tenants in a response, 1 to 1000; 0: 100. timeout: seconds, for each page."""
        request = inspection_pb2.ListTenantsRequest(page_size=page_size)
        return Pager("tenants", request, partial(self._unary, channel.LIST_TENANTS, timeout=timeout))

    def list_engines(self, *, timeout: float | None = None) -> inspection_pb2.ListEnginesResponse:
        """Returns the engine cores with their health, and their last deaths and resumptions."""
        return self._unary(channel.LIST_ENGINES, inspection_pb2.ListEnginesRequest(), timeout)

    def watch_load(
        self, min_interval: float | None = None, *, timeout: float | None = None
    ) -> Iterator[admin_pb2.Load]:
        """Yields the load now and whenever it has changed, at most once in `min_interval` seconds."""
        request = admin_pb2.WatchLoadRequest()
        if min_interval is not None:
            request.min_interval.FromNanoseconds(int(min_interval * 1e9))
        call = self._streaming(channel.WATCH_LOAD, request, timeout)
        try:
            for response in call:
                yield response.load
        except grpc.RpcError as error:
            raise from_grpc(error) from None
        finally:
            call.cancel()

    def reset_cache(self, *, timeout: float | None = None) -> None:
        """Empties the prefix cache of the service."""
        self._unary(channel.RESET_CACHE, admin_pb2.ResetCacheRequest(), timeout)

    def drain(
        self,
        end_after: float | None = None,
        *,
        frontend: str = "",
        all_frontends: bool = False,
        timeout: float | None = None,
    ) -> list[FrontendStatus]:
        """Makes frontends refuse new requests; returns them, each with the number of its requests in flight.

        end_after: seconds after which the rest ends, to be continued on another frontend; None: no limit.
        frontend: name, address or id of one, or all_frontends; default: the one that gets the call.
        """
        request = channel.drain_request(end_after, frontend, all_frontends)
        response = self._unary(channel.DRAIN, request, timeout)
        return frontend_states(response)

    def resume(
        self, *, frontend: str = "", all_frontends: bool = False, timeout: float | None = None
    ) -> list[FrontendStatus]:
        """Ends a drain: the frontends, chosen as for drain(), accept requests again. Returns them."""
        request = admin_pb2.ResumeRequest(frontend=frontend, all_frontends=all_frontends)
        response = self._unary(channel.RESUME, request, timeout)
        return frontend_states(response)

    def healthy(self, *, timeout: float | None = 5.0) -> bool:
        """Returns True when the service accepts requests. Raises Unavailable when no server answers."""
        response = self._unary(channel.CHECK, health_pb2.HealthCheckRequest(), timeout)
        return bool(response.status == health_pb2.HealthCheckResponse.SERVING)

    def wait_ready(self, seconds: float = 60.0) -> None:
        """Waits until the service accepts requests. Raises the last RpcError after `seconds`."""
        deadline = time.monotonic() + seconds
        while True:
            try:
                if self.healthy():
                    return
                problem: RpcError = Unavailable(grpc.StatusCode.UNAVAILABLE, _NOT_READY)
            except RpcError as error:
                problem = error
            if time.monotonic() + _POLL_S > deadline:
                raise problem
            io_sync.sleep(_POLL_S)

    def close(self) -> None:
        """Cancels the requests in flight and closes the connections."""
        for connection in self._channels:
            connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _connect(self, address: str) -> io_sync.Channel:
        credentials = self._credentials
        target, options = channel.target(address), channel.options(address, credentials)
        if credentials.secure:
            return io_sync.secure_channel(target, credentials.for_channel(), options=options)
        return io_sync.insecure_channel(target, options=options)

    def _recovery(self, request: generation_pb2.GenerateRequest, timeout: float | None) -> Recovery:
        return Recovery(request, len(self._channels), self._server, timeout)

    def _unary(self, method: Method[Q, R], request: Q, timeout: float | None) -> R:
        """Calls a method that any server can answer: the next server is asked where one is unavailable."""
        for _ in self._channels[1:]:
            try:
                return self._call(method, request, timeout)
            except Unavailable:
                self._server = (self._server + 1) % len(self._channels)
        return self._call(method, request, timeout)

    def _call(self, method: Method[Q, R], request: Q, timeout: float | None) -> R:
        call = self._channels[self._server].unary_unary(method.path, **method.codec)
        try:
            response: R = io_sync.unary(call, request, timeout, self._credentials.metadata())
        except grpc.RpcError as error:
            raise from_grpc(error) from None
        return response

    def _streaming(self, method: Method[Q, R], request: Q, timeout: float | None) -> Any:
        call = self._channels[self._server].unary_stream(method.path, **method.codec)
        return call(request, timeout=timeout, metadata=self._credentials.metadata())
