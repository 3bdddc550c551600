"""Finds out, before anything is served, whether the code of a model can be driven step by step.

A model can if all that one token learns of others comes through attention, and attention through our
function. That is tried out: the model computes six tokens with an attention in which each token sees itself
alone, and

    every layer attends once, causally or by a window, with options that are known
    no token changes when another one does       else a state or a mask of the model's own joins them
    the tokens in another order give the same    else positions are not read from `position_ids`
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from pagewire.errors import StartupError
from pagewire_transformers.interface import OTHER
from pagewire_transformers.refusals import first_line, refusal

NUM_TOKENS = 6
SAME = {torch.float32: 1e-3, torch.bfloat16: 0.05, torch.float16: 0.01}
"""Relative differences that are taken for rounding."""
HANDLED = frozenset({"scaling", "softcap", "sliding_window"})
HARMLESS = frozenset(
    {
        *("dropout", "is_causal", "position_ids", "cache_position", "use_cache", "layer_idx", "return_dict"),
        *("output_attentions", "output_hidden_states", "output_router_logits", "position_embeddings"),
        *("past_key_values", "past_key_value", "num_items_in_batch", "enable_gqa"),
    }
)
"""Options of attention functions that change no result where nothing is dropped and nothing is cached."""


@dataclass(frozen=True)
class LayerShape:
    """What one attention layer asks for."""

    num_heads: int  # H
    num_kv_heads: int  # K
    head_dim: int  # D
    value_dim: int  # Dv, at most D
    scale: float
    window: int | None  # tokens that a query sees, itself included; None: all
    soft_cap: float | None


class Recorder:
    """A Router that lets each token see itself alone, and writes down what the layers ask for."""

    def __init__(self) -> None:
        self.shapes: dict[int, LayerShape] = {}
        self.num_calls = 0

    def attend(
        self,
        module: torch.nn.Module,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        mask: torch.Tensor | None,
        options: Mapping[str, Any],
    ) -> torch.Tensor:
        self.num_calls += 1
        layer = getattr(module, "layer_idx", None)
        if not isinstance(layer, int):
            raise refusal(f"a {type(module).__name__} has no layer_idx")
        if layer not in self.shapes:  # the first run has one sequence, whose masks say most
            self.shapes[layer] = _shape_of(layer, module, (query, key, value), mask, options)
        heads, width = query.shape[1], value.shape[3]
        own = value.repeat_interleave(heads // value.shape[1], 1)
        rotated = query + key.repeat_interleave(heads // key.shape[1], 1)
        return (own + rotated[..., :width]).transpose(1, 2).contiguous()


def _shape_of(
    layer: int,
    module: torch.nn.Module,
    heads: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
    mask: torch.Tensor | None,
    options: Mapping[str, Any],
) -> LayerShape:
    """Returns what a layer asks for. Raises StartupError for what our kernels do not compute."""
    query, key, value = heads
    where = f"layer {layer}"
    for name, option in options.items():
        if option is not None and name not in HANDLED | HARMLESS:
            raise refusal(f"{where} gives its attention {name}, which no kernel here takes")
    if query.shape[0] != 1 or query.shape[2] != NUM_TOKENS or key.shape[2] != NUM_TOKENS:
        raise refusal(
            f"{where} attends to {key.shape[2]} keys by {query.shape[2]} queries, of {NUM_TOKENS} tokens"
        )
    if query.shape[1] % key.shape[1] or key.shape[1] != value.shape[1] or key.shape[3] != query.shape[3]:
        sizes = [list(each.shape) for each in heads]
        raise refusal(f"{where} has queries, keys and values of shapes {', '.join(map(str, sizes))}")
    if value.shape[3] > key.shape[3]:
        raise refusal(f"{where} has values of size {value.shape[3]} and keys of size {key.shape[3]}")
    scale, cap = options.get("scaling"), options.get("softcap")
    return LayerShape(
        *(query.shape[1], key.shape[1], key.shape[3], value.shape[3]),
        key.shape[3] ** -0.5 if scale is None else float(scale),
        _window_of(where, module, mask, options),
        None if cap is None else float(cap),
    )


def _window_of(
    where: str, module: torch.nn.Module, mask: torch.Tensor | None, options: Mapping[str, Any]
) -> int | None:
    """Returns the window that the mask of interface.window_mask() says, or without one the layer itself."""
    said: int | None = options.get("sliding_window")
    if mask is None:
        if not options.get("is_causal", getattr(module, "is_causal", False)):
            raise refusal(f"{where} attends without a mask, and does not say that it is causal")
        return said
    if mask.shape != (1, 1, 1, 1):
        raise refusal(f"{where} has a mask of the model's own making")
    told = mask.item()
    if told == OTHER:
        raise refusal(f"{where} attends neither to all tokens before nor by a window")
    window = int(told) or None
    if said is not None and said != window:
        raise refusal(f"{where} has a window of {said}, and a mask of {window or 'none'}")
    return window


class Probe:
    """Runs a model on a few tokens. The model computes with interface.PROBING and a Recorder."""

    def __init__(self, model: Any, num_layers: int, vocab_size: int, dtype: torch.dtype) -> None:
        """model: a causal language model of transformers."""
        self._model, self._num_layers, self._vocab_size = model, num_layers, vocab_size
        self._same = SAME[dtype]

    @torch.inference_mode()
    def run(self) -> tuple[LayerShape, ...]:
        """Returns what each layer asks for. Raises StartupError for a model that cannot be driven."""
        self._check_angles()
        ids = torch.arange(NUM_TOKENS) * 7 % self._vocab_size
        positions = torch.arange(NUM_TOKENS)
        recorder = self._recorder()
        logits = self._logits(ids, positions)
        layers = range(self._num_layers)
        if recorder.num_calls != len(layers) or sorted(recorder.shapes) != list(layers):
            raise refusal(
                f"{recorder.num_calls} attentions of {len(recorder.shapes)} layers came through the attention"
                f" interface, and the model has {len(layers)} layers"
            )
        if logits.shape != (NUM_TOKENS, self._vocab_size):
            raise refusal(f"logits are {list(logits.shape)}, not [{NUM_TOKENS}, {self._vocab_size}]")
        changed = ids.clone()
        changed[0] = (ids[0] + 1) % self._vocab_size
        if not self._equal(self._logits(changed, positions)[1:], logits[1:]):
            raise refusal(
                "tokens reach one another beside attention, as by a state, a convolution or a cache"
            )
        if not self._equal(self._logits(ids.flip(0), positions.flip(0)).flip(0), logits):
            raise refusal("positions are not read from position_ids")
        return tuple(recorder.shapes[layer] for layer in layers)

    def _recorder(self) -> Recorder:
        recorder = Recorder()
        for module in self._model.modules():
            module.pagewire_router = recorder
        return recorder

    def _check_angles(self) -> None:
        """Raises StartupError for angles that depend on the longest row of a step."""
        for module in self._model.modules():
            kinds = getattr(module, "rope_type", None)
            for kind in kinds.values() if isinstance(kinds, dict) else (kinds,):
                if kind is not None and (kind == "longrope" or "dynamic" in kind):
                    raise refusal(f"its rope_type {kind} depends on the longest row of a step")

    def _logits(self, ids: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """[T], [T] -> [T, V] float32. Raises StartupError."""
        try:
            out = self._model(input_ids=ids[None], position_ids=positions[None], use_cache=False)
        except StartupError:
            raise
        except Exception as error:  # of a hundred families' code
            raise refusal(
                f"its code fails on a step of {len(ids)} tokens: {type(error).__name__}: {first_line(error)}"
            ) from error
        if getattr(out, "past_key_values", None) is not None:
            raise refusal("it keeps a cache of its own, whatever use_cache says")
        logits: torch.Tensor = out.logits[0].float()
        if not bool(logits.isfinite().all()):
            raise refusal("a step of a few tokens gives logits that are not finite")
        return logits

    def _equal(self, found: torch.Tensor, expected: torch.Tensor) -> bool:
        """True if they differ by rounding only."""
        most = expected.abs().max().item()
        return math.isfinite(most) and (found - expected).abs().max().item() <= self._same * most
