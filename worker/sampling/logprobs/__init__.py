"""Log-probabilities of sampled tokens and of prompts: docs/sampling.md."""
