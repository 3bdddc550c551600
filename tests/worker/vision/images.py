"""Images for the tests of encoders: items as the frontend makes them, and what transformers makes of them."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import transformers
from transformers import AutoModelForImageTextToText
from transformers.image_transforms import normalize, rescale
from transformers.models.gemma4_unified.modeling_gemma4_unified import (
    create_masks_for_vision_model,
    get_block_sequence_ids_for_mask,
)
from transformers.models.qwen3_vl.video_processing_qwen3_vl import Qwen3VLVideoProcessor

from pagewire.internal.v1.engine_pb2 import MEDIA_KIND_IMAGE, MediaItem
from pagewire.ipc.columns import pack_u32
from pagewire.media import media_digest
from tests.worker.fakes import Driver

Pixels = npt.NDArray[np.uint8]
SIZES: dict[str, tuple[tuple[int, int], ...]] = {
    "llava": ((56, 56),),
    "pixtral": ((24, 40), (64, 8), (16, 16)),
    "mistral3": ((32, 48), (16, 64), (48, 48)),
    "idefics3": ((32, 32),),
    "smolvlm": ((32, 32),),
    "internvl": ((28, 28),),
    "qwen2_vl": ((16, 32), (48, 8), (24, 24)),
    "qwen3_vl": ((16, 40), (8, 48), (8, 8)),
    "qwen3_vl_moe": ((24, 16), (8, 16), (16, 16)),
    "qwen3_5": ((8, 24), (24, 24), (16, 8)),
    "qwen2_5_vl": ((24, 40), (48, 8), (24, 24)),
    "gemma3": ((32, 32),),
    "gemma4": ((16, 24), (8, 40), (24, 16)),
    "gemma4_unified": ((16, 24), (8, 40), (24, 16)),
    "llama4": ((28, 28),),
}
"""Of images, in pixels: height, width."""
WHOLE = frozenset({"gemma3", "gemma4_unified"})
"""Families whose tokens of an image see one another."""


def make_image(family: str, number: int = 0) -> Pixels:
    """Returns one of a family's images, [height, width, 3]."""
    size = SIZES[family][number % len(SIZES[family])]
    return np.random.default_rng(number).integers(0, 256, (*size, 3), dtype=np.uint8)


def item_of(image: Pixels, positions: Sequence[int]) -> MediaItem:
    data, shape = image.tobytes(), image.shape
    digest = media_digest(MEDIA_KIND_IMAGE, shape, data)
    return MediaItem(
        kind=MEDIA_KIND_IMAGE, shape=shape, data=data, digest=digest, positions=pack_u32(positions)
    )


def prompt_of(
    driver: Driver, parts: Sequence[list[int] | Pixels], placeholder: int
) -> tuple[list[int], list[MediaItem]]:
    """Returns the ids of a prompt of token ids and images, and its items."""
    ids, items = list[int](), list[MediaItem]()
    vision = driver.runner.backend.model.vision  # type: ignore[attr-defined]
    for part in parts:
        if isinstance(part, list):
            ids += part
            continue
        count = vision.config.num_vectors(*part.shape[:2])
        items.append(item_of(part, range(len(ids), len(ids) + count)))
        ids += [placeholder] * count
    return ids, items


def pixels_of_llama4(image: torch.Tensor, images: Mapping[str, Any]) -> torch.Tensor:
    """[3, height, width] uint8 -> bfloat16, by the operations of its processor, which needs torchvision."""
    scaled = image.to(torch.bfloat16) * images["rescale_factor"]
    mean, std = (
        torch.as_tensor(images[name], dtype=torch.bfloat16)[:, None, None]
        for name in ("image_mean", "image_std")
    )
    return scaled.sub(mean).div_(std)


class Judge:
    """A model of transformers."""

    def __init__(self, folder: Path, family: str) -> None:
        self.family, self._images = family, json.loads((folder / "preprocessor_config.json").read_text())
        self.model: Any = AutoModelForImageTextToText.from_pretrained(folder, dtype=torch.float32).eval()
        config = self.model.config
        self.placeholder: int = config.image_token_id

    def pixel_values(self, image: Pixels) -> torch.Tensor:
        """[height, width, 3] -> [3, height, width] float32, by the steps of its processors."""
        scaled = rescale(image.transpose(2, 0, 1), self._images["rescale_factor"])
        if self.family == "gemma4":
            return 2 * (torch.from_numpy(scaled) - 0.5)
        mean, std = self._images["image_mean"], self._images["image_std"]
        if self.family == "llama4":
            return pixels_of_llama4(torch.from_numpy(image.transpose(2, 0, 1)), self._images).float()
        return torch.from_numpy(normalize(scaled, mean, std, input_data_format="channels_first"))

    def inputs(self, images: Sequence[Pixels]) -> dict[str, torch.Tensor]:
        """What the model's methods take of images, padded to the size of the largest one."""
        values = [self.pixel_values(image) for image in images]
        height, width = (max(each.shape[axis] for each in values) for axis in (1, 2))
        padded = torch.zeros(len(values), 3, height, width)
        for target, each in zip(padded, values, strict=True):
            target[:, : each.shape[1], : each.shape[2]] = each
        if self.family in ("idefics3", "smolvlm"):
            return {"pixel_values": padded[None]}
        if self.family.startswith("qwen"):
            return self._patches(images)
        if self.family == "gemma4_unified":
            return self._squares(values)
        if self.family == "gemma4":
            found = self._patches(images)
            return {name: found[name] for name in ("pixel_values", "image_position_ids")}
        if self.family in ("pixtral", "mistral3"):
            sizes = torch.tensor([each.shape[1:] for each in values])
            return {"pixel_values": padded, "image_sizes": sizes}
        return {"pixel_values": padded}

    def _squares(self, images: Sequence[torch.Tensor]) -> dict[str, torch.Tensor]:
        """Squares of patches, row after row, with their columns and rows, as transformers' processor merges
        them, which torchvision alone computes with."""
        side, most = self._images["patch_size"] * self._images["pooling_kernel_size"], 70
        values, places = torch.zeros(len(images), most, 3 * side**2), torch.full((len(images), most, 2), -1)
        for target, place, image in zip(values, places, images, strict=True):
            rows, columns = image.shape[1] // side, image.shape[2] // side
            cut = image.view(3, rows, side, columns, side).permute(1, 3, 2, 4, 0)
            target[: rows * columns] = cut.reshape(rows * columns, -1)
            grid = torch.meshgrid(torch.arange(rows), torch.arange(columns), indexing="ij")
            place[: rows * columns] = torch.stack(grid[::-1], 2).flatten(0, 1)
        return {"pixel_values": values, "image_position_ids": places}

    def _patches(self, images: Sequence[Pixels]) -> dict[str, torch.Tensor]:
        kind = getattr(transformers, self._images["image_processor_type"] + "Pil")
        processor = kind.from_dict(self._images)
        found = dict(processor(list(images), do_resize=False, return_tensors="pt"))
        return found

    def token_types(self, ids: list[int]) -> dict[str, torch.Tensor]:
        """Returns which ids stand for images, for models that ask."""
        are_images = torch.tensor([ids]) == self.placeholder
        if self.family == "gemma3":
            return {"token_type_ids": are_images.long()}
        typed = self.family.startswith("gemma4") or self.family.startswith("qwen")
        return {"mm_token_type_ids": are_images.int()} if typed else {}

    def _masks(self, ids: list[int]) -> dict[str, dict[str, torch.Tensor]]:
        """Returns the masks that transformers has for Gemma 4 of any size; forward() of 12B makes others, by
        which images are seen whole in layers without windows, too."""
        if self.family != "gemma4_unified":
            return {}
        config, (types,) = self.model.config.text_config, self.token_types(ids).values()
        masks = create_masks_for_vision_model(
            config,
            torch.zeros(1, len(ids), config.hidden_size),
            attention_mask=None,
            past_key_values=None,
            position_ids=torch.arange(len(ids))[None],
            block_sequence_ids=get_block_sequence_ids_for_mask(types, types.device),
        )
        return {"attention_mask": masks}

    def videos(self, videos: Sequence[Pixels]) -> dict[str, torch.Tensor]:
        """What the model's methods take of videos, [frames, height, width, 3] each."""
        sizes = [self._images[name] for name in ("patch_size", "merge_size", "temporal_patch_size")]
        values = [torch.stack([self.pixel_values(frame) for frame in video]) for video in videos]
        made = [Qwen3VLVideoProcessor.patchify(None, each[None], *sizes) for each in values]
        return {
            "pixel_values_videos": torch.cat([patches[0] for patches, *_ in made]),
            "video_grid_thw": torch.tensor([grid for _, *grid in made]),
        }

    @torch.inference_mode()
    def vectors(self, image: Pixels) -> torch.Tensor:
        """[n, D * E] of one image."""
        if self.family == "llama4":
            features = self.model.get_image_features(**self.inputs([image])).last_hidden_state
            projected: torch.Tensor = self.model.multi_modal_projector(features)[0]
            return projected
        found = self.model.model.get_image_features(**self.inputs([image]))
        parts = [found.pooler_output, *(getattr(found, "deepstack_features", None) or ())]
        return torch.cat([torch.cat([each.flatten(0, -2) for each in part]) for part in parts], 1)

    @torch.inference_mode()
    def logits(self, ids: list[int], images: Sequence[Pixels]) -> torch.Tensor:
        """[T, V]."""
        logits: torch.Tensor = self.model(
            input_ids=torch.tensor([ids]),
            **self.inputs(images),
            **self.token_types(ids),
            **self._masks(ids),
        ).logits[0]
        return logits

    def greedy(self, ids: list[int], images: Sequence[Pixels], count: int) -> list[int]:
        if self.family == "gemma4_unified":
            tokens = list(ids)
            for _ in range(count):
                tokens.append(int(self.logits(tokens, images)[-1].argmax()))
            return tokens[len(ids) :]
        found = self.model.generate(
            input_ids=torch.tensor([ids]),
            attention_mask=torch.ones(1, len(ids), dtype=torch.long),
            **self.inputs(images),
            **self.token_types(ids),
            max_new_tokens=count,
            do_sample=False,
            eos_token_id=[],
        )
        tokens = found[0, len(ids) :].tolist()
        return tokens
