"""Writes a target and a draft model that agree as often as wanted, for benchmarks.speculation.

    python -m benchmarks.draft_pairs CHECKPOINT FOLDER --layers 3 --noise 0.1
    python -m benchmarks.draft_pairs CHECKPOINT FOLDER --layers 1 --part 4 --noise 0.1

The draft model is the first layers of a Llama-like checkpoint; of each, with --part 4, the first quarter of
the hidden state, of the intermediate one and of the KV heads (at least one, with their query heads), and of
the head: as small beside its target as the draft models that come with large ones. The target has all of the
checkpoint's matrices, but what the draft model does not have is multiplied by the noise where it is added to
hidden states: 0 makes two models that always agree, 1 leaves the layers as they are. So the target costs what
the checkpoint costs, and the draft model its share.

Where the draft model has a part of the hidden state, the target's other part begins as zeros. Its norms then
divide by a mean of squares that is smaller by this part, which their weights make good: exactly, where the
part's square root is a power of two.
"""

import argparse
import json
import math
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

_LAYER = re.compile(r"model\.layers\.(\d+)\.")
_ADDED = ("self_attn.o_proj.weight", "mlp.down_proj.weight")
"""What adds to the hidden states."""
_EMBEDDING, _HEAD = "model.embed_tokens.weight", "lm_head.weight"


@dataclass(frozen=True)
class DraftShape:
    """What the draft model has of a checkpoint: layers, and of each the first sizes."""

    layers: int
    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    head_dim: int
    part: int

    @classmethod
    def of(cls, config: Mapping[str, Any], layers: int, part: int) -> "DraftShape":
        """config: the checkpoint's. part: 1 of so many."""
        hidden, heads, kv_heads = (
            config[name] for name in ("hidden_size", "num_attention_heads", "num_key_value_heads")
        )
        head_dim, own = config.get("head_dim") or hidden // heads, max(1, kv_heads // part)
        own_heads = own * (heads // kv_heads)
        return cls(
            layers, hidden // part, config["intermediate_size"] // part, own_heads, own, head_dim, part
        )

    def config(self, config: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the draft model's, of the checkpoint's."""
        return dict(config) | {
            "num_hidden_layers": self.layers,
            "hidden_size": self.hidden,
            "intermediate_size": self.intermediate,
            "num_attention_heads": self.heads,
            "num_key_value_heads": self.kv_heads,
            "head_dim": self.head_dim,
            "rms_norm_eps": config["rms_norm_eps"] * self.part,
        }

    def cut(self, name: str, tensor: torch.Tensor) -> torch.Tensor:
        """Returns the part of a tensor that the draft model has, a view."""
        queries, keys = self.heads * self.head_dim, self.kv_heads * self.head_dim
        ends = {
            "q_proj": (queries, self.hidden),
            "k_proj": (keys, self.hidden),
            "v_proj": (keys, self.hidden),
            "o_proj": (self.hidden, queries),
            "gate_proj": (self.intermediate, self.hidden),
            "up_proj": (self.intermediate, self.hidden),
            "down_proj": (self.hidden, self.intermediate),
            "embed_tokens": (len(tensor), self.hidden),
            "lm_head": (len(tensor), self.hidden),
        }.get(name.split(".")[-2], (self.hidden,))
        return tensor[tuple(slice(end) for end in ends[: tensor.dim()])]

    def of_target(self, name: str, tensor: torch.Tensor, noise: float) -> torch.Tensor:
        """Returns the tensor of the target."""
        layer = _layer(name)
        if name.endswith(_ADDED) and layer >= self.layers:
            return tensor * noise
        if self.part == 1:
            return tensor
        if name.endswith("norm.weight"):
            return tensor / math.sqrt(self.part)
        if name.endswith(_ADDED) or name == _EMBEDDING:
            other = tensor * (noise if name.endswith(_ADDED) else 0.0)
            self.cut(name, other).copy_(self.cut(name, tensor))
            return other
        return tensor


def write_pair(checkpoint: Path, folder: Path, layers: int, noise: float, part: int = 1) -> tuple[Path, Path]:
    """Writes FOLDER/target and FOLDER/draft of that many layers; returns both."""
    config = json.loads((checkpoint / "config.json").read_text())
    shape = DraftShape.of(config, layers, part)
    weights: dict[str, torch.Tensor] = {}
    for file in sorted(checkpoint.glob("*.safetensors")):
        weights |= load_file(file)
    draft = {name: shape.cut(name, tensor) for name, tensor in weights.items() if _layer(name) < layers}
    target = {name: shape.of_target(name, tensor, noise) for name, tensor in weights.items()}
    if part > 1 and _HEAD not in target:
        target[_HEAD] = weights[_EMBEDDING]
    configs = config | ({"tie_word_embeddings": False} if part > 1 else {}), shape.config(config)
    pair = folder / "target", folder / "draft"
    for path, tensors, own in zip(pair, (target, draft), configs, strict=True):
        path.mkdir(parents=True, exist_ok=True)
        for file in checkpoint.iterdir():
            if file.is_file() and ".safetensors" not in file.name:
                shutil.copy(file, path)
        named = {name: tensor.contiguous() for name, tensor in tensors.items()}
        save_file(named, path / "model.safetensors", {"format": "pt"})
        (path / "config.json").write_text(json.dumps(own))
    return pair


def _layer(name: str) -> int:
    """Returns the number of the layer that a tensor belongs to; -1: to none."""
    found = _LAYER.match(name)
    return int(found[1]) if found else -1


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--layers", type=int, default=3, help="of the draft model")
    parser.add_argument("--part", type=int, default=1, help="1 of so many of the hidden state: 1, 4 or 16")
    parser.add_argument("--noise", type=float, default=0.1)
    options = parser.parse_args()
    for path in write_pair(options.checkpoint, options.folder, options.layers, options.noise, options.part):
        print(path)


if __name__ == "__main__":
    main()
