"""Checks a request against the terms of its tenant's token, before any work. Pure."""

from frontend.auth.caller import Caller
from frontend.errors import TermsExceeded
from pagewire.v1 import generation_pb2


def check_terms(caller: Caller, priority: int, num_sequences: int = 1, path: str = "") -> None:
    """Checks what a request may have. num_sequences: that it runs at once, which `path` asks for. Raises
    TermsExceeded, naming the fields."""
    terms = caller.terms
    if terms is None:
        return
    found = {}
    if priority < terms.min_priority:
        found["priority"] = f"must be at least {terms.min_priority} with this token, not {priority}"
    if terms.max_sequences and num_sequences > terms.max_sequences:
        found[path] = f"must be at most {terms.max_sequences} with this token, not {num_sequences}"
    if found:
        raise TermsExceeded(found)


def sequences_of(sampling: generation_pb2.SamplingParams) -> tuple[int, str]:
    """Returns the number of sequences that a request runs at once, and the field that asks for them."""
    if sampling.HasField("beam_search"):
        return sampling.beam_search.width, "sampling.beam_search.width"
    if sampling.HasField("best_of"):
        return sampling.best_of, "sampling.best_of"
    return (sampling.n if sampling.HasField("n") else 1), "sampling.n"
