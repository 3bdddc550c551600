"""Puts the media of a prompt in place of their placeholders."""

from abc import ABC, abstractmethod
from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

from frontend.errors import InvalidRequest, Unsupported
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
    around: see Cut.
    """

    items: Sequence[engine_pb2.MediaItem]
    pieces: Sequence[str | Vectors]
    around: tuple[str, str] | None = None


class _Expanded:
    """The tokens of a prompt, read one by one, and those that are made of them."""

    def __init__(self, encoding: Encoding) -> None:
        self.token_ids = array("I")
        self._given, self._place = encoding, -1
        self._places = array("I")  # of the given token that each is made of

    @cached_property
    def given_ids(self) -> frozenset[int]:
        """The different tokens of the prompt."""
        return frozenset(self._given.token_ids)

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

    def absorb(self, before: int | None, after: int | None) -> None:
        """Takes back the token that was added last, and goes on behind the next one, if they are these."""
        given, following = self._given.token_ids, self._place + 1
        is_before = len(self.token_ids) > 0 and self.token_ids[-1] == before
        if is_before and following < len(given) and given[following] == after:
            self.token_ids.pop()
            self._places.pop()
            self._place += 1

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
        self.tokens = {token}
        """Those that stand for a medium of some kind each."""
        self._ids_of, self._breaks_of = lru_cache(_KEPT)(self._tokenize), lru_cache(_KEPT)(self._count_breaks)

    @property
    def placeholders(self) -> str:
        """What stands for media in the text of a prompt, for errors."""
        return self.placeholder

    @property
    def no_videos(self) -> str:
        """Why there are none; empty: there are."""
        return "the model sees no videos"

    def token_of(self, medium: prompt_pb2.Media) -> int | None:
        """Returns the token that stands for a medium."""
        return self._token

    @abstractmethod
    def prepare(self, media: NamedMedia, path: str) -> Iterator[Prepared]:
        """Yields what stands for each medium, all of which are judged by their headers first. path: of the
        field that has the media. Raises InvalidRequest."""

    def expand(
        self, encoding: Encoding, media: NamedMedia, path: str
    ) -> tuple[Encoding, list[engine_pb2.MediaItem]]:
        """Returns a prompt whose placeholders are the tokens of media, and what the encoder takes, in order
        of positions. path: of the field that has the media, for errors. Raises InvalidRequest."""
        if why := self.no_videos:
            for where, each in media:
                if each.HasField("frames"):
                    raise Unsupported({where: f"is not served: {why}"})
        placeholders = [token for token in encoding.token_ids if token in self.tokens]
        if (count := len(placeholders)) != len(media):
            problem = f"must be as many as the placeholders {self.placeholders} of the prompt: {count}"
            raise InvalidRequest({path: f"{problem}, not {len(media)}"})
        if not media:
            return encoding, []
        for found, (where, each) in zip(placeholders, media, strict=True):
            if found != self.token_of(each):
                kinds = ("a video", "an image") if each.HasField("frames") else ("an image", "a video")
                raise InvalidRequest({where: f"is {kinds[0]}, and the prompt has {kinds[1]} in its place"})
        made, items = _Expanded(encoding), list[engine_pb2.MediaItem]()
        prepared, num_bytes = self.prepare(media, path), 0
        while (token := made.next_token()) is not None:
            if token not in self.tokens:
                made.extend((token,))
                continue
            put = self._put(next(prepared), made, path)
            num_bytes += sum(len(item.data) for item in put)
            if num_bytes > MAX_MEDIA_BYTES:
                problem = f"are more than {MAX_MEDIA_BYTES} bytes in all as the encoder takes them"
                raise InvalidRequest({path: problem})
            items += put
        return made.encoding(), items

    def _put(self, one: Prepared, made: "_Expanded", path: str) -> list[engine_pb2.MediaItem]:
        """Adds the tokens of a medium to a prompt. Returns its items. path: of the field that has it. Raises
        InvalidRequest."""
        positions = [list[int]() for _ in one.items]
        if one.around is not None:
            made.absorb(*map(self._tokenizer.token_id, one.around))
        for number, piece in enumerate(one.pieces):
            if isinstance(piece, Vectors):
                begin = len(made.token_ids)
                positions[piece.item].extend(range(begin, begin + piece.count))
                token = self._tokenizer.token_id(piece.token) if piece.token else self._token
                if token is None:
                    problem = f"are not served: the vocabulary has no token {piece.token}"
                    raise InvalidRequest({path: problem})
                if token not in self.tokens and token in made.given_ids:
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
