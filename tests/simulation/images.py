"""Images of a simulation: a few, which many requests have, beside an encoder with little room."""

from dataclasses import dataclass, field
from random import Random

from pagewire.internal.v1.engine_pb2 import MEDIA_KIND_IMAGE, MediaItem
from pagewire.ipc.columns import pack_u32
from pagewire.media import media_digest


@dataclass
class Images:
    """All of a simulation."""

    sizes: list[int]
    """Vectors of each image."""
    settings: dict[str, int]
    """Of the encoder, as flags."""
    whole: bool = False
    """Whether tokens of an image see all of it, so that no chunk cuts one."""
    _by_seed: dict[int, list[MediaItem]] = field(default_factory=dict)

    def show(self, seed: int, prompt_len: int, random: Random) -> list[MediaItem]:
        """Puts images into the prompt of the request with this seed; returns its items. Half of the prompts
        have the same images at the same positions, as far as they are long enough."""
        if random.random() < 0.3:
            return []
        chosen = Random(0) if random.random() < 0.5 else random
        items, position = list[MediaItem](), 0
        while len(items) < 5:
            position += chosen.choice([0, 0, 1, 4])
            number = chosen.randrange(len(self.sizes))
            size, step = self.sizes[number], 1 if self.whole else chosen.choice([1, 1, 1, 2])
            if position + size * step > prompt_len:
                break
            positions = range(position, position + size * step, step)
            items.append(image(number, size))
            items[-1].positions = pack_u32(list(positions))
            position = positions.stop
        self._by_seed[seed] = items
        return items

    def of_request(self, seed: int) -> list[MediaItem]:
        """Returns the items of the request with this seed."""
        return self._by_seed.get(seed, [])


def image(number: int, size: int) -> MediaItem:
    """Returns an image of so many vectors, without positions."""
    shape, data = (2, 2 * size, 3), bytes([number]) * (12 * size)
    digest = media_digest(MEDIA_KIND_IMAGE, shape, data)
    return MediaItem(kind=MEDIA_KIND_IMAGE, shape=shape, data=data, digest=digest)


def draw_images(seed: int) -> Images:
    """Draws images, and an encoder that has room for one or more of them."""
    random = Random(f"images {seed}")
    sizes = [random.choice([1, 2, 3, 5, 8, 12]) for _ in range(random.choice([1, 2, 4, 6]))]
    settings = {
        "encoder_cache_tokens": max(sizes) + random.choice([0, 0, 1, 8, 40]),
        "max_num_encoder_tokens": random.choice([1, 3, 8, 40]),
    }
    return Images(sizes, settings, whole=Random(f"whole {seed}").random() < 0.5)
