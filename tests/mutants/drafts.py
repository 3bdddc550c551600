"""Bugs of speculative decoding: what is accepted, what a draft model knows, and when drafts pay."""

from tests.mutants.mutant import Mutant

MUTANTS = (
    Mutant(
        name="a draft is accepted whatever was sampled",
        file="worker/executor/verification.py",
        old="        return self._drafts[entry][position : position + 1] == [token]\n",
        new="        return position < len(self._drafts[entry])\n",
        tests=("tests/worker/speculation/test_exactness.py",),
    ),
    Mutant(
        name="drafted tokens stay in the row while it is sampled",
        file="worker/speculation/drafts.py",
        old="        rows.num_tokens[sample_rows] -= self.num_logits - 1\n",
        new="        assert len(sample_rows)\n",
        tests=("tests/worker/speculation/test_speculator.py",),
    ),
    Mutant(
        name="a draft model samples with the number of the next position",
        file="worker/draft_model/drafter.py",
        old="            self._positions[row] = position\n",
        new="            self._positions[row] = position + 1\n",
        tests=("tests/worker/draft_model/test_drafter.py",),
    ),
    Mutant(
        name="rows keep what a draft model has appended",
        file="worker/draft_model/drafter.py",
        old="[index] = num_tokens, num_computed\n",
        new="[index] = num_tokens + 1, num_computed\n",
        tests=("tests/worker/draft_model/test_drafter.py",),
    ),
    Mutant(
        name="a draft model computes what it has again",
        file="worker/speculation/draft_slots.py",
        old="        return min(end, whole * size + partly)\n",
        new="        return 0\n",
        tests=("tests/worker/draft_model/test_drafter.py",),
    ),
    Mutant(
        name="a draft model believes in slots that the target has written again",
        file="worker/speculation/draft_slots.py",
        old="        np.minimum.at(self._right, table.blocks[rows[owners], places], kept)\n",
        new="        assert len(kept) == len(places)\n",
        tests=("tests/worker/speculation/test_draft_slots.py",),
    ),
    Mutant(
        name="a draft model believes in blocks that come back from host memory",
        file="worker/speculation/draft_slots.py",
        old="        self._right[blocks] = 0\n",
        new="        assert len(blocks)\n",
        tests=("tests/worker/speculation/test_draft_slots.py",),
    ),
    Mutant(
        name="a head believes in what it computed from features of its own",
        file="worker/heads/drafter.py",
        old="        self.slots.write(index[some], own.num_tokens[index[some]], drafted[some])\n",
        new="        assert len(some) == len(rows)\n",
        tests=("tests/worker/heads/test_drafter.py",),
    ),
    Mutant(
        name="a block that is copied keeps its own features",
        file="worker/heads/features.py",
        old="            copy_blocks(self._pool, torch.from_numpy(sources), torch.from_numpy(targets))\n",
        new="            assert len(sources) == len(targets)\n",
        tests=("tests/worker/heads/test_drafter.py",),
    ),
    Mutant(
        name="another vocabulary may draft",
        file="worker/draft_model/checks.py",
        old="    if None not in vocabularies and vocabularies[0] != vocabularies[1]:\n",
        new="    if None in vocabularies and vocabularies[0] != vocabularies[1]:\n",
        tests=("tests/worker/draft_model/test_checks.py",),
    ),
    Mutant(
        name="drafts that are refused shorten those of another drafter",
        file="worker/speculation/sources.py",
        old="        self._of_row[row].lengths.judge(row, num_tokens, drafted, accepted)\n",
        new="        for source in self._sources:\n"
        "            source.lengths.judge(row, num_tokens, drafted, accepted)\n",
        tests=("tests/worker/speculation/test_sources.py",),
    ),
    Mutant(
        name="the prompts of a draft model count against its drafts",
        file="engine_core/scheduler/planning/draft_gain.py",
        old=" or not only_decodes or result.draft_prefill:\n",
        new=" or not only_decodes:\n",
        tests=("tests/engine_core/scheduler/planning/test_draft_gain.py",),
    ),
)
