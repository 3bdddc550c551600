"""Pages of lists from several sources: every item once and in order, and tokens that are refused."""

from base64 import urlsafe_b64encode

import pytest

from frontend.errors import InvalidRequest
from frontend.paging import MAX_SIZE, Page, read_page
from pagewire.internal.v1.engine_pb2 import ListPosition
from pagewire.v1 import inspection_pb2 as pb

Key = tuple[int, str]
KEYS: list[list[Key]] = [
    [(1, "a"), (4, "b"), (4, "c"), (9, "d")],
    [],
    [(2, "e"), (4, "bb"), (10, "f"), (11, "g"), (12, "h")],
]
SHARED: list[list[Key]] = [[(1, ""), (1, "x"), (1, "z")], [(1, ""), (1, "y"), (1, "z")]]


def token_of(**fields: object) -> str:
    return urlsafe_b64encode(ListPosition(**fields).SerializeToString()).decode()  # type: ignore[arg-type]


def page_of(sources: list[list[Key]], page: Page) -> tuple[list[Key], str]:
    """Cuts the page out of what sources answer that keep to its size and beginning."""
    after = page.after.number, page.after.name
    found = [key for keys in sources for key in [key for key in keys if key > after][: page.size + 1]]
    return page.cut(found, lambda key: key)


@pytest.mark.parametrize("sources", [KEYS, SHARED, [[]]])
@pytest.mark.parametrize("size", [1, 2, 3, 4, 9, 100])
def test_every_item_is_on_one_page_and_in_order(sources: list[list[Key]], size: int) -> None:
    listed, token = [], ""
    while True:
        page = read_page(pb.ListRequestsRequest(page_size=size, page_token=token), "t")
        items, token = page_of(sources, page)
        assert len(set(items)) == size or not token
        listed += items
        if not token:
            break
    assert listed == sorted(key for keys in sources for key in keys)


def test_what_comes_and_goes_moves_nothing_else() -> None:
    sources = [list(keys) for keys in KEYS]
    first, token = page_of(sources, read_page(pb.ListRequestsRequest(page_size=4)))
    assert first[-1] == (4, "bb")
    sources[2].remove((4, "bb"))  # the item that the token names
    sources[1].append((3, "before"))
    sources[0].append((9, "e"))
    page = read_page(pb.ListRequestsRequest(page_size=100, page_token=token))
    assert page_of(sources, page)[0] == [(4, "c"), (9, "d"), (9, "e"), (10, "f"), (11, "g"), (12, "h")]


def test_sizes() -> None:
    for size, expected in (
        (0, 100),
        (1, 1),
        (MAX_SIZE, MAX_SIZE),
        (MAX_SIZE + 1, MAX_SIZE),
        (2**31 - 1, MAX_SIZE),
    ):
        assert read_page(pb.ListTenantsRequest(page_size=size)).size == expected
    assert read_page(pb.ListRequestsRequest(limit=7)).size == 7


REQUESTS = "ListRequestsRequest"


@pytest.mark.parametrize(
    "token",
    [
        "x",
        "é",
        "a b=",
        "====",
        "AAAA",
        token_of(list=REQUESTS, name="r", number=1),
        token_of(list=REQUESTS, tenant="", name="r", number=1),
        token_of(list=REQUESTS, tenant="other", name="r", number=1),
        token_of(list="ListTenantsRequest", tenant="t", name="r", number=1),
        token_of(list=REQUESTS, tenant="t", name="r", number=1) + "KgF4",
        token_of(list=REQUESTS, tenant="t", name="r", number=1)[:-6],
    ],
)
def test_tokens_that_no_page_had_are_refused(token: str) -> None:
    """And tokens of another list, or of the same list of other requests."""
    with pytest.raises(InvalidRequest) as caught:
        read_page(pb.ListRequestsRequest(page_token=token), "t")
    assert list(caught.value.violations) == ["page_token"]


@pytest.mark.parametrize(
    ("request_", "field"),
    [
        (pb.ListRequestsRequest(page_size=-1), "page_size"),
        (pb.ListTenantsRequest(page_size=-(2**31)), "page_size"),
        (pb.ListRequestsRequest(limit=1, page_size=1), "limit"),
        (pb.ListRequestsRequest(limit=1, page_token="x"), "limit"),
        (pb.ListTenantsRequest(limit=0), "limit"),
        (pb.ListTenantsRequest(limit=MAX_SIZE + 1), "limit"),
    ],
)
def test_sizes_that_make_no_sense(
    request_: pb.ListRequestsRequest | pb.ListTenantsRequest, field: str
) -> None:
    with pytest.raises(InvalidRequest) as caught:
        read_page(request_)
    assert list(caught.value.violations) == [field]
