"""What a request's usage says of its drafts."""

from frontend.telemetry.timings import DraftCounts
from pagewire.internal.v1 import engine_pb2
from pagewire.v1 import generation_pb2


def test_usage_names_each_drafter() -> None:
    counts = DraftCounts()
    for method, drafted, accepted in (
        (engine_pb2.DRAFT_METHOD_LOOKUP, 4, 1),
        (engine_pb2.DRAFT_METHOD_HEADS, 3, 3),
        (engine_pb2.DRAFT_METHOD_LOOKUP, 2, 0),
        (99, 1, 0),  # of a core that is newer
    ):
        counts.add(method, drafted, accepted)
    usage = generation_pb2.Usage()
    counts.put(usage)
    assert (usage.draft_tokens, usage.accepted_draft_tokens) == (10, 4)
    assert [(each.drafter, each.draft_tokens, each.accepted_draft_tokens) for each in usage.drafters] == [
        ("heads", 3, 3),
        ("lookup", 6, 1),
        ("unspecified", 1, 0),
    ]
