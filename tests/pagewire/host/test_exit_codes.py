import pytest

from pagewire.host.proc_stat import describe_exit


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
