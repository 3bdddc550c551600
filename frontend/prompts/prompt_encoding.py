"""Turns prompts into token ids, in the calling thread.

prompt_reader.py chooses where this runs. Prompts have passed frontend.validation.requests.
"""

from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

from frontend.answers.choice import AnswerFormats
from frontend.audio.checkpoint import Audio
from frontend.errors import ContextLengthExceeded, InvalidRequest, Unsupported
from frontend.media.checkpoint import Images
from frontend.media.files import field_of, media_of
from frontend.templates.chat_template import ChatTemplate
from frontend.templates.control_tokens import ControlTokens
from frontend.templates.pair_template import PairTemplate
from frontend.templates.taint import Tainted
from frontend.text.tokenizer import Encoding, Tokenizer
from frontend.validation.requests import check_token_ids
from pagewire.internal.v1 import engine_pb2, reader_pb2
from pagewire.v1 import prompt_pb2

if TYPE_CHECKING:
    from frontend.grammar.answer import AnswerJudge

BYTES_PER_TOKEN = 16
"""Bytes of text that a prompt may have per token of context. Text has about 4; tokenizing takes 150 bytes of
memory per byte, so an unlimited request could take gigabytes."""
MIN_TEXT = 256 << 10
"""Bytes that all models accept, if only to truncate them."""
MAX_TEXT = 2 << 20
"""Bytes of a text in TokenizerService."""
BYTES_PER_ID = 4
"""Bytes that a token id counts for where bytes are limited."""
_SLACK = 8
"""Tokens by which a text in a prompt may be longer than by itself, where words are split at its ends."""
_PIECE = 1 << 16
"""Token ids that are checked in one go: about 2 ms."""


@dataclass(frozen=True, slots=True)
class TokenizedPrompt:
    """A prompt, as the model sees it."""

    token_ids: "array[int]"
    text: str = ""
    """The tokenized text; empty for a prompt of token ids."""
    offsets: Sequence[tuple[int, int]] = ()
    """Start and end of each token in the text, in characters; empty unless requested."""
    num_truncated: int = 0
    """Tokens that truncate_to removed."""
    embeddings: engine_pb2.InputEmbeddings | None = None
    """Values in place of all tokens, whose ids then mean nothing."""
    second_text: int = 0
    """Index of the first token of a pair's second text; 0: none is told apart by its type."""
    media: Sequence[engine_pb2.MediaItem] = ()
    """What the model's encoder makes vectors of, in place of tokens; none where nothing is generated, and
    once they are packed."""
    packed_media: bytes | bytearray = b""
    """The same as a serialized FrontendMessage with AddRequest.media alone, which is sent behind the rest of
    the request. Not kept once it is sent."""
    num_media_tokens: int = 0
    """These tokens."""
    num_virtual: int = 0
    """First tokens that stand for embeddings of an adapter, and whose ids mean nothing."""

    @property
    def known_ids(self) -> "array[int]":
        """The token ids, of which embeddings have none."""
        return self.token_ids[self.num_virtual :] if self.embeddings is None else array("I")


class PromptEncoder:
    """A tokenizer and a chat template. Methods may be called from several threads."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        chat_template: ChatTemplate | None,
        answers: AnswerFormats | None = None,
        pair_template: PairTemplate | None = None,
        images: Images | Audio | None = None,
    ) -> None:
        """answers: how the model writes them; None: as text. pair_template: None: pairs are
        those of the tokenizer. images: of the model's images or sounds; None: it takes
        none."""
        self._tokenizer = tokenizer
        self._chat_template = chat_template
        self._answers = answers
        self._pair_template = pair_template
        self._images = images or Images()
        self._control_tokens = ControlTokens(tokenizer)

    def grammar(self, form: reader_pb2.AnswerForm) -> str:
        """Returns the grammar of an answer's form. Raises InvalidRequest and Unsupported."""
        return self._judge.compile(form)

    @cached_property
    def _judge(self) -> "AnswerJudge":
        from frontend.grammar.answer import AnswerJudge  # loads llguidance, which few requests need

        tools, reasoning = (
            (self._answers.tools, self._answers.reasoning) if self._answers is not None else (None, None)
        )
        return AnswerJudge(self._tokenizer.grammar_tokens, tools, reasoning)

    def words(self, words: Sequence[str]) -> list[list[int]]:
        """Returns token ids of words, each at the beginning of a text, after a space, and after other text,
        without duplicates."""
        spellings = dict.fromkeys(spelling for word in words for spelling in (word, " " + word))
        encodings = [
            self._tokenizer.encode(spelling, add_special_tokens=False).token_ids for spelling in spellings
        ]
        encodings += map(self._tokenizer.encode_following, words)
        return [list(ids) for ids in dict.fromkeys(map(tuple, encodings)) if ids]

    def continuations(self, texts: Sequence[str]) -> list[list[int]]:
        """Returns token ids of texts that continue a prompt."""
        return [self._tokenizer.encode_following(text) for text in texts]

    def read(
        self,
        prompt: prompt_pb2.Prompt,
        path: str,
        *,
        vocab_size: int,
        max_model_len: int | None = None,
        offsets: bool = False,
    ) -> TokenizedPrompt:
        """Tokenizes a prompt. Raises InvalidRequest.

        max_model_len: the prompt is for generation; one that its size alone shows to be too long is not
        tokenized.
        """
        limit = None if prompt.HasField("truncate_to") else max_model_len
        max_bytes = MAX_TEXT if max_model_len is None else max(MIN_TEXT, BYTES_PER_TOKEN * max_model_len)
        if prompt.HasField("token_ids"):
            ids, text = prompt.token_ids.ids, ""
            encoding = _prompt_of_ids(ids, path, vocab_size, max_bytes // BYTES_PER_ID, limit)
            if offsets:
                raise InvalidRequest({f"{path}.token_ids": "has no text for offsets to point into"})
        elif prompt.HasField("chat"):
            text, encoding = self._read_chat(prompt, path, max_bytes, limit, offsets)
        else:
            special = prompt.add_special_tokens if prompt.HasField("add_special_tokens") else True
            text = prompt.text
            self._check_size(text, path, "text", max_bytes, limit)
            encoding = self._tokenizer.encode(text, add_special_tokens=special, offsets=offsets)
        encoding, media = self._with_media(encoding, prompt, path)
        if (
            media and limit is not None and len(encoding.token_ids) > limit
        ):  # before the pixels leave this process
            raise ContextLengthExceeded(path, len(encoding.token_ids), limit)
        kept, token_ids = _kept(encoding, prompt), array("I")
        for part in kept:
            token_ids += copy_token_ids(encoding.token_ids[part.start : part.stop])
        return TokenizedPrompt(
            token_ids=token_ids,
            text=text,
            offsets=[encoding.offsets[place] for part in kept for place in part] if offsets else (),
            num_truncated=len(encoding.token_ids) - len(token_ids),
            media=media if max_model_len is not None else (),
            num_media_tokens=num_positions(media),
        )

    def _with_media(
        self, encoding: Encoding, prompt: prompt_pb2.Prompt, path: str
    ) -> tuple[Encoding, Sequence[engine_pb2.MediaItem]]:
        """Returns a prompt with its media in place of their placeholders. Raises InvalidRequest."""
        media, reader = list(media_of(prompt, path)), self._images.reader
        if reader is not None:
            return reader.expand(encoding, media, field_of(prompt, path))
        if media:
            why = self._images.caveat or "the model sees none"
            raise Unsupported({media[0][0]: f"is not served: {why}"})
        return encoding, ()

    def pair(self, pair: reader_pb2.ReadPair) -> TokenizedPrompt:
        """Tokenizes the prompt of a query and a document. Raises InvalidRequest."""
        most, document = pair.max_model_len, pair.document
        if not document.HasField("truncate_to"):
            encoding = self._encode_pair(pair, document.text)
            return TokenizedPrompt(array("I", encoding.token_ids), second_text=encoding.second_text)
        self._check_size(document.text, pair.path, "text", max(MIN_TEXT, BYTES_PER_TOKEN * most), None)
        alone = self._tokenizer.encode(document.text, add_special_tokens=False, offsets=True)
        count, empty = len(alone.token_ids), len(self._encode_pair(pair, "").token_ids)
        kept = min(count, document.truncate_to, max(most - empty, 0))
        encoding = self._encode_pair(pair, _cut(document, alone, kept))
        if len(encoding.token_ids) > most:
            kept = max(kept - _SLACK, 0)
            encoding = self._encode_pair(pair, _cut(document, alone, kept))
        ids = array("I", encoding.token_ids)
        return TokenizedPrompt(ids, num_truncated=count - kept, second_text=encoding.second_text)

    def _encode_pair(self, pair: reader_pb2.ReadPair, document: str) -> Encoding:
        most = pair.max_model_len
        if self._pair_template is None:
            most_bytes = max(MIN_TEXT, BYTES_PER_TOKEN * most)
            self._check_size(pair.query + document, pair.path, "text", most_bytes, most)
            return self._tokenizer.encode_pair(pair.query, document)
        text = self._pair_template.render(pair.query, document, pair.instruction, pair.path)
        self._check_size(text, pair.path, "text", max(MIN_TEXT, BYTES_PER_TOKEN * most), most)
        encoding = self._control_tokens.encode(text, add_special_tokens=False)
        assert encoding is not None  # no offsets are requested
        return encoding

    def _read_chat(
        self, prompt: prompt_pb2.Prompt, path: str, max_bytes: int, limit: int | None, offsets: bool
    ) -> tuple[str, Encoding]:
        chat = f"{path}.chat"
        if self._chat_template is None:
            raise Unsupported({chat: "the model has no chat template"})
        _check_bytes(_text_size(prompt.chat), max_bytes, chat)
        reader = self._images.reader
        medium = () if reader is None else (reader.placeholder, reader.part_type)
        text = self._chat_template.render(self._chat_template.read(prompt.chat, chat, *medium), chat)
        self._check_size(text, path, "chat", max_bytes, limit)
        special = prompt.add_special_tokens  # default false: templates carry their own
        encoding = self._control_tokens.encode(text, add_special_tokens=special, offsets=offsets)
        if encoding is None:
            problem = "offsets are not known where a message contains the text of a control token"
            raise InvalidRequest({chat: problem})
        return text.plain if isinstance(text, Tainted) else text, encoding

    def _check_size(self, text: str, path: str, kind: str, max_bytes: int, limit: int | None) -> None:
        longest = self._tokenizer.longest_token
        if limit is not None and longest is not None:
            at_least = -(-len(text) // longest)  # a character has at least one byte
            if at_least > limit:
                raise ContextLengthExceeded(path, at_least, limit, at_least=True)
        size = len(text) if text.isascii() else len(text.encode())
        _check_bytes(size, max_bytes, f"{path}.{kind}")


def packed(prompt: TokenizedPrompt) -> TokenizedPrompt:
    """Returns a prompt whose media are serialized, as they are passed on."""
    if not prompt.media:
        return prompt
    message = engine_pb2.FrontendMessage(add_request=engine_pb2.AddRequest(media=prompt.media))
    return replace(prompt, media=(), packed_media=message.SerializeToString())


def num_positions(media: Iterable[engine_pb2.MediaItem]) -> int:
    """Returns the number of tokens that vectors of items stand in place of."""
    return sum(len(item.positions) for item in media) // 4


def _text_size(chat: prompt_pb2.Chat) -> int:
    """Returns the characters of a conversation's texts."""
    size = sum(len(tool.parameters) + len(tool.description) for tool in chat.tools)
    for message in chat.messages:
        size += len(message.reasoning) + sum(len(part.text) for part in message.content)
        size += sum(len(call.arguments) for call in message.tool_calls)
    return size


def _check_bytes(size: int, max_bytes: int, path: str) -> None:
    if size > max_bytes:
        raise InvalidRequest({path: f"must be at most {max_bytes} bytes of text, not {size}"})


def copy_token_ids(ids: Sequence[int]) -> "array[int]":
    """Copies a repeated field into an array, in pieces: each piece is one C call that holds the GIL."""
    token_ids = array("I")
    for start in range(0, len(ids), _PIECE):
        token_ids.extend(ids[start : start + _PIECE])
    return token_ids


def read_token_ids(ids: Sequence[int], vocab_size: int, path: str) -> "array[int]":
    """Copies token ids that are many and checks them, in pieces. Raises InvalidRequest."""
    token_ids = copy_token_ids(ids)
    for start in range(0, len(token_ids), _PIECE):
        check_token_ids(token_ids[start : start + _PIECE], vocab_size, path)
    return token_ids


def _prompt_of_ids(
    ids: Sequence[int], path: str, vocab_size: int, max_ids: int, limit: int | None
) -> Encoding:
    if limit is not None and len(ids) > limit:
        raise ContextLengthExceeded(path, len(ids), limit)
    if len(ids) > max_ids:
        raise InvalidRequest({f"{path}.token_ids.ids": f"must be at most {max_ids} ids, not {len(ids)}"})
    token_ids = read_token_ids(ids, vocab_size, f"{path}.token_ids.ids")
    return Encoding(token_ids, bytes(len(token_ids)), ())


def _kept(encoding: Encoding, prompt: prompt_pb2.Prompt) -> list[range]:
    """Returns the ranges of tokens that truncation keeps; tokens that the tokenizer added (BOS)
    always stay."""
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


def _cut(document: prompt_pb2.Prompt, alone: Encoding, kept: int) -> str:
    """Returns so many tokens of a document, at the side that it keeps. alone: all of it, with offsets."""
    cut = len(alone.token_ids) - kept
    if not cut:
        return document.text
    if document.truncation_side == prompt_pb2.TRUNCATION_SIDE_RIGHT:
        return document.text[: alone.offsets[kept][0]]
    return document.text[alone.offsets[cut - 1][1] :]
