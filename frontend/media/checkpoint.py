"""Whether a checkpoint's images are served: config.json, preprocessor_config.json, processor_config.json.

A checkpoint with an encoder that is not known here is served as text alone, and says why.
"""

import importlib.util
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from frontend.media.family import ImageFiles, NotServed, Settings
from frontend.text.tokenizer import Tokenizer
from frontend.text.tokenizer_files import read_json, tokenizer_config

if TYPE_CHECKING:
    from frontend.media.reader import ImageReader

log = logging.getLogger(__name__)
NO_PILLOW = "Pillow is not installed, which pip install 'pagewire[images]' brings"
PREPROCESSOR, PROCESSOR, TYPE = "preprocessor_config.json", "processor_config.json", "image_processor_type"
VIDEOS = "video_preprocessor_config.json"
_FAST = "Fast"
"""Ends the names of image processors that compute with torch."""


@dataclass(frozen=True, slots=True)
class Images:
    """How images are read, or why they are not.

    reader: None: they are not.
    caveat: why, of a model with an encoder for them; empty: they are, or there is no encoder.
    """

    reader: "ImageReader | None" = None
    caveat: str = ""


def read_images(path: Path, config: Mapping[str, Any], tokenizer: Tokenizer) -> Images:
    """Returns how images are read for a checkpoint. path: its folder or file. config: its config.json. Raises
    StartupError for files that cannot be read."""
    if not isinstance(config.get("vision_config"), dict) or not path.is_dir():
        return Images()
    try:
        files = _files(path, Settings("config.json", config))
        if importlib.util.find_spec("PIL") is None:
            raise NotServed(NO_PILLOW)
        from frontend.media.families import family_of
        from frontend.media.reader import ImageReader

        return Images(ImageReader(family_of(files), tokenizer))
    except NotServed as error:
        log.warning("the model sees images, and is served text alone: %s", error)
        return Images(caveat=str(error))


def _files(path: Path, config: Settings) -> ImageFiles:
    processor = Settings(PROCESSOR, read_json(path / PROCESSOR))
    images = processor.part("image_processor")
    if not images.values:
        images = Settings(PREPROCESSOR, read_json(path / PREPROCESSOR))
    if not images.values:
        raise NotServed(f"there is no {PREPROCESSOR}")
    name = images.text(TYPE).removesuffix(_FAST)
    images = Settings(images.name, {**images.values, TYPE: name})
    videos = processor.part("video_processor")
    if not videos.values:
        videos = Settings(VIDEOS, read_json(path / VIDEOS))
    tokens = Settings("tokenizer_config.json", tokenizer_config(path)).part("extra_special_tokens")
    return ImageFiles(config, processor, images, videos, tokens)
