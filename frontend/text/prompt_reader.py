"""Prompts to token ids, away from the event loop.

A few threads do small prompts, so that they delay other prompts but no stream. A thread that is in the middle
of a call into C cannot be stopped, so large prompts, and all of them once a small one has taken too long, go
to processes, which can (frontend.text.process_pool).
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from math import inf
from time import monotonic
from typing import TypeVar

from frontend.errors import ContextLengthExceeded, InvalidRequest
from frontend.text.chat_template import ChatTemplate
from frontend.text.process_pool import PromptProcesses
from frontend.text.prompt_encoding import BYTES_PER_ID, Reading, TokenizedPrompt
from frontend.text.tokenizer import Tokenizer
from pagewire.internal.v1 import reader_pb2
from pagewire.v1 import prompt_pb2

log = logging.getLogger(__name__)

T = TypeVar("T")

SMALL = 64 << 10
"""Bytes of text that a thread takes: some 20 ms of work."""
PATIENCE = 10.0
"""Seconds that a thread gets for that: hundreds of times as long. Then the tokenizer is not to be trusted."""


class PromptReader:
    """Reads prompts, in threads or in processes."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        chat_template: ChatTemplate | None,
        num_threads: int,
        readers: PromptProcesses | None = None,
    ) -> None:
        """readers: processes for what threads should not do; None: threads do everything."""
        self._reading = Reading(tokenizer, chat_template)
        self._num_threads = num_threads
        self._readers = readers
        self._trusted = True
        self._pool = self._make_pool()

    async def run(self, function: Callable[[], T]) -> T:
        """function(), in a thread of the pool. For what is bounded in size."""
        return await asyncio.get_running_loop().run_in_executor(self._pool, function)

    def close(self) -> None:
        """Waits for nobody: what still runs is bounded in time or size."""
        self._pool.shutdown(wait=False, cancel_futures=True)
        if self._readers is not None:
            self._readers.close()

    async def read_for_generation(
        self, prompt: prompt_pb2.Prompt, path: str, *, vocab_size: int, max_model_len: int
    ) -> TokenizedPrompt:
        """The prompt, with room for output left. Raises InvalidRequest."""
        read = await self.read(prompt, path, vocab_size=vocab_size, max_model_len=max_model_len)
        count = len(read.token_ids)
        if count == 0:
            raise InvalidRequest({path: "has no tokens"})
        if count >= max_model_len:
            raise ContextLengthExceeded(path, count, max_model_len)
        return read

    async def read(
        self,
        prompt: prompt_pb2.Prompt,
        path: str,
        *,
        vocab_size: int,
        max_model_len: int | None = None,
        offsets: bool = False,
    ) -> TokenizedPrompt:
        """Reads a validated prompt: see Reading.read. Raises InvalidRequest."""

        def here() -> TokenizedPrompt:
            return self._reading.read(
                prompt, path, vocab_size=vocab_size, max_model_len=max_model_len, offsets=offsets
            )

        def there(readers: PromptProcesses) -> Awaitable[TokenizedPrompt]:
            job = reader_pb2.ReadPrompt(
                prompt=prompt, path=path, vocab_size=vocab_size, max_model_len=max_model_len, offsets=offsets
            )
            return readers.read_prompt(job)

        return await self._do(here, there, _weight(prompt))

    async def read_words(self, words: Sequence[str]) -> list[list[int]]:
        """See Reading.words."""
        return await self._do(
            lambda: self._reading.words(words),
            lambda readers: readers.read_words(words, "sampling.bad_words"),
            sum(map(len, words)),
        )

    async def read_continuations(self, texts: Sequence[str]) -> list[list[int]]:
        """See Reading.continuations."""
        return await self._do(
            lambda: self._reading.continuations(texts),
            lambda readers: readers.read_continuations(texts, "continuations"),
            sum(map(len, texts)),
        )

    async def _do(
        self, here: Callable[[], T], there: Callable[[PromptProcesses], Awaitable[T]], weight: int
    ) -> T:
        """One job, in a thread if it is small and threads can be trusted with it."""
        readers = self._readers
        if readers is None:
            return await self.run(here)
        if self._trusted and weight <= SMALL:
            try:
                return await self._run_small(here)
            except TimeoutError:
                self._distrust()
        return await there(readers)

    async def _run_small(self, function: Callable[[], T]) -> T:
        """function(), in a thread of the pool. Raises TimeoutError when it is not done PATIENCE after it has
        begun: to wait for a free thread, in an overload, is not the tokenizer's fault. Who still waits when
        another job has used up our patience gets no thread any more."""
        began = inf

        def run() -> T:
            nonlocal began
            began = monotonic()
            return function()

        job = asyncio.get_running_loop().run_in_executor(self._pool, run)
        try:
            left = PATIENCE
            while left > 0 and (began < inf or self._trusted):
                await asyncio.wait([job], timeout=left)
                if job.done():
                    return job.result()
                left = PATIENCE - max(monotonic() - began, 0.0)
        finally:
            job.cancel()
        raise TimeoutError

    def _distrust(self) -> None:
        """A thread has been lost to a small job, or the machine is very slow. From now on processes read."""
        if self._trusted:
            log.warning("a small prompt took longer than %g s: processes read all from now on", PATIENCE)
            self._trusted = False
            self._pool.shutdown(wait=False)
            self._pool = self._make_pool()

    def _make_pool(self) -> ThreadPoolExecutor:
        return ThreadPoolExecutor(max(self._num_threads, 1), thread_name_prefix="tokenizer")


def _weight(prompt: prompt_pb2.Prompt) -> int:
    """Bytes of a prompt, about: what reading it costs grows with it."""
    if prompt.HasField("token_ids"):
        return BYTES_PER_ID * len(prompt.token_ids.ids)
    return len(prompt.text) if prompt.HasField("text") else prompt.ByteSize()
