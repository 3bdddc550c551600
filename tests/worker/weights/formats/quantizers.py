"""Writes quantized checkpoints for tests, in numpy, from the formats' descriptions.

A quantizer takes a weight [N, K] float32 and a module's name, and returns the stored tensors and what they
stand for. Each value is packed on its own, in a loop: nothing is shared with the readers.
"""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file, save_file

Stored = dict[str, torch.Tensor]
Quantizer = Callable[[str, np.ndarray], tuple[Stored, np.ndarray]]

GROUP = 32


def quantize_checkpoint(
    source: Path, target: Path, quantizer: Quantizer, config: dict[str, object]
) -> Stored:
    """Copies a checkpoint with its linear layers quantized. Returns the weights that it stands for."""
    target.mkdir()
    for path in source.iterdir():
        if path.suffix == ".json":
            (target / path.name).write_bytes(path.read_bytes())
    fields = json.loads((source / "config.json").read_text())
    (target / "config.json").write_text(json.dumps({**fields, "quantization_config": config}))
    stored, expected = {}, {}
    for name, weight in load_file(source / "model.safetensors").items():
        expected[name] = weight
        if "_proj.weight" not in name or weight.dim() != 2:
            stored[name] = weight
            continue
        module = name.removesuffix(".weight")
        tensors, meant = quantizer(module, weight.numpy())
        stored |= {key: tensor.contiguous() for key, tensor in tensors.items()}
        expected[name] = torch.from_numpy(meant.astype(np.float32))
    save_file(stored, target / "model.safetensors")
    return expected


def _words(rows: np.ndarray, bits: int, places: tuple[int, ...] | None = None) -> torch.Tensor:
    """[R, n] integers -> [R, n * bits / 32] int32: value i of a word at bit places[i] * bits."""
    per_word = 32 // bits
    places = places or tuple(range(per_word))
    out = np.zeros((rows.shape[0], -(-rows.shape[1] // per_word)), np.uint32)
    for row in range(rows.shape[0]):
        for column in range(rows.shape[1]):
            word, inner = divmod(column, per_word)
            out[row, word] |= np.uint32(int(rows[row, column]) << (bits * places[inner]))
    return torch.from_numpy(out.view(np.int32))


def _random_integers(shape: tuple[int, ...], bits: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 1 << bits, shape)


def _halves(shape: tuple[int, ...], seed: int) -> np.ndarray:
    return (np.random.default_rng(seed).random(shape) * 0.03 + 0.002).astype(np.float16)


def _seed(module: str) -> int:
    return sum(module.encode())


def gptq(bits: int, offset: int, act_order: bool, size: int = GROUP, each_its_own: bool = False) -> Quantizer:
    """offset: what is missing from stored zero points. act_order: groups of any inputs, the same ones for
    matrices of as many inputs (GPTQ orders them by the inputs themselves), unless each_its_own."""

    def quantize(module: str, weight: np.ndarray) -> tuple[Stored, np.ndarray]:
        outputs, inputs = weight.shape
        groups, seed = -(-inputs // size), _seed(module)
        integers = _random_integers((outputs, inputs), bits, seed)
        zeros = _random_integers((groups, outputs), bits, seed + 1)
        scales = _halves((groups, outputs), seed + 2)
        group = np.arange(inputs) // size
        if act_order:
            group = np.random.default_rng(seed if each_its_own else inputs).permutation(group)
        meant = np.empty((outputs, inputs), np.float32)
        for k in range(inputs):
            scale = scales[group[k]].astype(np.float32)
            meant[:, k] = (integers[:, k] - (zeros[group[k]] + offset)).astype(np.float32) * scale
        return {
            f"{module}.qweight": _words(integers, bits).t(),
            f"{module}.qzeros": _words(zeros, bits),
            f"{module}.scales": torch.from_numpy(scales),
            f"{module}.g_idx": torch.from_numpy(group.astype(np.int32)),
        }, meant

    return quantize


def act_order_checkpoint(source: Path, target: Path) -> Path:
    """Writes a checkpoint as GPTQ makes it with act-order, in 4 bits. Returns where."""
    config: dict[str, object] = {"quant_method": "gptq", "bits": 4, "group_size": GROUP, "desc_act": True}
    quantize_checkpoint(source, target, gptq(4, 1, True), config)
    return target


AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)
"""Which of eight neighbouring outputs is at bits 0, 4, 8 and so on of a word."""


def awq(module: str, weight: np.ndarray) -> tuple[Stored, np.ndarray]:
    outputs, inputs = weight.shape
    groups, seed = inputs // GROUP, _seed(module)
    integers = _random_integers((inputs, outputs), 4, seed)
    zeros = _random_integers((groups, outputs), 4, seed + 1)
    scales = _halves((groups, outputs), seed + 2)
    places = tuple(AWQ_ORDER.index(output) for output in range(8))
    meant = np.empty((outputs, inputs), np.float32)
    for k in range(inputs):
        group = k // GROUP
        meant[:, k] = (integers[k] - zeros[group]).astype(np.float32) * scales[group].astype(np.float32)
    return {
        f"{module}.qweight": _words(integers, 4, places),
        f"{module}.qzeros": _words(zeros, 4, places),
        f"{module}.scales": torch.from_numpy(scales),
    }, meant


def fp8(kind: str, block: int = 16) -> Quantizer:
    """kind: "tensor", "channel" or "block"."""

    def quantize(module: str, weight: np.ndarray) -> tuple[Stored, np.ndarray]:
        outputs, inputs = weight.shape
        stored = torch.from_numpy(weight).to(torch.float8_e4m3fn)
        shape = {
            "tensor": (),
            "channel": (outputs, 1),
            "block": (-(-outputs // block), -(-inputs // block)),
        }[kind]
        scales = np.random.default_rng(_seed(module)).random(shape).astype(np.float32) + 0.5
        meant = np.array(stored.float().numpy())
        for n in range(outputs):
            for k in range(inputs):
                place = {"tensor": (), "channel": (n, 0), "block": (n // block, k // block)}[kind]
                meant[n, k] *= np.float32(scales[place])
        name = "weight_scale_inv" if kind == "block" else "weight_scale"
        return {
            f"{module}.weight": stored,
            f"{module}.{name}": torch.from_numpy(np.asarray(scales, np.float32)),
            f"{module}.input_scale": torch.tensor(0.5),
        }, meant

    return quantize


def bitsandbytes_8(module: str, weight: np.ndarray) -> tuple[Stored, np.ndarray]:
    most = np.abs(weight).max(1)
    integers = np.rint(weight / most[:, None] * 127).astype(np.int8)
    meant = integers.astype(np.float32) * most[:, None] / np.float32(127)
    return {
        f"{module}.weight": torch.from_numpy(integers),
        f"{module}.SCB": torch.from_numpy(most),
        f"{module}.weight_format": torch.tensor(0, dtype=torch.uint8),
    }, meant


def bitsandbytes_4(nested: bool, block: int = 64) -> Quantizer:
    """nested: with scales of 8 bits that have scales themselves."""

    def quantize(module: str, weight: np.ndarray) -> tuple[Stored, np.ndarray]:
        rng = np.random.default_rng(_seed(module))
        table = np.sort(rng.normal(size=16)).astype(np.float32)
        numbers = rng.integers(0, 16, weight.size)
        blocks = -(-weight.size // block)
        packed = [int(high) << 4 | int(low) for high, low in zip(numbers[::2], numbers[1::2], strict=True)]
        state: dict[str, object] = {"quant_type": "nf4", "blocksize": block, "shape": list(weight.shape)}
        stored = {
            "weight": torch.tensor(packed, dtype=torch.uint8)[:, None],
            "weight.quant_map": torch.from_numpy(table),
        }
        if nested:
            outer_table = np.sort(rng.random(256)).astype(np.float32)
            places = rng.integers(0, 256, blocks).astype(np.uint8)
            outer = rng.random(-(-blocks // 4)).astype(np.float32)
            state |= {"nested_blocksize": 4, "nested_offset": 0.25}
            scales = outer_table[places] * outer[np.arange(blocks) // 4] + np.float32(0.25)
            stored |= {
                "weight.absmax": torch.from_numpy(places),
                "weight.nested_absmax": torch.from_numpy(outer),
                "weight.nested_quant_map": torch.from_numpy(outer_table),
            }
        else:
            scales = rng.random(blocks).astype(np.float32)
            stored["weight.absmax"] = torch.from_numpy(scales)
        text = json.dumps(state).encode()
        stored["weight.quant_state.bitsandbytes__nf4"] = torch.tensor(list(text), dtype=torch.uint8)
        meant = table[numbers] * scales[np.arange(weight.size) // block]
        return {f"{module}.{name}": tensor for name, tensor in stored.items()}, meant.reshape(weight.shape)

    return quantize
