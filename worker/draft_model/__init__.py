"""Drafts of a smaller model, which runs beside the target in the same worker (docs/speculation.md).

drafter.py   runs the model on rows of the target, and samples as the target would
params.py    which of a row's parameters the draft model samples with
checks.py    which models can draft for which

What its cache holds is in worker.speculation.draft_slots; a device loads the model (worker.cpu.drafters).
"""
