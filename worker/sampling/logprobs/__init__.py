"""Log-probabilities of what rows sample and of their prompts. docs/sampling.md.

wishes.py     which rows want them, and with which candidates
columns.py    results as columns of messages
scores.py     from logits to results
sampled.py    of the tokens that rows sample
prompts.py    of the tokens that rows read

The first two know nothing of torch: the simulated worker has them too.
"""
