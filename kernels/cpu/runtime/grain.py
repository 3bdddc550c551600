"""How few rows a thread takes."""


def row_grain(width: int) -> int:
    """Returns the fewest rows that a thread takes: about a microsecond of work, below which another thread
    does not pay."""
    return max(1, 4096 // width)
