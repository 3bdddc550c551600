"""Bugs of speculative decoding: what is accepted, what a draft model knows, and when drafts pay."""

from tests.mutants.mutant import Mutant

MUTANTS = (
    Mutant(
        name="a draft is accepted whatever was sampled",
        within="worker:Verification._accepts",
        old="self._drafts[entry][position:position + 1] == [token]",
        new="position < len(self._drafts[entry])",
        tests=("speculation/test_exactness.py",),
    ),
    Mutant(
        name="drafted tokens stay in the row while it is sampled",
        within="worker:StepDrafts.take_back",
        old="rows.num_tokens[sample_rows] -= self.num_logits - 1",
        new="assert len(sample_rows)",
        tests=("test_speculator.py",),
    ),
    Mutant(
        name="a draft model samples with the number of the next position",
        within="worker:ModelDrafter.draft",
        old="self._positions[row] = position",
        new="self._positions[row] = position + 1",
        tests=("models/test_model_drafter.py",),
    ),
    Mutant(
        name="rows keep what a draft model has appended",
        within="worker:ModelDrafter.draft",
        old="self._rows.num_tokens[index], self._rows.num_computed[index] = (num_tokens, num_computed)",
        new="self._rows.num_tokens[index], self._rows.num_computed[index] = (num_tokens + 1, num_computed)",
        tests=("models/test_model_drafter.py",),
    ),
    Mutant(
        name="a draft model computes what it has again",
        within="worker:DraftSlots.length",
        old="min(end, whole * size + partly)",
        new="0",
        tests=("models/test_model_drafter.py",),
    ),
    Mutant(
        name="a draft model believes in slots that the target has written again",
        within="worker:DraftSlots.write",
        old="np.minimum.at(self._right, table.blocks[rows[owners], places], kept)",
        new="assert len(kept) == len(places)",
        tests=("test_draft_slots.py",),
    ),
    Mutant(
        name="a draft model believes in blocks that come back from host memory",
        within="worker:DraftSlots.forget",
        old="self._right[blocks] = 0",
        new="assert len(blocks)",
        tests=("test_draft_slots.py",),
    ),
    Mutant(
        name="a head believes in what it computed from features of its own",
        within="worker:HeadDrafter.draft",
        old="self.slots.write(index[some], own.num_tokens[index[some]], drafted[some])",
        new="assert len(some) == len(rows)",
        tests=("models/test_head_drafter.py",),
    ),
    Mutant(
        name="a block that is copied keeps its own features",
        within="worker:FeatureCache.move_blocks",
        old="block_copies.copy_blocks(pool, torch.from_numpy(sources), torch.from_numpy(targets))",
        new="assert len(sources) == len(targets)",
        tests=("models/test_head_drafter.py",),
    ),
    Mutant(
        name="another vocabulary may draft",
        within="worker:check_draft_model",
        old="None not in vocabularies",
        new="None in vocabularies",
        tests=("models/test_draft_model.py",),
    ),
    Mutant(
        name="drafts that are refused shorten those of another drafter",
        within="worker:Sources.judge",
        old="self._of_row[row].lengths.judge(row, num_tokens, drafted, accepted)",
        new=("for source in self._sources:\n    source.lengths.judge(row, num_tokens, drafted, accepted)"),
        tests=("test_sources.py",),
    ),
    Mutant(
        name="the prompts of a draft model count against its drafts",
        within="engine_core:DraftGain.step_done",
        old="not began or not result.duration_us or (not only_decodes) or result.draft_prefill",
        new="not began or not result.duration_us or (not only_decodes)",
        tests=("test_draft_gain.py",),
    ),
)
