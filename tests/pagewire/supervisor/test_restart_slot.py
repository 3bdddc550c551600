"""Who starts again, and when."""

import pytest

from pagewire.supervisor import restart_slot as posts
from pagewire.supervisor.restart_slot import Post


class FakeChild:
    """Lives and dies at once."""

    def __init__(self, name: str, arguments: list[str]) -> None:
        self.name, self.arguments = name, arguments

    def close(self) -> None:
        """Nothing is open."""


@pytest.fixture(autouse=True)
def fake_children(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(posts, "Child", FakeChild)


def pauses(max_deaths: int, *times: float, longest: float = 10.0) -> list[float | None]:
    """Pauses after deaths at these times; None: it was the last."""
    post, found = Post("x", ["a"], max_deaths, longest), []
    for now in times:
        child = post.fill()
        assert (child.name, child.arguments) == ("x", ["a"])
        found.append(post.start_at - now if post.empty(now) else None)
    return found


def test_pauses_grow_while_deaths_come_close_together():
    assert pauses(9, *range(8)) == [0, 0.5, 1, 2, 4, 8, 10, 10]


def test_pauses_grow_no_longer_than_somebody_wants():
    assert pauses(9, *range(6), longest=1.5) == [0, 0.5, 1, 1.5, 1.5, 1.5]
    assert pauses(9, *range(3), longest=0) == [0, 0, 0]


def test_too_many_deaths_within_a_minute():
    assert pauses(5, 0, 1, 2, 3, 59.9) == [0, 0.5, 1, 2, None]
    assert pauses(1, 0) == [None]


def test_a_quiet_minute_is_forgiven():
    assert pauses(5, 0, 1, 2, 3, 63.0) == [0, 0.5, 1, 2, 0]


def test_a_place_is_empty_until_somebody_is_ready():
    """Not only until somebody is there: the pause of the service includes failed attempts."""
    post = Post("x", [], 5, 10.0)
    post.fill()
    post.empty(3.0)
    post.fill()
    post.empty(4.0)
    assert post.empty_since == 3.0


def test_deaths_that_are_being_explained_do_not_count():
    """Up to a point: at first the next start is at once, and the service does not give up."""
    post, found = Post("x", [], 3, 10.0), []
    for number in range(posts.MOST_EXPLAINED + 4):
        post.fill()
        found.append(post.start_at - number if post.empty(number, explained=number > 0) else None)
    assert found == [0.0] * (posts.MOST_EXPLAINED + 1) + [0.5, None, None]
