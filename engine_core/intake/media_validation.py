"""Media of a prompt: whether they fit it and the model, and what the prefix cache knows of them."""

from collections.abc import Sequence
from math import prod
from struct import pack

from engine_core.context import Limits
from engine_core.errors import Refused
from engine_core.intake.positions import read_positions
from engine_core.step.plan import MediaItem
from pagewire.internal.v1 import engine_pb2
from pagewire.internal.v1.engine_pb2 import MEDIA_KIND_IMAGE, AddRequest
from pagewire.media import DIGEST_SIZE

PATH = "prompt.media"
_CHANNELS, _DIMENSIONS = 3, 3
_FLOAT_BYTES = 4


def read_media(message: AddRequest, prompt_len: int, limits: Limits) -> tuple[MediaItem, ...]:
    """Returns the media of a request, in order of their positions. Frontends make the digests, which are
    taken as they are. Raises Refused."""
    if not message.media:
        return ()
    if not limits.media_kinds:
        raise Refused(PATH, "are not served: the model has no encoder for them", "FEATURE_UNSUPPORTED")
    for field in ("embeddings", "prompt_logprobs", "pooling"):
        if message.HasField(field):
            raise Refused(PATH, f"cannot be combined with {field}", "FEATURE_UNSUPPORTED")
    if message.adapter.virtual_tokens:
        text = "cannot be combined with an adapter that has virtual tokens"
        raise Refused(PATH, text, "FEATURE_UNSUPPORTED")
    items = tuple(_item(each, prompt_len, limits) for each in message.media)
    for before, after in zip(items, items[1:], strict=False):
        if after.positions[0] <= before.positions[-1]:
            raise Refused(PATH, "are not in the order of their positions")
    return items


def media_contents(items: tuple[MediaItem, ...]) -> dict[int, bytes]:
    """Returns the digest of its item, and the number of the vector in it, for each position that has a
    vector: for Request.content_hashes."""
    return {
        position: item.digest + pack("<I", number)
        for item in items
        for number, position in enumerate(item.positions)
    }


def _item(given: engine_pb2.MediaItem, prompt_len: int, limits: Limits) -> MediaItem:
    if given.kind not in limits.media_kinds:
        raise Refused(PATH, "are of a kind that the model has no encoder for", "FEATURE_UNSUPPORTED")
    if len(given.digest) != DIGEST_SIZE:
        raise Refused(PATH, "are not resolved")
    shape, data = tuple(given.shape), given.data
    is_image = given.kind == MEDIA_KIND_IMAGE
    fits = len(shape) == 2
    if is_image:
        fits = len(shape) in (_DIMENSIONS, _DIMENSIONS + 1) and shape[-1] == _CHANNELS
    if not fits or not data or prod(shape) * (1 if is_image else _FLOAT_BYTES) != len(data):
        raise Refused(PATH, f"have the shape {shape} with {len(data)} bytes")
    positions = read_positions(PATH, given.positions, prompt_len)
    if len(positions) > limits.max_item_vectors:
        text = f"have an item of {len(positions)} vectors, of which the encoder cache holds"
        raise Refused(PATH, f"{text} {limits.max_item_vectors}", "MEDIA_TOO_LARGE")
    if limits.max_whole_item is not None:
        _check_whole(positions, limits.max_whole_item)
    return MediaItem(given.kind, shape, data, given.digest, positions)


def _check_whole(positions: Sequence[int], room: int) -> None:
    """Raises Refused for an item that no step can compute whole. room: vectors."""
    if positions[-1] - positions[0] >= len(positions):
        raise Refused(PATH, "have an item whose positions do not follow one another")
    if len(positions) > room:
        text = f"have an item of {len(positions)} vectors, which a step computes together, and has room for"
        todo = "more with a larger --max-num-batched-tokens, or fewer --max-num-seqs"
        raise Refused(PATH, f"{text} {max(room, 0)}: {todo}", "MEDIA_TOO_LARGE")
