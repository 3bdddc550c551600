"""Offline use: a model as a Python object."""

import itertools
import queue
import time
from collections.abc import Mapping, Sequence
from typing import Any, Self

import grpc
from tqdm import tqdm

from pagewire import flags
from pagewire.client import channel
from pagewire.client.errors import from_grpc
from pagewire.client.params import Message, PromptLike, SamplingParams, generate_request
from pagewire.client.results import Generation
from pagewire.config import DEMO_MODEL, ServeConfig
from pagewire.local_service import Service
from pagewire.v1 import generation_pb2

_AHEAD = 2
"""Requests in flight per sequence that can run: the engine's queue never runs dry."""
_NO_BOUNDS = {
    "max_concurrent_requests": 0,
    "max_tokenizing_bytes": 0,
    "max_num_queued_reqs": 0,
    "max_num_queued_tokens": 0,
    "max_queue_wait": 0.0,
}
"""Of a service that nobody else uses: there is nobody to be kept from waiting."""


class LLM:
    """Starts a private service for a model and sends it prompts.

    >>> with LLM("demo") as llm:
    ...     for answer in llm.generate(["The capital of France is"], SamplingParams(max_tokens=8)):
    ...         print(answer.text)

    close(), the end of a with statement, and the end of this process stop the service.
    """

    def __init__(self, model: str = DEMO_MODEL, **options: Any) -> None:
        """model: folder of a checkpoint. options: flags of `pagewire serve`, such as max_model_len.

        Raises StartupError, with the reason, when the service cannot start, TypeError for an option
        that is not such a flag, and ValueError for a value that the flag does not take.
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
        address = self._service.address
        self._channel = grpc.insecure_channel(address, options=channel.options(address))

    @property
    def address(self) -> str:
        """HOST:PORT of the private service, for a Client."""
        return self._service.address

    def generate(
        self,
        prompts: PromptLike | Sequence[PromptLike],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        priority: int = 0,
        tenant: str = "",
        progress: bool = True,
    ) -> list[Generation]:
        """Continues prompts, many at a time; results are in the order of the prompts.

        prompts: one or many texts, or token id lists. params: for all, or one for each.
        priority, tenant: of all of them, beside other calls that run; see RequestOptions.
        progress: show a bar with the speed. Raises RpcError; then the other requests are cancelled.
        """
        many: list[PromptLike] = [prompts] if _is_one(prompts) else list(prompts)  # type: ignore[arg-type, list-item]
        if params is None or isinstance(params, SamplingParams):
            each: list[SamplingParams | None] = [params] * len(many)
        else:
            each = list(params)
        if len(each) != len(many):
            raise ValueError(f"{len(many)} prompts, but {len(each)} sampling parameters")
        options = {"priority": priority, "tenant": tenant}
        requests = [generate_request(*pair, options, "") for pair in zip(many, each, strict=True)]
        return self._run(requests, progress)

    def chat(
        self,
        conversations: Sequence[Message] | Sequence[Sequence[Message]],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        priority: int = 0,
        tenant: str = "",
        progress: bool = True,
    ) -> list[Generation]:
        """As generate(), for one or many conversations, through the model's chat template."""
        one = bool(conversations) and isinstance(conversations[0], Mapping)
        many = [conversations] if one else conversations
        return self.generate(many, params, priority=priority, tenant=tenant, progress=progress)  # type: ignore[arg-type]

    def close(self) -> None:
        """Stops the service."""
        self._channel.close()
        self._service.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _run(self, requests: list[generation_pb2.GenerateRequest], progress: bool) -> list[Generation]:
        """Sends requests, a bounded number at a time, and collects the answers as they come."""
        call = self._channel.unary_unary(channel.GENERATE_UNARY.path, **channel.GENERATE_UNARY.codec)
        most = _AHEAD * self._config.max_num_seqs
        done: queue.SimpleQueue[tuple[int, Any]] = queue.SimpleQueue()
        results = [Generation() for _ in requests]
        in_flight: dict[int, Any] = {}
        number = 0
        bar = _Bar(len(requests), progress)
        try:
            unsent = iter(enumerate(requests))
            while True:
                for index, request in itertools.islice(unsent, most - len(in_flight)):
                    in_flight[index] = call.future(request)
                    in_flight[index].add_done_callback(lambda future, n=index: done.put((n, future)))
                if not in_flight:
                    return results
                number, future = done.get()
                del in_flight[number]
                results[number].add(future.result())
                bar.add(results[number])
        except grpc.RpcError as status:
            error = from_grpc(status)
            error.add_note(f"in prompt {number} (the first is 0)")
            raise error from None
        finally:
            bar.close()
            for future in in_flight.values():
                future.cancel()


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
        self._bar.close()


def _config(model: str, options: Mapping[str, Any]) -> ServeConfig:
    known = flags.flags_of(ServeConfig)
    values: dict[str, Any] = {
        "model": model,
        "port": 0,
        "http_port": -1,
        "log_level": "warning",
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


def _is_one(prompts: Any) -> bool:
    """Whether this is one prompt rather than a list of them: text, or token ids."""
    return isinstance(prompts, str) or (bool(prompts) and isinstance(prompts[0], int))
