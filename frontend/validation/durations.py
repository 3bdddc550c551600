"""Durations in requests of operators."""

from google.protobuf.duration_pb2 import Duration

from frontend.errors import InvalidRequest

LONGEST = 24 * 3600
"""Longest duration, in seconds."""


def seconds_of(duration: Duration, path: str) -> float:
    """Returns a duration in seconds. Raises InvalidRequest for a negative one or one above a day."""
    seconds = duration.seconds + duration.nanos / 1e9
    if not 0 <= seconds <= LONGEST:
        raise InvalidRequest({path: f"must be 0 to {LONGEST} s"})
    return seconds
