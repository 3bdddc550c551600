"""What was drafted for a request, for its usage."""

from pagewire.speculation import METHOD_NAMES
from pagewire.v1 import generation_pb2


class DraftCounts:
    """Drafted and accepted tokens of one request, by what drafted them."""

    def __init__(self) -> None:
        self._by_method: dict[str, tuple[int, int]] = {}

    def add(self, method: int, num_drafted: int, num_accepted: int) -> None:
        """Counts a draft. method: a DraftMethod of worker.proto; unknown ones are unspecified."""
        name = METHOD_NAMES.get(method, METHOD_NAMES[0])
        drafted, accepted = self._by_method.get(name, (0, 0))
        self._by_method[name] = drafted + num_drafted, accepted + num_accepted

    def put(self, usage: generation_pb2.Usage) -> None:
        """Writes the counts into an answer."""
        for name, (drafted, accepted) in sorted(self._by_method.items()):
            usage.draft_tokens += drafted
            usage.accepted_draft_tokens += accepted
            usage.drafters.add(drafter=name, draft_tokens=drafted, accepted_draft_tokens=accepted)
