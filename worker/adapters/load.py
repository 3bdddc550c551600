"""Loads an adapter: reads its files, and finds the layer of each tensor."""

from pathlib import Path

from pagewire.errors import StartupError, one_line
from worker.adapters.adapter import Adapter, AdapterError, LayerDeltas
from worker.adapters.files import read_folder
from worker.adapters.gguf import read_gguf
from worker.adapters.placement import place_tensors
from worker.adapters.prompt_tuning import virtual_tokens
from worker.layers.base import Layer
from worker.models.base import LanguageModel


def load_adapter(source: Path, model: LanguageModel, expected: bytes, max_bytes: int) -> Adapter:
    """Returns the adapter in a folder as peft writes it, or in a GGUF file. The model may compute meanwhile.

    source: without links. expected: digest that the adapter must have; empty: any. max_bytes: of the file,
    and of the deltas. Raises AdapterError.
    """
    modules = model.target_modules
    if modules is None:
        raise AdapterError("adapters need a model of one of pagewire's families")
    try:
        path = source.resolve()
    except (OSError, ValueError, RuntimeError) as error:  # a null byte, a loop of links
        raise AdapterError(f"{str(source)!r} is not a path: {error}") from error
    if path != source:
        raise AdapterError(f"{source.name} became a link after it was allowed")
    try:
        file = read_gguf(path, max_bytes, model) if path.is_file() else read_folder(path, max_bytes)
        if expected and file.digest != expected:
            raise AdapterError(
                f"{source.name} has digest {file.digest.hex()}, not {expected.hex()}: its files were replaced"
            )
        config, virtual, deltas = file.config, None, dict[Layer, LayerDeltas]()
        if config.num_virtual_tokens:
            virtual = virtual_tokens(file.tensors, config.num_virtual_tokens)
        else:
            deltas = place_tensors(file.tensors, config, modules)
    except StartupError as error:  # of paths, JSON, GGUF and the checkpoint
        raise AdapterError(error.why) from error
    ranks = (delta.a.shape[0] for parts in deltas.values() for delta in parts if delta is not None)
    base, rank = one_line(config.base), max(ranks, default=0)
    adapter = Adapter(file.digest, rank, config.invocation, base, deltas, virtual)
    if adapter.num_bytes > max_bytes:
        size = f"{adapter.num_bytes} bytes, more than {max_bytes} (--lora-memory)"
        raise AdapterError(f"{source.name} takes {size}")
    return adapter
