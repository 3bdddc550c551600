"""Drafts of a head that reads the target's hidden states: EAGLE-3 checkpoints (docs/speculation.md).

config.py     config.json of a head, and whether it fits a target
model.py      the head: one decoder layer over embeddings and features
features.py   what the head reads of the target's steps, by slot of the cache
drafter.py    runs the head on rows of the target, and samples as the target would

A device loads the head (worker.cpu.drafters.head).
"""
