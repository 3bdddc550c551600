"""The adapters that a worker holds, by digest, in the form in which its layers compute with them."""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import TypeGuard

import torch

from kernels.api import adapters
from pagewire.internal.v1 import worker_pb2
from worker.adapters.adapter import Adapter, AdapterError, LayerDeltas
from worker.adapters.prompt_tuning import VIRTUAL_TOKENS
from worker.layers.base import Layer
from worker.layers.matrix import MatrixOwner
from worker.models.base import LanguageModel

ReadAdapter = Callable[[Path, LanguageModel, bytes, int], Adapter]
"""(source, model, expected, max_bytes): reads and places the adapter in a folder. expected: the digest that
it must have; empty: any. Raises AdapterError."""


def takes_adapter(layer: Layer) -> TypeGuard[MatrixOwner]:
    """Whether adapters may change the outputs of a layer."""
    return isinstance(layer, MatrixOwner) and layer.takes_adapters


def number_layers(model: LanguageModel) -> list[MatrixOwner]:
    """Numbers the matrices that adapters may change, and returns their layers in this order. Steps that are
    recorded before have no adapters."""
    modules = [layer for layer in model.modules() if isinstance(layer, Layer)]
    layers, number = [layer for layer in modules if takes_adapter(layer)], 0
    for layer in layers:
        layer.number = number
        number += len(layer.adapted_matrices)
    return layers


@dataclass(frozen=True, eq=False)
class HeldAdapter:
    """An adapter that rows may have."""

    weights: adapters.AdapterWeights | None
    loaded: worker_pb2.AdapterLoaded  # without a number
    virtual_tokens: torch.Tensor | None = None
    """[n, E] in place of weights: embeddings that stand before each prompt, in the model's dtype."""


class AdapterStore:
    """Loads adapters in a thread, beside the steps, and holds them until they are dropped."""

    def __init__(
        self,
        model: LanguageModel,
        read: ReadAdapter | None = None,
        input_embedding_size: int = 0,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        """model: whose layers get numbers; its steps are not recorded yet. read: None: none can be loaded.
        input_embedding_size: see ModelFacts. dtype: of input embeddings."""
        self._model, self._read = model, read
        self._input_embedding_size, self._dtype = input_embedding_size, dtype
        self._layers = number_layers(model)
        self._held: dict[bytes, HeldAdapter] = {}
        self._threads = ThreadPoolExecutor(1, thread_name_prefix="adapters")

    @property
    def parts(self) -> list[int]:
        """Parts of the outputs of each matrix, by its number."""
        return [len(matrix.parts) for layer in self._layers for matrix in layer.adapted_matrices]

    def load(self, order: worker_pb2.LoadAdapter) -> "Future[worker_pb2.AdapterLoaded]":
        """Loads an adapter. Returns the answer to come, which says why it could not be loaded; the adapter is
        held once the answer is there."""
        return self._threads.submit(self._load, order)

    def _load(self, order: worker_pb2.LoadAdapter) -> worker_pb2.AdapterLoaded:
        try:
            if self._read is None:
                raise AdapterError("the worker cannot read files of adapters")
            adapter = self._read(Path(order.source), self._model, order.digest, order.max_bytes)
            answer = worker_pb2.AdapterLoaded(number=order.number)
            answer.MergeFrom(self.add(adapter, order.max_bytes))
            return answer
        except (AdapterError, MemoryError, OSError, RuntimeError) as error:
            if isinstance(error, RuntimeError) and "memory" not in str(error):  # torch's that it lacks some
                raise
            problem = str(error) or "memory does not suffice"
            problem = problem.replace(f"{Path(order.source).parent}/", "")  # clients read it
            return worker_pb2.AdapterLoaded(number=order.number, problem=problem)

    def add(self, adapter: Adapter, max_bytes: int | None = None) -> worker_pb2.AdapterLoaded:
        """Packs and holds an adapter, unless it is held already: rows that have it share one object. Returns
        what is said of it. Raises AdapterError for one that changes a layer that takes none, or needs more
        memory."""
        if (held := self._held.get(adapter.digest)) is not None:
            return held.loaded
        unknown = [layer for layer in adapter.deltas if not takes_adapter(layer)]
        if unknown:
            kinds = ", ".join(sorted({type(layer).__name__ for layer in unknown}))
            raise AdapterError(f"adapters cannot change layers of these kinds: {kinds}")
        virtual, weights = adapter.virtual_tokens, None
        if virtual is None:
            deltas = adapter.deltas
            parts = [each for layer in self._layers for each in low_rank(layer, deltas.get(layer, ()))]
            weights = self._layers[0].ops.pack_adapter(parts)
            num_bytes = weights.nbytes
        else:
            virtual = self._converted(virtual)
            num_bytes = virtual.nbytes
        if max_bytes is not None and num_bytes > max_bytes:
            raise AdapterError(f"it takes {num_bytes} bytes of memory, of {max_bytes} that it may have")
        loaded = worker_pb2.AdapterLoaded(
            digest=adapter.digest,
            rank=adapter.rank,
            bytes=num_bytes,
            invocation_token_ids=adapter.invocation,
            modules=self._modules(adapter),
            base=adapter.base,
            virtual_tokens=0 if virtual is None else len(virtual),
        )
        self._held[adapter.digest] = HeldAdapter(weights, loaded, virtual)
        return loaded

    def _converted(self, found: torch.Tensor) -> torch.Tensor:
        """Returns embeddings [n, E] in the model's dtype. Raises AdapterError for those that are none of its
        own."""
        size = self._input_embedding_size
        if not size:
            raise AdapterError("prompt tuning needs a model that takes input embeddings")
        if found.shape[1] != size:
            raise AdapterError(f"its embeddings have {found.shape[1]} elements, the model's {size}")
        converted = found.to(self._dtype)
        if not converted.isfinite().all():
            dtype = str(self._dtype).removeprefix("torch.")
            raise AdapterError(f"tensor {VIRTUAL_TOKENS} holds values beyond {dtype}, the model's dtype")
        return converted

    def _modules(self, adapter: Adapter) -> list[str]:
        """Returns the last names of the modules that an adapter changes here, in order of the alphabet."""
        if self._model.target_modules is None:
            return []
        found, modules = set[str](), self._model.target_modules
        stacked = (
            (module, next((each for each in target.experts if each[0].is_held), ()))
            for module, parameters in modules.stacked.items()
            for target in parameters.values()
        )
        tables = modules.embeddings.items()
        for module, targets in chain(modules.targets.items(), tables, stacked):
            parts = [adapter.deltas.get(target.layer, ())[target.part :] for target in targets]
            if any(each and each[0] is not None for each in parts):
                found.add(module.rpartition(".")[2])
        return sorted(found)

    def drop(self, digest: bytes) -> None:
        """Forgets an adapter, if it is there. Rows that have it keep it until they end."""
        self._held.pop(digest, None)

    def find(self, digest: bytes) -> adapters.AdapterWeights | None:
        """Returns the weights of an adapter that is held, and has some."""
        held = self._held.get(digest)
        return None if held is None else held.weights

    def find_virtual_tokens(self, digest: bytes) -> torch.Tensor | None:
        """Returns the virtual tokens [n, E] of an adapter that is held, and has some."""
        held = self._held.get(digest)
        return None if held is None else held.virtual_tokens

    @property
    def loaded(self) -> Sequence[worker_pb2.AdapterLoaded]:
        """What is held, for a core that adopts the worker (Ready.adapters). Waits for the last core's loads:
        they would be held otherwise, and unknown to the next one."""
        self._threads.submit(lambda: None).result()
        return [held.loaded for held in self._held.values()]


def low_rank(layer: MatrixOwner, deltas: LayerDeltas) -> Iterator[adapters.LayerParts]:
    """Yields what an adapter adds to each matrix of a layer, by its outputs."""
    given = iter(deltas)
    for matrix in layer.adapted_matrices:
        first, found = 0, list[adapters.LowRank]()
        for held in matrix.parts:
            if (delta := next(given, None)) is not None:
                assert delta.a.shape == (delta.b.shape[1], matrix.inputs)
                assert delta.b.shape[0] == held
                found.append(adapters.LowRank(delta.a, delta.b, delta.scale, first))
            first += held
        yield tuple(found)
