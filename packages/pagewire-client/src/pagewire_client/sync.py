# Generated from aio.py by scripts/clients.py: change that file, then run 'make clients'.
"""The blocking client.

What the model computes is here; operations are in the base class (operations.py).
"""

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Unpack

from pagewire.v1 import generation_pb2, pooling_pb2, prompt_pb2, tokenizer_pb2
from pagewire_client.embeddings import TokenVectors, to_sparse_vectors, to_token_vectors, to_vectors
from pagewire_client.errors import RpcError
from pagewire_client.operations import Operations
from pagewire_client.params import (
    CommonOptions,
    EmbedOptions,
    GenerateOptions,
    Message,
    PromptLike,
    SamplingParams,
    embed_request,
    generate_request,
    output_parser,
    pooling_request,
    to_prompt,
    to_prompts,
)
from pagewire_client.results import (
    Classes,
    ContinuationScore,
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
from pagewire_client.transport.exchange import MAX_IN_FLIGHT, Command
from pagewire_client.transport.multiplex import Multiplex
from pagewire_client.transport.recovery import Recovery
from pagewire_client.transport.stream import Stream


class Client(Operations):
    """Connections to a service. Thread-safe.

    Close it with close() or a with statement. Every call raises an RpcError of pagewire_client.errors
    and takes `timeout`, in seconds, after which the server drops the request and DeadlineExceeded is raised.
    """

    def generate(
        self,
        prompt: PromptLike,
        params: SamplingParams | None = None,
        *,
        timeout: float | None = None,
        **options: Unpack[GenerateOptions],
    ) -> Generation:
        """Continues a prompt and returns the whole generation. Options are the fields of SamplingParams,
        which take precedence over `params`, and of RequestOptions. A call that breaks goes on as a stream, so
        that another break does not lose what has come."""
        request = generate_request(prompt, params, options, self._model)
        recovery = self._recovery(request, timeout)
        recovery.generation.parser = output_parser(params, options)
        while not recovery.has_broken:
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
        return self._open(recovery).result()

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
        recovery = self._recovery(request, timeout)
        recovery.generation.parser = output_parser(params, options)
        return self._open(recovery)

    def _open(self, recovery: Recovery) -> Stream:
        def send(recovery: Recovery) -> Any:
            request, left = recovery.attempt()
            self._server = recovery.server
            return self._streaming(channel.GENERATE, request, left)

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
        """Returns a vector per input: of one text or list of token ids, or of several. options: the fields of
        EmbedOptions."""
        kind = pooling_pb2.EMBEDDING_KIND_UNSPECIFIED
        request = embed_request(to_prompts(inputs), kind, self._model, options)
        return to_vectors(self._unary(channel.EMBED, request, timeout))

    def embed_tokens(
        self,
        inputs: PromptLike | Iterable[PromptLike],
        *,
        timeout: float | None = None,
        **options: Unpack[EmbedOptions],
    ) -> list[TokenVectors]:
        """Returns the vectors of each input's tokens: of one text or list of token ids, or of several.
        options: the fields of EmbedOptions."""
        kind = pooling_pb2.EMBEDDING_KIND_TOKENS
        request = embed_request(to_prompts(inputs), kind, self._model, options)
        return to_token_vectors(self._unary(channel.EMBED, request, timeout))

    def embed_sparse(
        self,
        inputs: PromptLike | Iterable[PromptLike],
        *,
        timeout: float | None = None,
        **options: Unpack[EmbedOptions],
    ) -> list[dict[int, float]]:
        """Returns weights of the vocabulary by token id for each input: of one text or list of token ids, or
        of several. options: the fields of EmbedOptions, without dimensions and precision."""
        kind = pooling_pb2.EMBEDDING_KIND_SPARSE
        request = embed_request(to_prompts(inputs), kind, self._model, options)
        return to_sparse_vectors(self._unary(channel.EMBED, request, timeout))

    def classify(
        self,
        inputs: PromptLike | Iterable[PromptLike],
        *,
        timeout: float | None = None,
        **options: Unpack[CommonOptions],
    ) -> Classes:
        """Returns the classes of each input: of one text or list of token ids, or of several. options: the
        fields of CommonOptions."""
        request = pooling_request(
            pooling_pb2.ClassifyRequest, self._model, options, inputs=to_prompts(inputs)
        )
        return classes(self._unary(channel.CLASSIFY, request, timeout))

    def score(
        self,
        query: PromptLike,
        documents: PromptLike | Iterable[PromptLike],
        *,
        top_n: int | None = None,
        instruction: str = "",
        timeout: float | None = None,
        **options: Unpack[CommonOptions],
    ) -> list[DocumentScore]:
        """Returns the relevance of each document to the query, best first.

        top_n: only so many. instruction: what makes a document relevant, for templates that have it. options:
        the fields of CommonOptions.
        """
        request = pooling_request(
            pooling_pb2.ScoreRequest,
            self._model,
            options,
            query=to_prompt(query),
            documents=to_prompts(documents),
            top_n=top_n,
            instruction=instruction,
        )
        return document_scores(self._unary(channel.SCORE, request, timeout))

    def score_continuations(
        self,
        prompt: PromptLike,
        continuations: Sequence[str],
        *,
        token_logprobs: bool = False,
        timeout: float | None = None,
        **options: Unpack[CommonOptions],
    ) -> list[ContinuationScore]:
        """Returns the log-probability of each continuation of the prompt. options: the fields of
        CommonOptions."""
        request = pooling_request(
            pooling_pb2.ScoreContinuationsRequest,
            self._model,
            options,
            prompt=to_prompt(prompt),
            continuations=continuations,
            token_logprobs=token_logprobs,
        )
        return continuation_scores(self._unary(channel.SCORE_CONTINUATIONS, request, timeout))

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
