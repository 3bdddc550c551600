"""Speculative decoding: tokens are drafted, computed in one step, and accepted where they are the tokens that
would have been sampled anyway (docs/speculation.md).

drafter.py        what proposes tokens for a row, and what does where a grammar forces them
lookup.py         drafters: what followed the row's last tokens before, in it or in outputs of its tenant
models/           drafters with weights of their own, on a CPU
sources.py        the drafters of one executor, and how many tokens each drafts for a row
speculator.py     drafts of one step, for the executor, which verifies (worker.executor.executor)
options.py        what a core asks of drafts, checked, and the drafters that follow from it

Nothing here but models/ imports torch: the simulated worker uses it too.
"""
