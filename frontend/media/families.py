"""The families whose images are read."""

from frontend.media.family import ImageFamily, ImageFiles, NotServed
from frontend.media.gemma3 import Gemma3
from frontend.media.gemma4 import Gemma4, Gemma4Unified
from frontend.media.idefics3 import Idefics3
from frontend.media.internvl import InternVL
from frontend.media.llama4 import Llama4
from frontend.media.llava import Llava
from frontend.media.pixtral import Pixtral
from frontend.media.qwen3_vl import Qwen3VL
from frontend.media.qwen_vl import QwenVL

_KNOWN: dict[tuple[str, str], type[ImageFamily]] = {
    ("gemma3", "Gemma3ImageProcessor"): Gemma3,
    ("gemma4", "Gemma4ImageProcessor"): Gemma4,
    ("gemma4_unified", "Gemma4UnifiedImageProcessor"): Gemma4Unified,
    ("idefics3", "Idefics3ImageProcessor"): Idefics3,
    ("internvl", "GotOcr2ImageProcessor"): InternVL,
    ("llama4", "Llama4ImageProcessor"): Llama4,
    ("llava", "CLIPImageProcessor"): Llava,
    ("llava", "LlavaImageProcessor"): Llava,
    ("llava", "PixtralImageProcessor"): Pixtral,
    ("llava", "SiglipImageProcessor"): Llava,
    ("mistral3", "PixtralImageProcessor"): Pixtral,
    ("qwen2_5_vl", "Qwen2VLImageProcessor"): QwenVL,
    ("qwen2_vl", "Qwen2VLImageProcessor"): QwenVL,
    ("qwen3_5", "Qwen2VLImageProcessor"): Qwen3VL,
    ("qwen3_5_moe", "Qwen2VLImageProcessor"): Qwen3VL,
    ("qwen3_vl", "Qwen2VLImageProcessor"): Qwen3VL,
    ("qwen3_vl_moe", "Qwen2VLImageProcessor"): Qwen3VL,
    ("smolvlm", "SmolVLMImageProcessor"): Idefics3,
}
"""By model_type of config.json, and the image processor."""


def family_of(files: ImageFiles) -> ImageFamily:
    """Returns the family of a checkpoint. Raises NotServed."""
    model, processor = files.config.text("model_type"), files.images.text("image_processor_type")
    if (family := _KNOWN.get((model, processor))) is not None:
        return family(files)
    raise NotServed(f"there is no image processor {processor or '?'} for models of the type {model or '?'}")
