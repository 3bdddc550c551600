"""Speculative decoding: tokens are drafted, computed in one step, and accepted where they are the tokens that
would have been sampled anyway (docs/speculation.md).

drafter.py        what proposes tokens for a row
lookup.py         a drafter: what followed the row's last tokens before
ngram_index.py    where the last tokens of a row occurred before
forced.py         a drafter: what a grammar forces
sources.py        the drafters of one executor, the first of which that has an idea drafts
shared_lookup.py  a drafter: what followed them in earlier outputs of the tenant
shared_texts.py   where runs of tokens occurred in these
draft_lengths.py  how many tokens to draft, from what was accepted lately
draft_slots.py    what a draft model or a head has computed (worker.draft_model, worker.heads)
drafts.py         the drafts of one step, in the row table while it computes
speculator.py     all of it, for the executor, which verifies (worker.executor.verification)

Nothing here imports torch: the simulated worker uses it too.
"""
