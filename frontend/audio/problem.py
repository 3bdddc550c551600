"""Files that are no sound for a model."""


class AudioProblem(ValueError):
    """What is wrong with a file, as a client is told: "is ..." or "has ..."."""
