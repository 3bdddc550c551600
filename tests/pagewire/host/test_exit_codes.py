import pytest

from pagewire.host.proc_stat import describe_exit, ended_from_outside


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (0, "it ended with exit code 0"),
        (3, "it ended with exit code 3"),
        (-15, "it was killed by SIGTERM"),
        (-9, "it was killed by SIGKILL, which is also what happens when memory runs out"),
    ],
)
def test_an_exit_code_in_words(code: int, words: str):
    assert describe_exit(code) == words


def test_who_has_ended_a_process():
    """SIGKILL and requests to end come from outside; a crash and an exit code of its own do not."""
    codes = {0: True, -9: True, -15: True, -2: True, -1: True, 130: True, 1: False, -11: False, -6: False}
    assert {code: ended_from_outside(code) for code in codes} == codes
    assert not ended_from_outside(None)
