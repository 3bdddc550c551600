"""Says what a loaded model promises about equal results (docs/sampling.md, "Exactness").

Outputs are bitwise exact where every sum has an order that is fixed by positions and shapes: then batch
mates, chunks, preemption, caches and resumption change no bit of the logits.
"""

from dataclasses import dataclass

from pagewire.internal.v1 import engine_pb2


@dataclass(frozen=True)
class Exactness:
    """What computes, and what keeps its results from being bitwise exact."""

    arithmetic: str  # equal for engines whose results are equal bit for bit
    caveat: str = ""  # empty: bitwise exact

    def with_cache(self, kv_cache_dtype: str) -> "Exactness":
        """Returns the same on keys and values of another dtype than that of the model; "": of the model's."""
        if not kv_cache_dtype:
            return self
        return Exactness(f"{self.arithmetic}, KV cache in {kv_cache_dtype}", self.caveat)

    def describe(self, facts: engine_pb2.ModelFacts) -> None:
        """Writes it into the facts of a model."""
        facts.arithmetic, facts.exactness_caveat = self.arithmetic, self.caveat


TREE = "tree"
"""Says that products whose inputs ranks may split add their leaves as a tree (kernels.ops.layers.leaves)."""
TORCH = Exactness("torch", "torch computes, which sums in another order for another number of rows")


def on_cuda(arithmetic: str, fast_matmul: bool) -> Exactness:
    """Returns what a CUDA device promises. arithmetic: of our kernels on the device. fast_matmul: the library
    behind torch multiplies."""
    if fast_matmul:
        why = "the matrix library of --fast-matmul chooses an order of sums by the number of rows"
        return Exactness(f"cuda {arithmetic}, products by a library", why)
    return Exactness(f"cuda {arithmetic}, {TREE}")


def on_cpu(instruction_set: str | None, has_attention: bool) -> Exactness:
    """Returns what a CPU promises.

    instruction_set: that of the kernels that multiply; None: torch does. has_attention: whether they attend
    too.
    """
    if instruction_set is None:
        return TORCH
    arithmetic = f"{instruction_set}, {TREE}"
    if not has_attention:
        return Exactness(f"{arithmetic}, attention by torch")  # each query in a call of its own
    return Exactness(arithmetic)
