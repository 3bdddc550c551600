"""Executes step plans: rows, model, cache and sampler put together."""

import time

import numpy as np
import torch

from kernels.cpu.attention.block_attention import BlockKernels
from kernels.ops.attention.ragged import Integers
from pagewire.internal.v1 import worker_pb2
from pagewire.v1 import generation_pb2
from worker.cpu.inputs import input_builder
from worker.memory.kv_cache import KVCache
from worker.memory.swap_space import SwapSpace
from worker.model_input import StepBatch
from worker.models.base import LanguageModel
from worker.sampling.logprobs.prompts import score_prompts
from worker.sampling.logprobs.requests import LogprobWishes
from worker.sampling.logprobs.sampled import SampledScores
from worker.sampling.sampler import Sampler
from worker.step.beams import Beams, Offers
from worker.step.plan_check import StepCheck
from worker.step.plan_reader import (
    Step,
    append_tokens,
    apply_changes,
    block_copies,
    read_step,
    read_swaps,
    token_column,
)
from worker.step.rows import RowTable

GREEDY = generation_pb2.SamplingParams(
    temperature=0,
    top_p=1,
    top_k=0,
    min_p=0,
    typical_p=1,
    frequency_penalty=0,
    presence_penalty=0,
    repetition_penalty=1,
    seed=0,
    n=1,
)
"""Of the warm-up's rows."""


class Runner:
    """One worker's model at work. Everything that a step needs is made here or handed in once."""

    def __init__(
        self,
        model: LanguageModel,
        cache: KVCache,
        swap_space: SwapSpace,
        rows: RowTable,
        sampler: Sampler,
        max_num_batched_tokens: int,
        kernels: BlockKernels | None = None,
    ) -> None:
        """kernels: what reads and writes the cache; None: torch."""
        self._model, self._cache, self._rows, self._sampler = model, cache, rows, sampler
        self._swap_space = swap_space
        self._wishes = LogprobWishes(rows.vocab_size)
        self._beams = Beams(rows.max_num_rows, rows.vocab_size)
        self._check = StepCheck(rows, kernels.check) if kernels is not None else None
        self._build_inputs = input_builder(rows, cache.specs, cache.layout, kernels)
        self._max_num_batched_tokens = max_num_batched_tokens

    @torch.inference_mode()
    def execute(self, plan: worker_pb2.StepPlan) -> worker_pb2.StepResult:
        """Runs one step. Raises PlanError when the plan does not fit the rows."""
        began = time.monotonic_ns()
        apply_changes(plan, self._rows, (self._sampler, self._wishes, self._beams))
        if plan.append_rows:
            appended, token_ids = append_tokens(plan, self._rows)
            self._sampler.append(appended, torch.from_numpy(token_ids).to(self._cache.layout.device))
        self._move_blocks(plan)
        result = self._compute(plan, began) if plan.rows else worker_pb2.StepResult()
        result.step = plan.step
        result.started_ns = began
        result.duration_us = (time.monotonic_ns() - began) // 1000
        return result

    def warm_up(self) -> None:
        """Computes one token of a prompt and one more, so that no request pays for what torch sets up on
        first use. The row ends again."""
        if self._rows.max_model_len < 2:
            return
        row = np.zeros(1, np.int64)
        blocks, token_ids = _pack([0]), _pack([0])
        new = worker_pb2.NewRow(row=0, prompt_len=1, token_ids=token_ids, blocks=blocks, sampling=GREEDY)
        self.execute(_plan(row, row, row + 1, [new]))
        if self._rows.block_size > 1 and self._rows.max_model_len > 2:
            self.execute(_plan(row, row + 1, row + 1, []))
        self.execute(worker_pb2.StepPlan(removed_rows=_pack(row)))

    def _move_blocks(self, plan: worker_pb2.StepPlan) -> None:
        """To host memory, back from there, then within the cache."""
        swaps = read_swaps(plan, self._cache.num_blocks, self._swap_space.num_blocks)
        if swaps:
            self._swap_space.execute(swaps)
        sources, targets = block_copies(plan, self._cache.num_blocks)
        if len(sources):
            device = self._cache.layout.device
            self._cache.copy_blocks(
                torch.from_numpy(sources).to(device), torch.from_numpy(targets).to(device)
            )

    def _compute(self, plan: worker_pb2.StepPlan, began: int) -> worker_pb2.StepResult:
        """What the step computes and samples. began: when it did, in nanoseconds."""
        step = read_step(plan, self._rows, self._max_num_batched_tokens, self._check)
        batch = self._build_inputs(step, self._are_greedy(step.sample_rows))
        prepared = time.monotonic_ns()
        hidden = self._model(batch, self._cache.layers)
        computed = time.monotonic_ns()
        self._rows.finish_step(step.rows, step.starts + step.counts)
        result = worker_pb2.StepResult()
        self._score_prompts(hidden, batch, step, result)
        self._sample(hidden, batch, step.sample_rows, result)
        result.prepare_us = (prepared - began) // 1000
        result.forward_us = (computed - prepared) // 1000
        result.sample_us = (time.monotonic_ns() - computed) // 1000
        return result

    def _score_prompts(
        self, hidden: torch.Tensor, batch: StepBatch, step: Step, result: worker_pb2.StepResult
    ) -> None:
        """hidden: [T, E]. The log-probabilities of prompts that somebody wants."""
        parts = self._wishes.prompt_parts(step.rows, step.starts, step.counts)
        if not parts:
            return

        def logits_of(places: torch.Tensor) -> torch.Tensor:
            return self._model.logits(hidden[places.to(hidden.device)])

        result.prompt_logprobs.extend(
            score_prompts(parts, batch.row_starts, self._rows.token_ids, logits_of, self._rows.vocab_size)
        )

    def _sample(
        self, hidden: torch.Tensor, batch: StepBatch, rows: Integers, result: worker_pb2.StepResult
    ) -> None:
        """hidden: [T, E]; rows: [A]. Appends to the rows what it samples."""
        if not len(rows):
            return
        chosen = self._model.greedy_tokens(hidden) if batch.greedy else None
        if chosen is not None:
            result.token_ids = token_column(self._take(chosen, rows))
            return
        if batch.logit_tokens is None:
            logits = self._model.logits(hidden)
        else:
            logits = self._model.logits(hidden.index_select(0, batch.logit_tokens))[: len(rows)]
        if not self._beams.are_among(rows):
            tokens = self._draw(logits, rows, result)
        else:
            beams = self._beams.among(rows)
            tokens = np.empty(len(rows), np.int64)
            tokens[beams] = self._offer(logits[torch.from_numpy(beams)], rows[beams], result)
            tokens[~beams] = self._draw(logits[torch.from_numpy(~beams)], rows[~beams], result)
        result.token_ids = token_column(tokens)

    def _are_greedy(self, rows: Integers) -> bool:
        """Whether each of the rows [A] takes the token of its largest logit, and wants nothing else."""
        numbers = rows.tolist()
        return (
            self._sampler.takes_largest(numbers)
            and not SampledScores(self._wishes).watches(numbers)
            and not self._beams.are_among(rows)
        )

    def _take(self, chosen: torch.Tensor, rows: Integers) -> Integers:
        """chosen: [A] tokens of greedy rows [A], which are appended to them."""
        self._sampler.append(rows.tolist(), chosen)
        tokens: Integers = chosen.numpy()
        self._rows.append(rows, np.maximum(tokens, 0))
        return tokens

    def _draw(self, logits: torch.Tensor, rows: Integers, result: worker_pb2.StepResult) -> Integers:
        """logits: [A, V]; rows: [A]. Their tokens, which are appended to them."""
        scores = SampledScores(self._wishes)
        tokens = self._sampler.sample(logits, rows.tolist(), scores).cpu().numpy()  # the step's one wait
        self._rows.append(rows, np.maximum(tokens, 0))
        columns = scores.columns()
        if columns is not None:
            result.logprobs.CopyFrom(columns)
        return tokens

    def _offer(self, logits: torch.Tensor, rows: Integers, result: worker_pb2.StepResult) -> Integers:
        """logits: [B, V] of beams; rows: [B]. What stands in the place of their tokens."""
        ids, logprobs = self._sampler.offer(logits, rows.tolist(), self._beams.most(rows))
        return self._beams.put(Offers(ids.cpu().numpy(), logprobs.cpu().numpy()), rows, result)


def _plan(
    rows: Integers, starts: Integers, counts: Integers, new_rows: list[worker_pb2.NewRow]
) -> worker_pb2.StepPlan:
    """These rows compute and sample."""
    return worker_pb2.StepPlan(
        new_rows=new_rows,
        rows=_pack(rows),
        starts=_pack(starts),
        counts=_pack(counts),
        sample_rows=_pack(rows),
        sample_sources=_pack(np.arange(len(rows))),
    )


def _pack(values: list[int] | Integers) -> bytes:
    return np.asarray(values, "<u4").tobytes()
