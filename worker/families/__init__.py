"""Model families: how the config.json of each is read, and what its checkpoints call the parts of a model.
Needs no torch."""
