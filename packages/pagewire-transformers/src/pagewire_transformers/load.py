"""From a configuration to a LanguageModel that `transformers` computes."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from kernels.cpu.requirements import why_not
from pagewire.internal.v1 import worker_pb2
from pagewire_transformers import interface, weights
from pagewire_transformers.config import TransformersConfig
from pagewire_transformers.model import TransformersModel
from pagewire_transformers.probe import Probe
from pagewire_transformers.products import Product, WatchedLinears, replace_products
from worker.imports import import_metas
from worker.weights.loader import Progress


def load_transformers(
    config: TransformersConfig,
    initialize: worker_pb2.Initialize,
    choose: Callable[[torch.dtype], torch.dtype],
    progress: Progress,
) -> tuple[TransformersModel, torch.dtype]:
    """Returns the model with its weights, and its dtype. Raises StartupError for a model that cannot be
    driven.

    choose: from the dtype of the checkpoint to the one to compute in.
    """
    _prepare_library()
    config.hf._attn_implementation = interface.PROBING
    path = Path(initialize.model_path)
    if initialize.load_format == "dummy":
        dtype = choose(weights.said_dtype(config) or torch.float32)
        causal = weights.dummy(config, dtype, initialize.seed)
    else:
        causal, dtype = weights.load(config, path, choose, progress)
    causal.eval().requires_grad_(False)
    with WatchedLinears(causal) as linears:
        shapes = Probe(causal, config.num_layers, config.vocab_size, dtype).run()
    replace_products(causal, linears.found, dtype)
    _leave_the_files(causal)
    causal.set_attn_implementation(interface.SERVING)
    return TransformersModel(causal, shapes), dtype


def _prepare_library() -> None:
    """Registers our attention, and keeps the library from stderr and from threads that read
    ahead of what is put in place, which takes the weights' memory twice."""
    import_metas()
    os.environ["HF_DEACTIVATE_ASYNC_LOAD"] = "1"
    from transformers.utils import logging

    logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    interface.register()


def _leave_the_files(causal: Any) -> None:
    """Copies weights that are views of files into memory, but for those that the compiled kernels pack."""
    packed = set[int]()
    if why_not() is None:
        products = [module for module in causal.modules() if isinstance(module, Product)]
        packed = {id(parameter) for product in products for parameter in product.parameters()}
    for parameter in causal.parameters():
        if id(parameter) not in packed:
            parameter.data = parameter.data.clone()
