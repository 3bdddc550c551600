"""Limits of a beam search: frontends report violations to clients, and the engine core checks again."""

MAX_LENGTH_PENALTY = 10.0
"""Largest absolute value: length ** length_penalty must stay finite."""
MAX_STOPS = 128
"""Most tokens that may end a beam: each costs a candidate per beam and step."""

NEUTRAL: dict[str, tuple[float, ...]] = {
    "temperature": (0, 1),
    "top_p": (1,),
    "top_k": (0,),
    "min_p": (0,),
    "typical_p": (1,),
}
"""Allowed values of the sampling fields: beams are not sampled, and fields without effect are refused rather
than ignored."""
