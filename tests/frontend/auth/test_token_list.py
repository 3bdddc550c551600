"""The text of a file of tokens."""

import datetime

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from frontend.auth.caller import Terms
from frontend.auth.tokens import BadTokenList, digest_of, new_token, read_tokens, tenant_problem
from frontend.errors import Unauthenticated

TOKEN, OTHER = new_token(), new_token()
DIGEST, OTHER_DIGEST = digest_of(TOKEN).hex(), digest_of(OTHER).hex()


def listing(**fields) -> str:
    return yaml.safe_dump({"tokens": [{"sha256": DIGEST, "tenant": "alice"} | fields]})


def test_everything_that_can_be_said():
    text = listing(
        role="admin",
        weight=2,
        max_requests=8,
        max_tokens_per_minute=100,
        expires="2027-01-31",
        max_sequences=9,
        min_priority=-3,
    )
    caller = read_tokens(text).find(TOKEN, 0.0)
    assert (caller.tenant, caller.is_admin) == ("alice", True)
    assert caller.terms == Terms(2.0, 8, 100, 9, -3)


def test_what_is_left_out():
    caller = read_tokens(listing()).find(TOKEN, 1e12)
    assert not caller.is_admin and caller.terms == Terms(0.0, 0, 0)


def test_an_empty_list_admits_no_caller():
    assert len(read_tokens("tokens: []")) == 0


@pytest.mark.parametrize(
    "written",
    [
        "2027-01-31",
        "'2027-01-31'",
        "2027-01-31 00:00:00",
        "2027-01-31T02:00:00+02:00",
        "'2027-01-31T00:00:00Z'",
    ],
)
def test_dates_are_utc(written):
    ends = datetime.datetime(2027, 1, 31, tzinfo=datetime.UTC).timestamp()
    table = read_tokens(listing().rstrip() + f"\n  expires: {written}\n")
    assert table.find(TOKEN, ends - 1).tenant == "alice"
    with pytest.raises(Unauthenticated):
        table.find(TOKEN, ends)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("sha256", DIGEST[:-1]),
        ("sha256", DIGEST + "0"),
        ("sha256", "g" * 64),
        ("sha256", 17),
        ("sha256", TOKEN),
        ("tenant", ""),
        ("tenant", "a/b"),
        ("tenant", "-a"),
        ("tenant", "a" * 65),
        ("tenant", "a\n"),
        ("tenant", "ä"),
        ("tenant", 5),
        ("role", "root"),
        ("role", ["admin"]),
        ("weight", 0),
        ("weight", -1),
        ("weight", 1001),
        ("weight", float("nan")),
        ("weight", True),
        ("weight", "2"),
        ("max_requests", -1),
        ("max_requests", 1.5),
        ("max_requests", 1 << 32),
        ("max_tokens_per_minute", 1 << 63),
        ("max_tokens_per_minute", True),
        ("expires", 17),
        ("expires", "soon"),
        ("wieght", 2),
    ],
)
def test_what_is_wrong_is_named(field, value):
    with pytest.raises(BadTokenList) as caught:
        read_tokens(listing(**{field: value}))
    assert str(caught.value).startswith("tokens[0]") and field in str(caught.value)
    assert DIGEST not in str(caught.value) and TOKEN not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "must hold one list"),
        ("- sha256", "must hold one list"),
        ("tokens: []\nother: 1", "must hold one list"),
        ("tokens:", "must be a list"),
        ("tokens: {}", "must be a list"),
        ("tokens: [1]", "tokens[0]"),
        ("tokens: [{tenant: a}]", "tokens[0].sha256: is missing"),
        (f"tokens: [{{sha256: '{DIGEST}'}}]", "tokens[0].tenant: is missing"),
        ("tokens: [\n", "not YAML, line 2"),
        ("tokens: 2027-02-31", "not YAML"),
        ("tokens: !!python/object/apply:os.getpid []", "not YAML, line 1"),
        ("[" * 5000, "not YAML"),
    ],
)
def test_what_is_no_listing(text, words):
    with pytest.raises(BadTokenList) as caught:
        read_tokens(text)
    assert words in str(caught.value)


def two(**fields) -> str:
    first = {"sha256": DIGEST, "tenant": "alice", "weight": 2}
    second = {"sha256": OTHER_DIGEST, "tenant": "alice", "weight": 2} | fields
    return yaml.safe_dump({"tokens": [first, second]})


def test_a_tenant_may_have_two_tokens_on_the_same_terms():
    table = read_tokens(two(role="admin", expires="2027-01-31"))
    assert table.find(TOKEN, 0.0).terms == table.find(OTHER, 0.0).terms
    assert not table.find(TOKEN, 0.0).is_admin and table.find(OTHER, 0.0).is_admin
    with pytest.raises(BadTokenList, match=r"tokens\[1\].*tokens\[0\]"):
        read_tokens(two(weight=3))
    with pytest.raises(BadTokenList, match=r"tokens\[1\].sha256.*tokens\[0\]"):
        read_tokens(two(sha256=DIGEST.upper()))


@settings(deadline=None)
@given(st.text(st.characters(codec="utf-8"), max_size=200))
def test_any_text_is_read_or_refused(text):
    for whole in (
        text,
        "tokens: " + text,
        "tokens:\n- " + text,
        f"tokens:\n- sha256: {DIGEST}\n  tenant: {text}",
    ):
        try:
            read_tokens(whole)
        except BadTokenList as error:
            assert DIGEST not in str(error)


@settings(deadline=None)
@given(st.text(st.characters(codec="utf-8"), max_size=70))
def test_no_tenant_has_a_slash_or_what_a_log_line_cannot_hold(name):
    if tenant_problem(name) is None:
        assert "/" not in name and name.isascii() and name.isprintable() and 1 <= len(name) <= 64
