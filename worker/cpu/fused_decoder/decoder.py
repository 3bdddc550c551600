"""A decoder whose steps are one native call each, beside the layered model that is its reference.

The operations of all layers have been recorded in one program (kernels.cpu.program); a step fills in how many
tokens it has and where its inputs and plans are. The results have the same bits as those of the layers.
Logits of the tokens that are sampled from, and the choice by them, are part of it. There are two
programs: one for steps of few tokens, and one for more, which are recorded with the first step. A program is
recorded anew for a longer step, or for one with more logits, with powers of two so that few are.
"""

import logging
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from typing import cast

import torch

from kernels.api import (
    BlockKernels,
    CannotRecord,
    CpuOps,
    InputBatch,
    KVCacheSpec,
    LayerCache,
    RecordingOps,
    RowStateSpec,
    StepProgram,
    adapters,
)
from worker.models.base import LanguageModel
from worker.models.decoder import Decoder
from worker.parallel import ONE_RANK

logger = logging.getLogger(__name__)

LONG, WIDE = 2048, 256
"""The most tokens and logits of the program that is recorded before a step needs it: buffers take no memory
before rows of them are written, but the system may refuse them."""


class Part(Enum):
    """What a program computes."""

    WHOLE = 0
    """A step, to the tokens that rank 0 has chosen."""
    BEGIN = 1
    """The layers of a stage, for a micro-batch: to what is handed on."""
    END = 2
    """At stage 0, what follows when the last stage has handed it back."""


def fuse(
    model: LanguageModel, ops: CpuOps | None, blocks: BlockKernels | None, most_tokens: int, most_logits: int
) -> LanguageModel:
    """Returns a FusedDecoder, or the model itself where its steps cannot be recorded: that is tried here, on
    a cache of one block and buffers of two rows, since any part of one row is contiguous. ops, blocks: None
    where the compiled kernels are not used. most_tokens, most_logits: of a step."""
    if ops is None or blocks is None or not isinstance(model, Decoder):
        return model
    try:
        caches = _small_caches(model, ops.dtype, blocks.block_size)
        record(model, RecordingOps(ops, blocks, 2), caches, 2, checks=True)
    except CannotRecord as error:
        part = layer_that_failed(model, error)
        logger.info("steps are computed layer by layer: %s has no program: %s", part, error)
        return model
    return FusedDecoder(model, ops, blocks, (min(most_tokens, LONG), min(most_logits, WIDE)))


@torch.inference_mode()
def record(
    model: Decoder,
    ops: RecordingOps,
    caches: Sequence[LayerCache],
    most_logits: int,
    checks: bool = False,
    part: Part = Part.WHOLE,
) -> torch.Tensor:
    """Returns the buffer of hidden states [M, E]. Logits and the choice of tokens follow them.
    checks: see RecordingOps.recording(). Raises CannotRecord."""
    with ops.recording(model, checks):
        if part is Part.END:
            hidden = model.end(ops.most_tokens)
            ops.choose(model.logits, hidden, most_logits, ONE_RANK)
            return hidden
        batch = ops.batch(model.kv_cache_specs())
        if part is Part.BEGIN:
            return model.begin(batch, caches)
        hidden = model.forward(batch, caches)
        if model.gets_tokens:
            ops.await_choice(most_logits, model.world)
        else:
            ops.choose(model.logits, hidden, most_logits, model.world)
    return hidden


def _small_caches(model: Decoder, dtype: torch.dtype, block_size: int) -> list[LayerCache]:
    """Returns what each layer keeps, of one block and of one row."""

    def empty(spec: KVCacheSpec | RowStateSpec) -> LayerCache:
        if isinstance(spec, RowStateSpec):
            planes = *spec.planes(), *spec.draft_planes(0)
        else:
            planes = spec.planes(block_size, dtype)
        return tuple(torch.empty(1, *plane.block_shape, dtype=plane.dtype) for plane in planes)

    return [sum(map(empty, specs), ()) for specs in model.layer_specs()]


def layer_that_failed(model: Decoder, error: BaseException) -> str:
    """Returns the path and the class of the innermost layer that was called when an error was raised."""
    paths = {id(layer): path for path, layer in model.named_modules()}
    traceback, found = error.__traceback__, cast(object, model)
    while traceback is not None:
        owner = traceback.tb_frame.f_locals.get("self")
        found = owner if id(owner) in paths else found
        traceback = traceback.tb_next
    path, kind = paths[id(found)], type(found).__name__
    return f"{path} ({kind})" if path else kind


@dataclass(slots=True)
class _LastStep:
    """What forward() returned last. Not an attribute of the model: torch looks at all that is set there, for
    ten microseconds of a step."""

    hidden: torch.Tensor  # [T, E]
    few: bool | None  # whether the step was one of few tokens; None: no program has computed it


class FusedDecoder(LanguageModel):
    """Runs a Decoder that can be recorded, on one cache."""

    def __init__(self, model: Decoder, ops: CpuOps, blocks: BlockKernels, expected: tuple[int, int]) -> None:
        """expected: tokens and logits of the longest steps whose program is recorded with the first step."""
        super().__init__()
        self.model, self._ops, self._blocks, self._expected = model, ops, blocks, expected
        self.target_modules, self.gets_tokens = model.target_modules, model.gets_tokens
        self.vision = model.vision
        self.programs: dict[bool, StepProgram] = {}  # for steps of few tokens: True, and of many
        self._last = _LastStep(torch.empty(0), False)
        self._captures: dict[bool, Sequence[torch.Tensor]] = {}  # of each program: buffers [M, E]
        self._parts: dict[tuple[Part, bool], StepProgram] = {}  # of micro-batches, by kind as programs

    def forward(self, batch: InputBatch, caches: Sequence[LayerCache]) -> torch.Tensor:
        """The next step overwrites the result."""
        if batch.deeper is not None or (batch.adapters is not None and self.model.tensor.size > 1):
            return self._by_layers(batch, caches)
        tokens, logits = len(batch.token_ids), batch.num_logits
        few = tokens <= RecordingOps.FEW
        if not self.programs and self._expected[0] > RecordingOps.FEW:
            with suppress(MemoryError):  # then each step says whether its memory suffices
                self.programs[False] = self._record(False, self._expected, batch, caches)
        program = self.programs.get(few)
        if program is None or program.most_tokens < tokens or program.computed.most_logits < logits:
            program = self.programs[few] = self._record(few, (tokens, logits), batch, caches)
        program.run(batch)
        hidden = program.first_rows(tokens)
        self._last.hidden, self._last.few = hidden, few
        return hidden

    @property
    def computes_micro_batches(self) -> bool:
        """Whether begin() and end() may take the place of forward()."""
        return self.model.stage.count > 1 and self.model.tensor.size == 1 and self.model.capturing is None

    @property
    def message_tokens(self) -> int:
        """Tokens whose hidden states are one message between stages, of which two may be on their way."""
        handover, link = self.model.handover, self.model.stage.behind.link
        assert handover is not None and link is not None
        return link.capacity // handover.row_bytes

    def begin(self, batch: InputBatch, caches: Sequence[LayerCache]) -> torch.Tensor:
        """Computes the layers of this stage, and hands on what the next one needs. Returns hidden states
        [T, E], which the next call overwrites."""
        self._last.few = None
        if batch.deeper is not None:
            return self.model.begin(batch, caches)
        program = self._program_of_part(Part.BEGIN, batch, caches, 0)
        program.run(batch)
        return program.first_rows(len(batch.token_ids))

    def end(self, batch: InputBatch) -> tuple[torch.Tensor, torch.Tensor | None, torch.Tensor | None]:
        """Returns the hidden states [T, E] of a step that has begun, once they are back at stage 0; logits
        [A, V] and chosen tokens [A], as far as it wants them. The next call overwrites them."""
        program = self._program_of_part(Part.END, batch, (), batch.num_logits)
        program.run(batch)
        computed = program.computed
        return program.first_rows(len(batch.token_ids)), computed.logits, computed.tokens

    def _program_of_part(
        self, part: Part, batch: InputBatch, caches: Sequence[LayerCache], logits: int
    ) -> StepProgram:
        tokens = len(batch.token_ids)
        key = part, tokens <= RecordingOps.FEW
        program = self._parts.get(key)
        if program is None or program.most_tokens < tokens or program.computed.most_logits < logits:
            most = max(tokens, RecordingOps.FEW), max(logits, RecordingOps.FEW)
            if program is not None:
                most = max(most[0], program.most_tokens), max(most[1], program.computed.most_logits)
            most_tokens, most_logits = (1 << (count - 1).bit_length() for count in most)
            ops = RecordingOps(self._ops, self._blocks, most_tokens)
            if part is Part.BEGIN and key[1]:
                self._prefetch(ops, batch, caches)
            hidden = record(self.model, ops, caches, most_logits, part=part)
            program = self._parts[key] = ops.build(hidden)
        return program

    def _prefetch(self, ops: RecordingOps, batch: InputBatch, caches: Sequence[LayerCache]) -> None:
        stateful = [isinstance(specs[0], RowStateSpec) for specs in self.model.layer_specs()]
        ops.prefetch(self.model.kv_cache_specs(), caches[stateful.index(False)], batch)

    def _by_layers(self, batch: InputBatch, caches: Sequence[LayerCache]) -> torch.Tensor:
        """Vectors are added behind layers in steps that compute images alone. Adapters of layers whose inputs
        ranks divide read all of these: ranks exchange them in such steps alone. No program does either."""
        hidden = self._last.hidden = self.model.forward(batch, caches)
        self._last.few = None
        return hidden

    @property
    def captured(self) -> Sequence[torch.Tensor]:
        if self._last.few is None:
            return self.model.captured
        return [buffer[: len(self._last.hidden)] for buffer in self._captures[self._last.few]]

    def logits(self, hidden: torch.Tensor, adapters: adapters.StepAdapters | None = None) -> torch.Tensor:
        return self.model.logits(hidden, adapters)

    def sampled_logits(self, hidden: torch.Tensor, batch: InputBatch) -> torch.Tensor:
        program = self._program_of(hidden)
        computed = None if program is None else program.computed.logits
        return super().sampled_logits(hidden, batch) if computed is None else computed

    def chosen_tokens(self, hidden: torch.Tensor) -> torch.Tensor | None:
        program = self._program_of(hidden)
        return None if program is None else program.computed.tokens

    @property
    def logits_of_program(self) -> torch.Tensor | None:
        """[A, V] float32, where the last step has computed them and the next one of its shape will; None: it
        has not."""
        program = self._program_of(self._last.hidden)
        return None if program is None else program.computed.logits

    def fixed_program(self, batch: InputBatch) -> StepProgram | None:
        """Returns the program of the last step if it may run again as it is, after numbers in the tensors of
        the batch have changed, which was the last one; None: something is to be written before."""
        program = self._program_of(self._last.hidden)
        return program if program is not None and program.is_fixed(batch) else None

    def _program_of(self, hidden: torch.Tensor) -> StepProgram | None:
        """The program of the last step, if `hidden` is all that it computed."""
        few = self._last.few
        return self.programs.get(few) if few is not None and hidden is self._last.hidden else None

    def _record(
        self, few: bool, most: tuple[int, int], batch: InputBatch, caches: Sequence[LayerCache]
    ) -> StepProgram:
        """Returns a program for steps of few tokens, or of many. most: tokens and logits; at least those of
        the last program of its kind. batch: any."""
        last, least = self.programs.get(few), RecordingOps.FEW
        before = (least, least) if last is None else (last.most_tokens, last.computed.most_logits)
        most_tokens, most_logits = (1 << (count - 1).bit_length() for count in map(max, most, before))
        ops = RecordingOps(self._ops, self._blocks, most_tokens)
        if few:
            self._prefetch(ops, batch, caches)
        hidden = record(self.model, ops, caches, most_logits)
        self._captures[few] = self.model.captured
        return ops.build(hidden)
