"""Errors of the grammar library, which is written in Rust."""


def is_panic(error: BaseException) -> bool:
    """Returns whether an exception is a panic of a library in Rust: it is no Exception, but ends one request
    alone."""
    return type(error).__name__ == "PanicException"
