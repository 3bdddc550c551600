"""The automaton against the plain definition: compare every end of the text with every string."""

from hypothesis import given, settings
from hypothesis import strategies as st

from frontend.text.stop_strings import PrefixAutomaton

LISTS = st.lists(st.text(alphabet="ab", min_size=1, max_size=6), min_size=1, max_size=12)


@settings(max_examples=300, deadline=None)
@given(strings=LISTS, text=st.text(alphabet="abc", max_size=40), settles=st.booleans())
def test_equals_the_definition(strings: list[str], text: str, settles: bool) -> None:
    """Whether states settle or not, and in a used automaton as in a fresh one."""
    automaton = PrefixAutomaton(strings)
    for _ in range(2):
        state = automaton.start
        for end in range(1, len(text) + 1):
            seen = text[:end]
            state = automaton.step(state, text[end - 1])
            matching = [place for place, string in enumerate(strings) if seen.endswith(string)]
            assert state.found == min(matching, default=None)
            begun = {s[:size] for s in strings for size in range(1, len(s) + 1) if seen.endswith(s[:size])}
            assert state.depth == max(map(len, begun), default=0)
            settled = automaton.settle(state)
            proper = {s[:size] for s in strings for size in range(1, len(s)) if seen.endswith(s[:size])}
            assert settled.depth == max(map(len, proper), default=0)
            state = settled if settles else state


def test_states_are_made_when_a_text_reaches_them() -> None:
    automaton = PrefixAutomaton([chr(97 + place) * 1024 for place in range(26)])
    state = automaton.start
    for character in "aab":
        state = automaton.step(state, character)
    assert (state.depth, state.fallback) == (1, automaton.start)
    assert len(automaton.start.children) == 2


def test_no_strings_match_nothing() -> None:
    automaton = PrefixAutomaton([])
    assert automaton.step(automaton.start, "a") is automaton.settle(automaton.start) is automaton.start
