"""Writes a target and a draft model that agree as often as wanted, for benchmarks.speculation.

    python -m benchmarks.draft_pairs CHECKPOINT FOLDER --layers 3 --noise 0.1

The draft model is the first layers of a Llama-like checkpoint. The target has all layers, but what the others
add to the hidden states is multiplied by the noise: 0 makes two models that always agree, 1 leaves the
checkpoint as it is. So the target costs what the checkpoint costs, and the draft model its share.
"""

import argparse
import json
import re
import shutil
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

_LAYER = re.compile(r"model\.layers\.(\d+)\.")
_ADDED = ("self_attn.o_proj.weight", "mlp.down_proj.weight")
"""What adds to the hidden states."""


def write_pair(checkpoint: Path, folder: Path, layers: int, noise: float) -> tuple[Path, Path]:
    """Writes FOLDER/target and FOLDER/draft of that many layers; returns both."""
    weights: dict[str, torch.Tensor] = {}
    for file in sorted(checkpoint.glob("*.safetensors")):
        weights |= load_file(file)
    target = {name: _scaled(name, tensor, layers, noise) for name, tensor in weights.items()}
    draft = {name: tensor for name, tensor in weights.items() if _layer(name) < layers}
    pair = folder / "target", folder / "draft"
    for path, tensors in zip(pair, (target, draft), strict=True):
        path.mkdir(parents=True, exist_ok=True)
        for file in checkpoint.iterdir():
            if file.is_file() and ".safetensors" not in file.name:
                shutil.copy(file, path)
        save_file(tensors, path / "model.safetensors", {"format": "pt"})
    config = json.loads((checkpoint / "config.json").read_text()) | {"num_hidden_layers": layers}
    (pair[1] / "config.json").write_text(json.dumps(config))
    return pair


def _scaled(name: str, tensor: torch.Tensor, layers: int, noise: float) -> torch.Tensor:
    """Returns the tensor of the target."""
    return tensor * noise if _layer(name) >= layers and name.endswith(_ADDED) else tensor


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
    parser.add_argument("--noise", type=float, default=0.1)
    options = parser.parse_args()
    for path in write_pair(options.checkpoint, options.folder, options.layers, options.noise):
        print(path)


if __name__ == "__main__":
    main()
