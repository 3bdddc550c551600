"""A core for tests of the worker: plans steps in the plainest way, with shuffled blocks."""

import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import torch

from engine_core.speculation import parse_speculation
from kernels.ops.attention.ragged import Integers
from pagewire.config import WorkerConfig
from pagewire.internal.v1 import worker_pb2
from pagewire.internal.v1.engine_pb2 import InputEmbeddings, MediaItem, Pooling
from pagewire.ipc.columns import pack_u32, unpack_f32, unpack_u32
from pagewire.v1 import generation_pb2
from tests.logprob_columns import Scored, take_apart
from worker.cpu.backend import CpuBackend
from worker.executor.executor import StepExecutor
from worker.load import load
from worker.platforms.cpu import CpuPlatform


def resolved_params(**changes: float) -> generation_pb2.SamplingParams:
    """Greedy, with every scalar present, as the worker gets them."""
    values = {
        "temperature": 0,
        "top_p": 1,
        "top_k": 0,
        "min_p": 0,
        "typical_p": 1,
        "frequency_penalty": 0,
        "presence_penalty": 0,
        "repetition_penalty": 1,
        "seed": 0,
        "n": 1,
    }
    return generation_pb2.SamplingParams(**{**values, **changes})


def initialize(folder: Path | str, **changes: object) -> worker_pb2.Initialize:
    """Small limits. changes: fields of Initialize; speculation: as --speculate says it."""
    values: dict[str, object] = {
        "model_path": str(folder),
        "device": "cpu",
        "dtype": "auto",
        "load_format": "auto",
        "max_num_seqs": 24,
        "max_num_batched_tokens": 4096,
        "block_size": 4,
        "num_blocks": 600,
        "tensor_parallel_size": 1,
    }
    values |= changes
    if "speculation" in values:
        values["speculation"] = parse_speculation(str(values["speculation"]))
    return worker_pb2.Initialize(**values)  # type: ignore[arg-type]


class Executes(Protocol):
    """A runner, as far as the driver needs it."""

    def execute(self, plan: worker_pb2.StepPlan) -> worker_pb2.StepResult: ...


Loader = Callable[[worker_pb2.Initialize], tuple[Executes, worker_pb2.Ready]]


def load_on_a_cpu(command: worker_pb2.Initialize) -> tuple[StepExecutor[CpuBackend], worker_pb2.Ready]:
    """The usual runner."""
    return load(command, CpuPlatform(WorkerConfig(threads=1)))


def without_data(item: MediaItem) -> MediaItem:
    """Returns an item as a row has it."""
    return MediaItem(kind=item.kind, shape=item.shape, digest=item.digest, positions=item.positions)


class GreedySampler:
    """In place of worker.sampling.sampler.Sampler: takes the largest logit, and keeps all logits by row."""

    def __init__(self) -> None:
        self.logits: dict[int, list[torch.Tensor]] = {}

    def add_row(self, row: int, new: worker_pb2.NewRow, prompt_ids: list[int], output_ids: list[int]) -> None:
        self.logits[row] = []

    def fork_row(self, row: int, source_row: int, sequence_index: int) -> None:
        self.logits[row] = list(self.logits[source_row])

    def remove_row(self, row: int) -> None:
        del self.logits[row]

    def needs_logits(self, rows: Integers, drafted: bool) -> bool:
        """It wants to see the logits."""
        return True

    def sample(
        self, logits: torch.Tensor, rows: list[int], scores: object = None, row_index: object = None
    ) -> torch.Tensor:
        for row, row_logits in zip(rows, logits, strict=True):
            self.logits[row].append(row_logits.clone())
        return logits.argmax(-1)


@dataclass
class DrivenSequence:
    """A sequence as the driver sees it."""

    row: int
    tokens: list[int]
    prompt_len: int
    max_tokens: int
    params: generation_pb2.SamplingParams
    index: int = 0
    num_computed: int = 0
    blocks: list[int] = field(default_factory=list)
    siblings: list["DrivenSequence"] = field(default_factory=list)  # forked when the prompt is complete
    started: bool = False
    logits: list[torch.Tensor] = field(default_factory=list)
    wants: generation_pb2.LogprobOptions | None = None
    prompt_wants: generation_pb2.LogprobOptions | None = None
    prompt_start: int = 1
    scores: list[Scored] = field(default_factory=list)  # of the output
    prompt_scores: list[Scored] = field(default_factory=list)  # of the prompt, from prompt_start on
    pooling: Pooling | None = None
    embeddings: InputEmbeddings | None = None
    media: Sequence[MediaItem] = ()
    vector: list[float] = field(default_factory=list)
    adapter: worker_pb2.RowAdapter | None = None

    @property
    def output(self) -> list[int]:
        return self.tokens[self.prompt_len :]

    @property
    def done(self) -> bool:
        return len(self.output) >= self.max_tokens


class Driver:
    """Blocks, rows and plans for one runner. Sampled tokens are taken as they come; no EOS."""

    def __init__(
        self,
        folder: Path,
        budget: int = 4096,
        shuffle: int = 0,
        record: bool = True,
        loader: Loader = load_on_a_cpu,
        room: int = 0,
        **changes: object,
    ) -> None:
        """budget: tokens per step. shuffle: seed of the order of blocks. record: a GreedySampler in
        place of the real one. room: tokens that may be drafted for each row that decodes. changes: fields of
        Initialize."""
        command = initialize(folder, **changes)
        self.runner, self.ready = loader(command)
        self.sampler = GreedySampler()
        if record:
            self.runner.backend.sampler = self.sampler  # type: ignore[attr-defined]
            self.runner._features = (self.sampler, *self.runner._features[1:])  # type: ignore[attr-defined]
        self.record, self.budget, self.block_size = record, budget, command.block_size
        self.free = list(range(self.ready.num_blocks))
        random.Random(shuffle).shuffle(self.free)
        self.free_rows = list(range(command.max_num_seqs))
        self.references: Counter[int] = Counter()
        self.running: list[DrivenSequence] = []
        self.ended_rows: list[int] = []
        self.steps = 0
        self.room = room
        self.num_drafted = self.num_accepted = 0
        self.encoded: set[bytes] = set()
        """Digests of items that the worker keeps."""

    def add(
        self,
        prompt: Sequence[int],
        max_tokens: int,
        params: generation_pb2.SamplingParams | None = None,
        n: int = 1,
        delivered: Sequence[int] = (),
        wants: generation_pb2.LogprobOptions | None = None,
        prompt_wants: generation_pb2.LogprobOptions | None = None,
        prompt_start: int = 1,
        pooling: Pooling | None = None,
        adapter: worker_pb2.RowAdapter | None = None,
        embeddings: InputEmbeddings | None = None,
        media: Sequence[MediaItem] = (),
    ) -> list[DrivenSequence]:
        """n sequences of one prompt; they begin in the next step. media: with data, which is sent when a step
        first computes a position of it."""
        made = [
            DrivenSequence(
                self.free_rows.pop(),
                [*prompt, *delivered],
                len(prompt),
                max_tokens,
                params or resolved_params(),
                index,
                wants=wants,
                prompt_wants=prompt_wants if index == 0 else None,
                prompt_start=prompt_start,
                pooling=pooling,
                adapter=adapter,
                embeddings=embeddings,
                media=media,
            )
            for index in range(n)
        ]
        made[0].siblings = made[1:]
        self.running.append(made[0])
        return made

    def share(self, source: DrivenSequence, sequence: DrivenSequence, num_blocks: int) -> None:
        """Lets a sequence that has not begun have the first blocks of another one that runs."""
        sequence.blocks = source.blocks[:num_blocks]
        self.references.update(sequence.blocks)
        sequence.num_computed = num_blocks * self.block_size

    def preempt(self, sequence: DrivenSequence) -> None:
        """Takes row and blocks of a sequence, which begins again in the next step."""
        self.remove(sequence)
        sequence.row, sequence.num_computed, sequence.started = self.free_rows.pop(), 0, False
        self.running.append(sequence)

    def remove(self, sequence: DrivenSequence) -> None:
        """Ends a sequence with the next step."""
        if self.record:
            sequence.logits += self.sampler.logits.get(sequence.row, [])
        self.running.remove(sequence)
        self.ended_rows.append(sequence.row)
        self.free_rows.append(sequence.row)  # may begin again in the plan that ends it
        for block in sequence.blocks:
            self._release(block)
        sequence.blocks = []

    def run(self) -> None:
        """Steps until nothing runs."""
        while self.running:
            self.step()

    def step(self) -> worker_pb2.StepPlan:
        """Computes one step and takes in what it sampled. Returns the plan."""
        plan, sampled = self._plan()
        result = self.runner.execute(worker_pb2.StepPlan.FromString(plan.SerializeToString()))
        assert result.step == plan.step
        tokens = iter(unpack_u32(result.token_ids))
        counts = unpack_u32(result.sample_counts) or [1] * len(sampled)
        self.num_drafted += sum(unpack_u32(result.draft_counts))
        self.num_accepted += sum(counts) - len(sampled)
        scored = iter(take_apart(result.logprobs))
        for vector in result.vectors:
            sampled[vector.entry].vector = unpack_f32(vector.values)
        for sequence, count in zip(sampled, counts, strict=True):
            sequence.tokens += [next(tokens) for _ in range(count)]
            sequence.num_computed = len(sequence.tokens) - 1
            if sequence.wants is not None:
                sequence.scores += [next(scored) for _ in range(count)]
        assert not list(tokens)
        assert not list(scored)
        by_row = {sequence.row: sequence for sequence in self.running}
        for part in result.prompt_logprobs:
            sequence = by_row[part.row]
            assert part.start == sequence.prompt_start + len(sequence.prompt_scores)
            sequence.prompt_scores += take_apart(part.columns)
        for sequence in [sequence for sequence in self.running if sequence.done]:
            self.remove(sequence)
        return plan

    def _uncut(self, sequence: DrivenSequence, count: int) -> int:
        """Returns how many tokens a chunk has that would have so many: it ends before an image that is seen
        whole, or behind one that it begins with, whatever the budget."""
        end = sequence.num_computed + count
        for item in sequence.media if count and self.ready.model.whole_media else ():
            first, *_, last = unpack_u32(item.positions)
            if first < end <= last:
                end = first if first > sequence.num_computed else last + 1
        return end - sequence.num_computed

    def _plan(self) -> tuple[worker_pb2.StepPlan, list[DrivenSequence]]:
        self.steps += 1
        plan = worker_pb2.StepPlan(step=self.steps, removed_rows=pack_u32(self.ended_rows))
        self.ended_rows = []
        changes: list[tuple[int, int, list[int]]] = []  # row, start, blocks
        copies: list[tuple[int, int]] = []
        computing: list[tuple[int, int, int]] = []  # row, start, count
        samples: list[tuple[DrivenSequence, int]] = []
        rooms: dict[int, int] = {}  # row -> tokens that may be drafted for it
        left = self.budget
        for sequence in list(self.running):
            count = min(len(sequence.tokens) - sequence.num_computed, left)
            count = self._uncut(sequence, count)
            if not count:
                continue
            left = max(left - count, 0)
            end = sequence.num_computed + count
            if self.room and count == 1 and sequence.started:
                room = min(self.room, left, sequence.max_tokens - len(sequence.output) - 1)
                rooms[sequence.row] = room
                left, count, end = left - room, count + room, end + room
            self._make_room(sequence, end, changes, copies)
            if not sequence.started:
                sequence.started = True
                blocks = list(sequence.blocks)
                if changes and changes[-1][0] == sequence.row:
                    changes.pop()
                plan.new_rows.append(
                    worker_pb2.NewRow(
                        row=sequence.row,
                        token_ids=pack_u32(sequence.tokens),
                        prompt_len=sequence.prompt_len,
                        blocks=pack_u32(blocks),
                        sequence_index=sequence.index,
                        sampling=sequence.params,
                        logprobs=sequence.wants,
                        prompt_logprobs=sequence.prompt_wants,
                        prompt_logprobs_start=sequence.prompt_start,
                        pooling=sequence.pooling,
                        adapter=sequence.adapter,
                        embeddings=sequence.embeddings,
                        media=map(without_data, sequence.media),
                    )
                )
            self._encode(plan, sequence, end)
            computing.append((sequence.row, sequence.num_computed, count))
            sequence.num_computed = end
            if end >= len(sequence.tokens):
                samples.append((sequence, len(computing) - 1))
                self._fork(sequence, plan, samples, len(computing) - 1)
        plan.table_rows = pack_u32(row for row, _, _ in changes)
        plan.table_starts = pack_u32(start for _, start, _ in changes)
        plan.table_counts = pack_u32(len(blocks) for _, _, blocks in changes)
        plan.table_blocks = pack_u32(block for _, _, blocks in changes for block in blocks)
        plan.copy_sources = pack_u32(source for source, _ in copies)
        plan.copy_targets = pack_u32(target for _, target in copies)
        plan.rows = pack_u32(row for row, _, _ in computing)
        plan.starts = pack_u32(start for _, start, _ in computing)
        plan.counts = pack_u32(count for _, _, count in computing)
        plan.sample_rows = pack_u32(sequence.row for sequence, _ in samples)
        plan.sample_sources = pack_u32(source for _, source in samples)
        if rooms:
            plan.sample_counts = pack_u32(1 + rooms.get(sequence.row, 0) for sequence, _ in samples)
        return plan, [sequence for sequence, _ in samples]

    def _encode(self, plan: worker_pb2.StepPlan, sequence: DrivenSequence, end: int) -> None:
        """Has the items encoded of which a sequence computes positions, and that are not kept."""
        for item in sequence.media:
            positions = unpack_u32(item.positions)
            touched = positions[0] < end and positions[-1] >= sequence.num_computed
            if touched and item.digest not in self.encoded:
                self.encoded.add(item.digest)
                plan.encode.add(kind=item.kind, shape=item.shape, data=item.data, digest=item.digest)

    def _make_room(
        self,
        sequence: DrivenSequence,
        end: int,
        changes: list[tuple[int, int, list[int]]],
        copies: list[tuple[int, int]],
    ) -> None:
        """Blocks for positions up to end; what is shared and about to be written is copied first."""
        first = sequence.num_computed // self.block_size
        for index in range(first, min(len(sequence.blocks), -(-end // self.block_size))):
            block = sequence.blocks[index]
            if self.references[block] > 1:
                copy = self._take()
                copies.append((block, copy))
                self._release(block)
                sequence.blocks[index] = copy
                changes.append((sequence.row, index, [copy]))
        held = len(sequence.blocks)
        more = [self._take() for _ in range(-(-end // self.block_size) - held)]
        if more:
            sequence.blocks += more
            changes.append((sequence.row, held, more))

    def _fork(
        self,
        sequence: DrivenSequence,
        plan: worker_pb2.StepPlan,
        samples: list[tuple[DrivenSequence, int]],
        source: int,
    ) -> None:
        for sibling in sequence.siblings:
            plan.forks.append(
                worker_pb2.ForkRow(row=sibling.row, source_row=sequence.row, sequence_index=sibling.index)
            )
            sibling.blocks = list(sequence.blocks)
            self.references.update(sibling.blocks)
            sibling.num_computed, sibling.started = sequence.num_computed, True
            self.running.append(sibling)
            samples.append((sibling, source))
        sequence.siblings = []

    def _take(self) -> int:
        block = self.free.pop()
        self.references[block] = 1
        return block

    def _release(self, block: int) -> None:
        self.references[block] -= 1
        if not self.references[block]:
            self.free.insert(0, block)


def make_runner(folder: Path, **changes: object) -> StepExecutor[CpuBackend]:
    """A runner with the real sampler."""
    return load(initialize(folder, **changes), CpuPlatform(WorkerConfig(threads=1)))[0]
