"""Images without an encoder: which items a worker has vectors of, by the rules of the real one and stricter.

    media      of a prompt: the digest of each item and its positions as little-endian uint32, item by item

A row's tokens are a function of its prompt's ids and of these bytes behind them; see
pagewire_simulated.tokens. An image has as many vectors as the encoder of the model would make of it.
"""

from collections.abc import Callable, Collection, Iterable

from kernels.ops.attention.ragged import Integers
from pagewire.internal.v1 import engine_pb2, worker_pb2
from pagewire.media import DIGEST_SIZE, media_digest
from worker.step.plan_reader import Step, ValueByRow
from worker.step.rows import column, require

Items = tuple[tuple[bytes, Integers], ...]
"""Digest and positions of each item of a row."""


class SimulatedMedia(ValueByRow[Items]):
    """A worker.executor.backend.Media: plans that compute a position without its vector are refused."""

    def __init__(self, num_vectors: Callable[[int, int], int] | None) -> None:
        """num_vectors: returns how many an image of so many rows and columns becomes, or a spectrogram of so
        many frames and bins; None: the model has no encoder."""
        super().__init__()
        self._num_vectors = num_vectors
        self.kept: dict[bytes, int] = {}
        """Vectors by digest."""
        self.num_encoded = 0
        """Vectors of the last plan that said what to encode."""
        self.failed: Collection[int] = ()
        self.whole = False
        """Whether a step computes an item whole, or its end."""

    def follow(self, plan: worker_pb2.StepPlan) -> bool:
        """Forgets and encodes what a plan says. Returns True. Raises PlanError."""
        forgotten = plan.forgotten_media
        require(len(forgotten) % DIGEST_SIZE == 0, "forgotten_media is no list of digests")
        for start in range(0, len(forgotten), DIGEST_SIZE):
            digest = forgotten[start : start + DIGEST_SIZE]
            require(self.kept.pop(digest, 0) > 0, "an item that is not kept is forgotten")
        for item in plan.encode:
            require(item.digest not in self.kept, "an item that is kept is encoded")
            require(item.digest == media_digest(item.kind, item.shape, item.data), "an item is another one")
            self.kept[item.digest] = self._vectors_of(item)
        self.num_encoded = sum(self.kept[item.digest] for item in plan.encode)
        return True

    def forget_media(self) -> None:
        """Forgets all that is encoded, for a core that knows of nothing."""
        self.kept.clear()

    def add_row(self, row: int, new: worker_pb2.NewRow, prompt_ids: list[int], output_ids: list[int]) -> None:
        """Begins a row. Raises PlanError."""
        if not new.media:
            return
        items = tuple((item.digest, column(item.positions)) for item in new.media)
        order = [position for _, positions in items for position in positions.tolist()]
        require(order == sorted(set(order)), f"row {row} has media out of order")
        require(all(len(each) for _, each in items), f"row {row} has an item of no token")
        require(order[-1] < len(prompt_ids), f"row {row} has media beyond its prompt")
        self._by_row[row] = items

    def check(self, step: Step) -> None:
        """Raises PlanError where a step computes positions of an item that is not encoded, or that has
        another number of vectors, or cuts one that is seen whole."""
        if not self._by_row:
            return
        for row, start, count in zip(
            step.rows.tolist(), step.starts.tolist(), step.counts.tolist(), strict=True
        ):
            for digest, positions in self._by_row.get(row, ()):
                if ((start <= positions) & (positions < start + count)).any():
                    require(digest in self.kept, f"row {row} computes positions of an item without vectors")
                    found, wanted = self.kept[digest], len(positions)
                    require(found == wanted, f"row {row} has {wanted} positions for {found} vectors")
                    cut = self.whole and positions[-1] >= start + count
                    require(not cut, f"row {row} computes a part of what is seen whole")

    def _vectors_of(self, item: engine_pb2.MediaItem) -> int:
        dimensions = (3, 4) if item.kind == engine_pb2.MEDIA_KIND_IMAGE else (2,)
        if self._num_vectors is None or len(item.shape) not in dimensions:
            return 0
        return self._num_vectors(*(item.shape[-3:-1] if len(item.shape) > 2 else item.shape))


def seen(items: Iterable[engine_pb2.MediaItem]) -> bytes:
    """Returns what media add to the prompt of their row."""
    return b"".join(item.digest + item.positions for item in items)
