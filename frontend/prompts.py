"""Prompts to token ids, away from the event loop.

A few threads do all tokenizing and rendering, so that a long prompt delays other prompts but no
stream. What reaches them has passed frontend.validation.
"""

import asyncio
from array import array
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar

from frontend.chat_template import ChatTemplate
from frontend.control_tokens import ControlTokens
from frontend.errors import ContextLengthExceeded, InvalidRequest, Unsupported
from frontend.tokenizer import Encoding, Tokenizer
from frontend.validation import check_token_ids
from pagewire.v1 import prompt_pb2

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class TokenizedPrompt:
    """A prompt, as the model sees it."""

    token_ids: "array[int]"
    text: str = ""
    """What was tokenized; empty for a prompt of token ids."""
    offsets: Sequence[tuple[int, int]] = ()
    """Places of the tokens in the text, in characters; empty unless asked for."""


class PromptReader:
    """Reads prompts in a pool of threads."""

    def __init__(self, tokenizer: Tokenizer, chat_template: ChatTemplate | None, num_threads: int) -> None:
        self._tokenizer = tokenizer
        self._chat_template = chat_template
        self._control_tokens = ControlTokens(tokenizer)
        self._pool = ThreadPoolExecutor(max(num_threads, 1), thread_name_prefix="tokenizer")

    async def run(self, function: Callable[[], T]) -> T:
        """function(), in a thread of the pool."""
        return await asyncio.get_running_loop().run_in_executor(self._pool, function)

    def close(self) -> None:
        """Waits for nobody: what still runs is bounded in time or size."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    async def read_for_generation(
        self, prompt: prompt_pb2.Prompt, path: str, *, vocab_size: int, max_model_len: int
    ) -> TokenizedPrompt:
        """The prompt, with room for output left. Raises InvalidRequest."""
        self._refuse_certainly_too_long(prompt, path, max_model_len)
        read = await self.run(lambda: self.read(prompt, path, vocab_size=vocab_size))
        count = len(read.token_ids)
        if count == 0:
            raise InvalidRequest({path: "has no tokens"})
        if count >= max_model_len:
            raise ContextLengthExceeded(path, count, max_model_len)
        return read

    async def read_words(self, words: Sequence[str]) -> list[list[int]]:
        """Token ids of words, each as the beginning of a text and after a space."""

        def read() -> list[list[int]]:
            spellings = dict.fromkeys(spelling for word in words for spelling in (word, " " + word))
            encodings = [
                self._tokenizer.encode(spelling, add_special_tokens=False).token_ids for spelling in spellings
            ]
            return [list(ids) for ids in dict.fromkeys(map(tuple, encodings)) if ids]

        return await self.run(read)

    def read(
        self, prompt: prompt_pb2.Prompt, path: str, *, vocab_size: int, offsets: bool = False
    ) -> TokenizedPrompt:
        """Reads a prompt in the calling thread. Raises InvalidRequest."""
        if prompt.HasField("token_ids"):
            if offsets:
                raise InvalidRequest({f"{path}.token_ids": "has no text for offsets to point into"})
            token_ids = array("I", prompt.token_ids.ids)
            check_token_ids(token_ids, vocab_size, f"{path}.token_ids.ids")
            text, encoding = "", Encoding(token_ids, [0] * len(token_ids), ())
        elif prompt.HasField("chat"):
            text, encoding = self._read_chat(prompt, path, offsets)
        else:
            special = prompt.add_special_tokens if prompt.HasField("add_special_tokens") else True
            text = prompt.text
            encoding = self._tokenizer.encode(text, add_special_tokens=special, offsets=offsets)
        kept = _kept(encoding, prompt)
        return TokenizedPrompt(
            token_ids=array("I", [encoding.token_ids[place] for part in kept for place in part]),
            text=text,
            offsets=[encoding.offsets[place] for part in kept for place in part] if offsets else (),
        )

    def _read_chat(self, prompt: prompt_pb2.Prompt, path: str, offsets: bool) -> tuple[str, Encoding]:
        path = f"{path}.chat"
        if self._chat_template is None:
            raise Unsupported({path: "the model has no chat template"})
        conversation = self._chat_template.read(prompt.chat, path, self._control_tokens.mark)
        text = self._chat_template.render(conversation, path)
        special = prompt.add_special_tokens  # default false: templates carry their own
        if not self._control_tokens.is_marked(text):
            return text, self._tokenizer.encode(text, add_special_tokens=special, offsets=offsets)
        if offsets:
            problem = "offsets are not known where a message contains the text of a control token"
            raise InvalidRequest({path: problem})
        encoding = self._control_tokens.encode(text, add_special_tokens=special)
        return self._control_tokens.unmark(text), encoding

    def _refuse_certainly_too_long(self, prompt: prompt_pb2.Prompt, path: str, max_model_len: int) -> None:
        """Spares the tokenizer prompts whose size alone says that they do not fit."""
        if prompt.HasField("truncate_to"):
            return
        at_least = len(prompt.token_ids.ids)
        longest = self._tokenizer.longest_token
        if longest and prompt.HasField("text"):
            at_least = -(-len(prompt.text) // longest)  # a character has at least one byte
        if at_least >= max_model_len:
            exact = prompt.HasField("token_ids")
            raise ContextLengthExceeded(path, at_least, max_model_len, at_least=not exact)


def _kept(encoding: Encoding, prompt: prompt_pb2.Prompt) -> list[range]:
    """Places of the tokens that truncation leaves. It spares what the tokenizer has added (BOS)."""
    count = len(encoding.token_ids)
    limit = prompt.truncate_to if prompt.HasField("truncate_to") else count
    if count <= limit:
        return [range(count)]
    right = prompt.truncation_side == prompt_pb2.TRUNCATION_SIDE_RIGHT
    head = tail = 0
    if sum(encoding.added) < limit:
        while encoding.added[head]:
            head += 1
        while encoding.added[count - 1 - tail]:
            tail += 1
    room = limit - head - tail
    middle = range(head, head + room) if right else range(count - tail - room, count - tail)
    return [range(head), middle, range(count - tail, count)]
