"""Drafters with weights of their own, on a CPU: a smaller model, or a head that reads the target's hidden
states. They run beside the target in the same worker, on caches with the blocks of the target's.

loaded.py         a drafter whose weights are loaded, and whose cache is not allocated yet
draft_model.py    a smaller model: which can draft for which, and how it is loaded
model_drafter.py  runs it on rows of the target, and samples as the target would
draft_slots.py    what its cache holds
head_config.py    config.json of a head, and whether it fits a target
head_layers.py    heads: EAGLE-3, and the layer of a checkpoint that predicts one token more
head.py           loads a head, and runs it on rows of the target
features.py       what it reads of the target's steps, by slot of the cache
"""
