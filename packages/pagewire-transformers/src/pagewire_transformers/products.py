"""Linear layers of a model of `transformers`, replaced by ours, which the compiled kernels can pack."""

from collections.abc import Iterator

import torch

from worker.layers.base import Weight
from worker.layers.matrix import Matrix


class Product(Matrix):
    """Takes the place of a torch.nn.Linear, with its parameters."""

    def __init__(self, linear: torch.nn.Linear, wide: bool) -> None:
        """wide: the result is float32, as that of a head."""
        bias = None if linear.bias is None else torch.nn.Parameter(linear.bias, requires_grad=False)
        super().__init__(torch.nn.Parameter(linear.weight, requires_grad=False), bias)
        self.in_features, self.out_features, self.wide = linear.in_features, linear.out_features, wide
        self.is_table = wide

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[..., in] -> [..., out]."""
        shape = *x.shape[:-1], self.out_features
        if not x.numel():
            return x.new_empty(shape)
        return self.product(x.reshape(-1, self.in_features), self.wide).view(shape)

    def weights(self, *names: str) -> Iterator[Weight]:
        (name,) = names
        yield Weight(f"{name}.weight", (self.out_features, self.in_features), self.weight)
        if self.bias is not None:
            yield Weight(f"{name}.bias", (self.out_features,), self.bias)


class Lookup(torch.nn.Module):
    """Takes the place of a torch.nn.Embedding whose table is the weight of a Product: of a head with tied
    weights."""

    def __init__(self, head: Product) -> None:
        super().__init__()
        self.head = head
        head.is_table = True

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """[...] int64 -> [..., E]."""
        return self.head.look_up(ids.reshape(-1)).view(*ids.shape, self.head.in_features)


class _Watched(torch.nn.Linear):
    """A linear layer that knows whether it was called, and whether other code has read its parameters."""

    called: bool
    was_read: bool

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """[..., in] -> [..., out]."""
        self.called = True
        weight, bias = self._parameters["weight"], self._parameters["bias"]
        assert weight is not None
        return torch.nn.functional.linear(input, weight, bias)

    def __getattr__(self, name: str) -> torch.Tensor | torch.nn.Module:
        if name in self._parameters:
            self.was_read = True
        return super().__getattr__(name)


class WatchedLinears:
    """While this context lasts, finds the linear layers that a model calls, and whose weights nothing else
    reads."""

    def __init__(self, model: torch.nn.Module) -> None:
        self.found: set[torch.nn.Module] = set()
        self._watched: list[_Watched] = []
        self._linears = [module for module in model.modules() if type(module) is torch.nn.Linear]

    def __enter__(self) -> "WatchedLinears":
        for module in self._linears:
            module.__class__ = _Watched
            assert isinstance(module, _Watched)
            module.called = module.was_read = False
            self._watched.append(module)
        return self

    def __exit__(self, *_: object) -> None:
        for module in self._watched:
            if module.called and not module.was_read:
                self.found.add(module)
            del module.called, module.was_read
        for linear in self._linears:
            linear.__class__ = torch.nn.Linear


def replace_products(model: torch.nn.Module, found: set[torch.nn.Module], dtype: torch.dtype) -> None:
    """Replaces those of the found linear layers that have this dtype."""
    head = model.get_output_embeddings()  # type: ignore[operator]
    made: dict[torch.nn.Module, Product] = {}
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if type(child) is torch.nn.Linear and child in found and child.weight.dtype == dtype:
                product = made.setdefault(child, Product(child, wide=child is head))
                setattr(parent, name, product)
    _replace_lookups(model, {product.weight.data_ptr(): product for product in made.values()})


def _replace_lookups(model: torch.nn.Module, tables: dict[int, Product]) -> None:
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if type(child) is torch.nn.Embedding and child.weight.data_ptr() in tables:
                setattr(parent, name, Lookup(tables[child.weight.data_ptr()]))
