"""Log-probabilities of sampled tokens and of prompts: docs/sampling.md.

requests.py   which rows request them, and with which candidates
columns.py    results as columns of messages
scores.py     from logits to results

The first two do not import torch: the simulated worker uses them too.
"""
