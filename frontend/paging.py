"""Pages of lists, after AIP-158: how many items a page has, and the item behind which it begins."""

from base64 import b64decode, urlsafe_b64encode
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from google.protobuf.message import DecodeError

from frontend.errors import InvalidRequest
from pagewire.internal.v1.engine_pb2 import ListPosition
from pagewire.v1 import inspection_pb2 as pb

DEFAULT_SIZE, MAX_SIZE = 100, 1000
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Page:
    """A page of a list."""

    size: int
    """Maximum number of keys; items of one key, such as a tenant at several cores, are on one page."""
    after: ListPosition
    """It begins behind this key."""

    def cut(self, found: Sequence[T], key: Callable[[T], tuple[int, str]]) -> tuple[list[T], str]:
        """Returns the items of the page by key, and the token of the next page; empty: there is none.

        found: of each source the first size + 1 keys behind `after`, and possibly others. key: number and
        name of a ListPosition."""
        keys = sorted({each for each in map(key, found) if each > (self.after.number, self.after.name)})
        on_page = set(keys[: self.size])
        items = sorted((each for each in found if key(each) in on_page), key=key)
        if len(keys) <= self.size:
            return items, ""
        self.after.number, self.after.name = keys[self.size - 1]
        return items, urlsafe_b64encode(self.after.SerializeToString()).decode()


def read_page(request: pb.ListRequestsRequest | pb.ListTenantsRequest, tenant: str | None = None) -> Page:
    """Returns the page that is asked for. tenant: whose items are listed; None: all. Raises InvalidRequest,
    also for a token of another list or tenant."""
    if request.HasField("limit") and (request.page_size or request.page_token):
        raise InvalidRequest({"limit": "cannot be combined with page_size and page_token"})
    if request.HasField("limit") and not 1 <= request.limit <= MAX_SIZE:
        raise InvalidRequest({"limit": f"must be 1 to {MAX_SIZE}, not {request.limit}"})
    if request.page_size < 0:
        raise InvalidRequest({"page_size": f"must be at least 0, not {request.page_size}"})
    first = ListPosition(list=request.DESCRIPTOR.name, tenant=tenant)
    try:
        after = ListPosition.FromString(b64decode(request.page_token, b"-_", validate=True))
    except (DecodeError, ValueError):
        after = ListPosition()
    known = ListPosition(list=first.list, tenant=tenant, number=after.number, name=after.name)
    if request.page_token and after != known:
        raise InvalidRequest({"page_token": "must be the next_page_token of a page with the same filters"})
    size = request.limit or min(request.page_size or DEFAULT_SIZE, MAX_SIZE)
    return Page(size, after if request.page_token else first)
