"""What makes vectors of media, which stand in place of tokens of a decoder."""

from worker.audio.encoder import AudioEncoder
from worker.config.audio import AudioConfig
from worker.config.vision import VisionConfig
from worker.parallel import Placement
from worker.vision.encoder import ImageEncoder


def media_encoder(
    config: VisionConfig | AudioConfig, width: int, place: Placement
) -> ImageEncoder | AudioEncoder:
    """Returns the encoder of images or of sounds. width: of the decoder. place: of what every rank holds
    whole."""
    if isinstance(config, AudioConfig):
        return AudioEncoder(config, width, place)
    return ImageEncoder(config, width, place)
