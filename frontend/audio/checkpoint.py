"""Whether a checkpoint's sounds are served: config.json and preprocessor_config.json."""

import importlib.util
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from frontend.audio.families import family_of, has_audio
from frontend.audio.family import read_features
from frontend.audio.reader import AudioReader
from frontend.media.checkpoint import PREPROCESSOR
from frontend.media.family import NotServed, Settings
from frontend.text.tokenizer import Tokenizer
from frontend.text.tokenizer_files import read_json

log = logging.getLogger(__name__)
NO_NUMPY = "numpy is not installed, which pip install 'pagewire[audio]' brings"


@dataclass(frozen=True, slots=True)
class Audio:
    """How sounds are read, or why they are not.

    reader: None: they are not.
    caveat: why, of a model with an encoder for them; empty: they are, or there is no encoder.
    """

    reader: AudioReader | None = None
    caveat: str = ""

    def __bool__(self) -> bool:
        """True for a model with an encoder for sounds."""
        return self.reader is not None or bool(self.caveat)


def read_audio(path: Path, config: Mapping[str, Any], tokenizer: Tokenizer) -> Audio:
    """Returns how sounds are read for a checkpoint. path: its folder or file. config: its config.json. Raises
    StartupError for files that cannot be read."""
    whole = Settings("config.json", config)
    if not path.is_dir() or not has_audio(whole):
        return Audio()
    try:
        if importlib.util.find_spec("numpy") is None:
            raise NotServed(NO_NUMPY)
        settings = Settings(PREPROCESSOR, read_json(path / PREPROCESSOR))
        if not settings.values:
            raise NotServed(f"there is no {PREPROCESSOR}")
        return Audio(AudioReader(family_of(whole, read_features(settings, whole)), tokenizer))
    except NotServed as error:
        log.warning("the model hears sounds, and is served text alone: %s", error)
        return Audio(caveat=str(error))
