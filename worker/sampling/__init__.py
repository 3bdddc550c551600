"""The sampler: logits are adjusted (LogitAdjustments), then tokens are banned (token_bans.py), then one is
chosen. Candidates, filters and the draw are kernels.ops.sampling.choose."""
