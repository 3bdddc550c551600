"""Tokenizes prompts, and compiles the grammars of answers, away from the event loop.

A few threads tokenize small prompts, so that these delay other prompts but no stream. A thread in the middle
of a call into C cannot be stopped, so large prompts, and for a while all of them after a small one has taken
too long, go to processes, which can be killed (frontend.prompts.process_pool).
"""

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from hashlib import blake2b
from math import inf
from time import monotonic
from typing import TypeVar

from frontend.answers.choice import AnswerFormats
from frontend.audio.checkpoint import Audio
from frontend.call.turns import TenantJobs, TenantTurns
from frontend.errors import ContextLengthExceeded, InvalidRequest
from frontend.media.checkpoint import Images
from frontend.media.files import Prompts, field_of, has_media
from frontend.media.kept import KeptFiles
from frontend.prompts.embeddings import read_embeddings
from frontend.prompts.media_fetcher import MediaFetcher, has_urls
from frontend.prompts.process_pool import Packed, PromptProcesses
from frontend.prompts.prompt_encoding import (
    BYTES_PER_ID,
    PromptEncoder,
    TokenizedPrompt,
    packed,
)
from frontend.templates.chat_template import ChatTemplate
from frontend.templates.pair_template import PairTemplate
from frontend.text.tokenizer import Tokenizer
from frontend.validation.json_objects import num_values
from frontend.validation.rules import Limits
from pagewire.internal.v1 import reader_pb2
from pagewire.ipc.columns import unpack_u32, unpack_u32_array
from pagewire.v1 import prompt_pb2

log = logging.getLogger(__name__)

T = TypeVar("T")

SMALL = 64 << 10
"""Bytes of text that a thread tokenizes: about 20 ms of work."""
FEW_IDS = 1024
"""Token ids that are copied and checked at once, in less time than a thread takes to be woken."""
PATIENCE = 10.0
"""Seconds that a thread may take for that, hundreds of times as long as it needs."""

SUSPENSION, LONGEST_SUSPENSION = 60.0, 24 * 3600.0
"""Seconds without threads after that: the first time, and at most. Each time a thread is lost."""

BYTES_PER_PART, BYTES_PER_TOOL, BYTES_PER_VALUE = 512, 1024, 8
"""Bytes of text that take as long as a message or a part of one, as a tool, and as a value of JSON in one, in
a template."""

MAX_GRAMMARS = 256
MAX_GRAMMAR_BYTES = 8 << 20
"""Bytes of all grammars that are kept."""


class GrammarCache:
    """The grammars that were used last, by the form that was requested: a service has few schemas."""

    def __init__(self) -> None:
        self._grammars: OrderedDict[bytes, str] = OrderedDict()
        self._num_bytes = 0

    def get(self, form: reader_pb2.AnswerForm) -> str | None:
        """Returns the grammar of a form; None: it is not known."""
        key = _digest(form)
        if key in self._grammars:
            self._grammars.move_to_end(key)
        return self._grammars.get(key)

    def put(self, form: reader_pb2.AnswerForm, grammar: str) -> None:
        """Keeps a grammar, and forgets those that were not used for the longest time."""
        if (key := _digest(form)) in self._grammars:
            return
        self._grammars[key] = grammar
        self._num_bytes += len(grammar)
        while len(self._grammars) > MAX_GRAMMARS or self._num_bytes > MAX_GRAMMAR_BYTES:
            self._num_bytes -= len(self._grammars.popitem(last=False)[1])


def _digest(form: reader_pb2.AnswerForm) -> bytes:
    return blake2b(form.SerializeToString(deterministic=True), digest_size=16).digest()


class PromptReader:
    """Tokenizes prompts in threads or in processes."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        chat_template: ChatTemplate | None,
        num_threads: int,
        processes: PromptProcesses | None = None,
        clock: Callable[[], float] = monotonic,
        answers: AnswerFormats | None = None,
        serves_others: Callable[[str], bool] = lambda tenant: False,
        pair_template: PairTemplate | None = None,
        images: Images | Audio | None = None,
        media: MediaFetcher | None = None,
    ) -> None:
        """processes: for what threads should not do; None: threads do everything. answers, pair_template,
        images: see PromptEncoder. serves_others: whether tenants beside this one have calls, which have half
        of the threads. media: fetches those that are URLs; None: no limits allow any."""
        self._encoder = PromptEncoder(tokenizer, chat_template, answers, pair_template, images)
        self._grammars = GrammarCache()
        threads = self._num_threads = max(num_threads, 1)
        self._pool = self._make_pool()
        turns = TenantTurns(threads, lambda tenant: max(threads // (1 + serves_others(tenant)), 1))
        self.jobs = TenantJobs(turns)
        self._processes = processes
        self._media = media
        self._kept = KeptFiles() if images is not None else None
        self._clock = clock
        self._threads_from = -inf  # when threads may be used again
        self._suspension = SUSPENSION

    async def run(
        self, function: Callable[[], T], tenant: str | None, weight: int, patience: float | None = None
    ) -> T:
        """Returns function(), run in a thread in the tenant's turn. weight: bytes of text that take as long.
        Raises TimeoutError when that takes longer than `patience` seconds; None: its size is bounded."""
        loop = asyncio.get_running_loop()
        return await self.jobs.run(
            lambda: loop.run_in_executor(self._pool, function), tenant, weight, patience
        )

    async def close(self) -> None:
        """Ends the processes. Does not wait for threads: what still runs is bounded in time or size."""
        self._pool.shutdown(wait=False, cancel_futures=True)
        if self._processes is not None:
            await self._processes.close()
        if self._media is not None:
            await self._media.close()

    async def put_files(self, prompts: Prompts, tenant: str | None, room: int) -> Sequence[bytes]:
        """Puts files in place of the digests and URLs of the media of a request's validated prompts: see
        KeptFiles and MediaFetcher. room: bytes that files of digests may have, which are put last: nothing
        waits then. Returns the SHA-256 of each that was fetched. Raises ServiceError."""
        digests: Sequence[bytes] = ()
        if self._kept is not None:
            self._kept.check(prompts, tenant, room)
        if self._media is not None and any(has_urls(prompt) for _, prompt in prompts):
            digests = await self._media.put_files(prompts, tenant)
        if self._kept is not None:
            self._kept.put_files(prompts, tenant, room)
        return digests

    def keep_files(self, prompt: prompt_pb2.Prompt, tenant: str | None = None) -> None:
        """Keeps the files of a prompt that was read, for requests that name them by their digests."""
        if self._kept is not None:
            self._kept.keep(prompt, tenant)

    async def read_for_generation(
        self,
        prompt: prompt_pb2.Prompt,
        path: str,
        limits: Limits,
        tenant: str | None = None,
        *,
        prompt_only: bool = False,
    ) -> TokenizedPrompt:
        """Returns a prompt that leaves room for output; prompt_only: none is needed. tenant: its owner, whose
        turn it takes at the threads and processes, here and below. Raises InvalidRequest."""
        most = limits.max_model_len
        read = await self.read(prompt, path, vocab_size=limits.vocab_size, max_model_len=most, tenant=tenant)
        return _fitting(read, path, most + prompt_only - 1, most)

    async def read_pair(self, pair: reader_pb2.ReadPair, tenant: str | None = None) -> TokenizedPrompt:
        """Returns the prompt of a query and a document, of a model that scores them. Raises
        InvalidRequest."""
        read = await self._do(
            lambda: self._encoder.pair(pair),
            lambda: reader_pb2.ReadRequest(pair=pair),
            _read_prompt,
            BYTES_PER_PART + pair.ByteSize(),
            pair.path,
            tenant,
        )
        return _fitting(read, pair.path, pair.max_model_len, pair.max_model_len)

    async def read(
        self,
        prompt: prompt_pb2.Prompt,
        path: str,
        *,
        vocab_size: int,
        max_model_len: int | None = None,
        offsets: bool = False,
        tenant: str | None = None,
    ) -> TokenizedPrompt:
        """Tokenizes a validated prompt: see PromptEncoder.read. Raises InvalidRequest."""
        if prompt.HasField("embeddings"):
            size = len(prompt.embeddings.data)
            return await self.run(lambda: read_embeddings(prompt.embeddings, path), tenant, size)

        def here() -> TokenizedPrompt:
            return packed(
                self._encoder.read(
                    prompt, path, vocab_size=vocab_size, max_model_len=max_model_len, offsets=offsets
                )
            )

        if prompt.HasField("token_ids") and len(prompt.token_ids.ids) <= FEW_IDS and not prompt.media:
            return here()

        def job() -> reader_pb2.ReadRequest:
            read = reader_pb2.ReadPrompt(
                prompt=prompt, path=path, vocab_size=vocab_size, max_model_len=max_model_len, offsets=offsets
            )
            return reader_pb2.ReadRequest(prompt=read)

        field = field_of(prompt, path) if has_media(prompt) else path
        return await self._do(here, job, _read_prompt, _weight(prompt), field, tenant)

    async def read_words(self, words: Sequence[str], tenant: str | None = None) -> list[list[int]]:
        return await self._do(
            lambda: self._encoder.words(words),
            lambda: reader_pb2.ReadRequest(words=reader_pb2.Texts(texts=words)),
            _read_texts,
            sum(map(len, words)),
            "sampling.bad_words",
            tenant,
        )

    async def read_continuations(self, texts: Sequence[str], tenant: str | None = None) -> list[list[int]]:
        return await self._do(
            lambda: self._encoder.continuations(texts),
            lambda: reader_pb2.ReadRequest(continuations=reader_pb2.Texts(texts=texts)),
            _read_texts,
            sum(map(len, texts)),
            "continuations",
            tenant,
        )

    async def read_grammar(self, form: reader_pb2.AnswerForm, tenant: str | None = None) -> str:
        """Reads them in a process, if there are any: a grammar can be made to take long."""
        grammar = self._grammars.get(form)
        if grammar is None:
            grammar = await self._do(
                lambda: self._encoder.grammar(form),
                lambda: reader_pb2.ReadRequest(answer_form=form),
                lambda response, _: response.grammar,
                SMALL + 1,
                "prompt.chat.tools" if form.tools else "structured_output",
                tenant,
            )
            self._grammars.put(form, grammar)
        return grammar

    async def _do(
        self,
        here: Callable[[], T],
        request: Callable[[], reader_pb2.ReadRequest],
        read: Callable[[reader_pb2.ReadResponse, Packed], T],
        weight: int,
        path: str,
        tenant: str | None,
    ) -> T:
        """Does one job: a small one in a thread while threads are in use, any other in a process. path: of
        the field that is read."""
        if self._processes is None:
            return await self.run(here, tenant, weight)

        def small() -> T:
            if not self._uses_threads:  # suspended while the job waited for its turn
                raise TimeoutError
            return here()

        if self._uses_threads and weight <= SMALL:
            try:
                return await self.run(small, tenant, weight, PATIENCE)
            except TimeoutError:
                self._suspend_threads()
        return read(*await self._processes.ask(request(), path, tenant, weight))

    @property
    def _uses_threads(self) -> bool:
        return self._clock() >= self._threads_from

    def _suspend_threads(self) -> None:
        """Uses processes alone for a while, after a small job occupied a thread for too long: the tokenizer
        hangs, or the machine is very slow. Each suspension is twice as long as the one before."""
        if self._uses_threads:
            log.warning(
                "a small prompt took longer than %g s: processes tokenize all prompts for the next %g s",
                PATIENCE,
                self._suspension,
            )
            self._threads_from = self._clock() + self._suspension
            self._suspension = min(2 * self._suspension, LONGEST_SUSPENSION)
            self._pool.shutdown(wait=False)
            self._pool = self._make_pool()

    def _make_pool(self) -> ThreadPoolExecutor:
        return ThreadPoolExecutor(self._num_threads, thread_name_prefix="tokenizer")


def _fitting(read: TokenizedPrompt, path: str, most: int, max_model_len: int) -> TokenizedPrompt:
    """Returns a prompt of 1 to `most` tokens. Raises InvalidRequest."""
    count = len(read.token_ids)
    if count == 0:
        raise InvalidRequest({path: "has no tokens"})
    if count > most:
        raise ContextLengthExceeded(path, count, max_model_len)
    return read


def _weight(prompt: prompt_pb2.Prompt) -> int:
    """Returns about the bytes of a text that costs as much to read as a prompt. Templates take longer for
    many messages and tools than for long ones; what has media is never read by a thread."""
    if has_media(prompt):
        return SMALL + prompt.ByteSize()
    if prompt.HasField("token_ids"):
        return BYTES_PER_ID * len(prompt.token_ids.ids)
    if prompt.HasField("text"):
        return len(prompt.text)
    chat, size = prompt.chat, prompt.ByteSize() + 3 * prompt.chat.template_kwargs.ByteSize()
    size += sum(BYTES_PER_TOOL + BYTES_PER_VALUE * num_values(tool.parameters) for tool in chat.tools)
    for each in chat.messages:
        size += BYTES_PER_PART * (1 + len(each.content) + len(each.tool_calls))
        size += sum(BYTES_PER_VALUE * num_values(call.arguments) for call in each.tool_calls)
    return size


def _read_prompt(response: reader_pb2.ReadResponse, media: Packed) -> TokenizedPrompt:
    read = response.prompt
    offsets = list(zip(unpack_u32(read.starts), unpack_u32(read.ends), strict=True))
    ids, second = unpack_u32_array(read.token_ids), read.second_text
    return TokenizedPrompt(
        ids,
        read.text,
        offsets,
        read.truncated,
        second_text=second,
        packed_media=media,
        num_media_tokens=read.media_tokens,
    )


def _read_texts(response: reader_pb2.ReadResponse, _: Packed) -> list[list[int]]:
    return [unpack_u32(column) for column in response.texts.token_ids]
