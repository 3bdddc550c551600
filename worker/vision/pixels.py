"""Pixels of 8 bits as a tower reads them, with the bits of transformers.

Its processors compute (float32(pixel * scale) - mean) / std, the product in float64, the rest in float32 (the
backend of Pillow); that of Llama 4 all in bfloat16. A channel has 256 values: they are computed once, and
looked up.
"""

import numpy as np
import torch

from worker.config.vision import PixelsConfig


def pixel_table(config: PixelsConfig) -> torch.Tensor:
    """Returns what each value of each channel becomes, [3, 256] float32."""
    if config.rounds:
        values = torch.arange(256, dtype=torch.bfloat16) * config.scale
        of_channels = (
            torch.tensor(each, dtype=torch.bfloat16)[:, None] for each in (config.mean, config.std)
        )
        subtracted, divisor = of_channels
        return ((values - subtracted) / divisor).float()
    scaled = (np.arange(256, dtype=np.float64) * config.scale).astype(np.float32)
    mean, std = (np.array(each, np.float32)[:, None] for each in (config.mean, config.std))
    return torch.from_numpy((scaled - mean) / std)


def normalized(pixels: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
    """[..., height, width, 3] uint8 -> the same, float32."""
    return table[torch.arange(3, device=table.device), pixels.long()]


def patches(x: torch.Tensor, size: int, frames: int = 1, *, channels_last: bool = False) -> torch.Tensor:
    """[height, width, 3] -> [N, 3 * frames * size * size]: the patches row after row, in each the channels
    one after the other, and of each so many equal frames, as a convolution's weight has them; or of one frame
    the channels of each pixel side by side. Of x [frames, height, width, 3] these frames. What is left at the
    lower and right edges is not used."""
    if x.dim() == 4:
        of_frames = [patches(frame, size) for frame in x]
        return torch.stack([each.view(len(each), 3, -1) for each in of_frames], 2).flatten(1)
    rows, columns = x.shape[0] // size, x.shape[1] // size
    whole = x[: rows * size, : columns * size].reshape(rows, size, columns, size, 3)
    if channels_last:
        return whole.transpose(1, 2).reshape(rows * columns, -1)
    cut = whole.permute(0, 2, 4, 1, 3)[:, :, :, None]  # [rows, columns, 3, 1, size, size]
    return cut.expand(-1, -1, -1, frames, -1, -1).reshape(rows * columns, -1)
