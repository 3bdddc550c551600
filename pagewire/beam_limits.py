"""What a beam search may come with: frontends say so to clients, and the engine core checks it again."""

MAX_LENGTH_PENALTY = 10.0
"""With either sign: length ** length_penalty stays a number."""
MAX_STOPS = 128
"""Tokens that may end a beam: each costs a candidate per beam and step."""

NEUTRAL: dict[str, tuple[float, ...]] = {
    "temperature": (0, 1),
    "top_p": (1,),
    "top_k": (0,),
    "min_p": (0,),
    "typical_p": (1,),
}
"""Values of the fields that change how rows sample. Beams do not: what would have no effect is not passed
over in silence."""
