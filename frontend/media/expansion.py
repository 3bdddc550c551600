"""Puts the media of a prompt in place of their placeholders."""

from abc import ABC, abstractmethod
from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

from frontend.errors import InvalidRequest
from frontend.media.family import NotServed, Vectors
from frontend.text.tokenizer import Encoding, Tokenizer
from pagewire.internal.v1 import engine_pb2
from pagewire.ipc.columns import pack_u32
from pagewire.limits import MAX_MEDIA_BYTES
from pagewire.v1 import prompt_pb2

NamedMedia = Sequence[tuple[str, prompt_pb2.Media]]
"""Media with their paths in a request."""
_KEPT = 4096
"""Texts and tokens whose tokens and line breaks are remembered."""


@dataclass(frozen=True, slots=True)
class Prepared:
    """What stands for one medium.

    items:  what the encoder takes, without positions.
    pieces: what a prompt has in place of the medium's placeholder: see Cut.
    """

    items: Sequence[engine_pb2.MediaItem]
    pieces: Sequence[str | Vectors]


class _Expanded:
    """The tokens of a prompt, read one by one, and those that are made of them."""

    def __init__(self, encoding: Encoding) -> None:
        self.token_ids = array("I")
        self._given, self._place = encoding, -1
        self._places = array("I")  # of the given token that each is made of

    @property
    def given(self) -> Sequence[int]:
        """The tokens of the prompt."""
        return self._given.token_ids

    def next_token(self) -> int | None:
        """Goes on to the next given token, and returns it; None: there is none."""
        self._place += 1
        return self._given.token_ids[self._place] if self._place < len(self._given.token_ids) else None

    def extend(self, token_ids: Sequence[int]) -> None:
        """Adds tokens in place of the given one."""
        self.token_ids.extend(token_ids)
        self._places.extend([self._place] * len(token_ids))

    def take_back(self, breaks_of: Callable[[int], int]) -> int:
        """Removes the line breaks that were added last. Returns how many."""
        count = 0
        while self.token_ids and (found := breaks_of(self.token_ids[-1])):
            count += found
            self.token_ids.pop()
            self._places.pop()
        return count

    def skip(self, breaks_of: Callable[[int], int]) -> int:
        """Goes on behind the line breaks that are given next. Returns how many."""
        count, given = 0, self._given.token_ids
        while self._place + 1 < len(given) and (found := breaks_of(given[self._place + 1])):
            count += found
            self._place += 1
        return count

    def encoding(self) -> Encoding:
        """Returns what was made."""
        given = self._given
        offsets = [given.offsets[place] for place in self._places] if given.offsets else []
        return Encoding(self.token_ids, bytes(given.added[place] for place in self._places), offsets)


class MediaReader(ABC):
    """The media of a model. Methods may be called from several threads."""

    part_type: str
    """Type of a part that is a medium, for chat templates."""

    def __init__(self, placeholder: str, tokenizer: Tokenizer) -> None:
        """placeholder: what stands for a medium in the text of a prompt. Raises NotServed where the
        vocabulary has no such token."""
        token = tokenizer.token_id(placeholder)
        if token is None:
            raise NotServed(f"the vocabulary has no token {placeholder}")
        self.placeholder, self._tokenizer, self._token = placeholder, tokenizer, token
        self._ids_of, self._breaks_of = lru_cache(_KEPT)(self._tokenize), lru_cache(_KEPT)(self._count_breaks)

    @abstractmethod
    def prepare(self, media: NamedMedia, path: str) -> Iterator[Prepared]:
        """Yields what stands for each medium, all of which are judged by their headers first. path: of the
        field that has the media. Raises InvalidRequest."""

    def expand(
        self, encoding: Encoding, media: NamedMedia, path: str
    ) -> tuple[Encoding, list[engine_pb2.MediaItem]]:
        """Returns a prompt whose placeholders are the tokens of media, and what the encoder takes, in order
        of positions. path: of the field that has the media, for errors. Raises InvalidRequest."""
        count = encoding.token_ids.count(self._token)
        if count != len(media):
            problem = f"must be as many as the placeholders {self.placeholder} of the prompt: {count}"
            raise InvalidRequest({path: f"{problem}, not {len(media)}"})
        if not media:
            return encoding, []
        made, items = _Expanded(encoding), list[engine_pb2.MediaItem]()
        prepared, num_bytes = self.prepare(media, path), 0
        while (token := made.next_token()) is not None:
            if token != self._token:
                made.extend((token,))
                continue
            found = self._put(next(prepared), made, path)
            num_bytes += sum(len(item.data) for item in found)
            if num_bytes > MAX_MEDIA_BYTES:
                problem = f"are more than {MAX_MEDIA_BYTES} bytes in all as the encoder takes them"
                raise InvalidRequest({path: problem})
            items += found
        return made.encoding(), items

    def _put(self, one: Prepared, made: "_Expanded", path: str) -> list[engine_pb2.MediaItem]:
        """Adds the tokens of a medium to a prompt. Returns its items. path: of the field that has it. Raises
        InvalidRequest."""
        positions = [list[int]() for _ in one.items]
        for number, piece in enumerate(one.pieces):
            if isinstance(piece, Vectors):
                begin = len(made.token_ids)
                positions[piece.item].extend(range(begin, begin + piece.count))
                token = self._tokenizer.token_id(piece.token) if piece.token else self._token
                if token is None:
                    problem = f"are not served: the vocabulary has no token {piece.token}"
                    raise InvalidRequest({path: problem})
                if token != self._token and token in made.given:
                    raise InvalidRequest(
                        {path: f"stand for tokens {piece.token} that the prompt has already"}
                    )
                made.extend([token] * piece.count)
                continue
            if piece.strip("\n") == "":
                piece += "\n" * (made.take_back(self._breaks_of) if number == 0 else 0)
                piece += "\n" * (made.skip(self._breaks_of) if number == len(one.pieces) - 1 else 0)
            made.extend(self._ids_of(piece))
        for item, places in zip(one.items, positions, strict=True):
            item.positions = pack_u32(places)
        return list(one.items)

    def _count_breaks(self, token: int) -> int:
        """Returns how many line breaks a token is; 0 for one that is anything else."""
        text = self._tokenizer.token_bytes(token)
        return 0 if text.strip(b"\n") else len(text)

    def _tokenize(self, text: str) -> list[int]:
        token = self._tokenizer.token_id(text)
        return [token] if token is not None else self._tokenizer.encode_following(text)
