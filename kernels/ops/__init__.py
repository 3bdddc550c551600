"""One operation per file: what it computes, a plain reference, and the function that layers call."""
