"""The check of this project's prose finds what it lists, and nothing else."""

import pytest

from scripts.dialect import LIST, faults_of, first_words, prose_of, read_list

TEXT = """
[[avoid]]
words = "nobody|somebody"
instead = "the thing"

[[pattern]]
path = "docs/*.md"
words = "a [a-z]+ of its own"
instead = "its own X"

[[allow]]
path = "tests/*.py"
words = ["nobody"]
reason = "a name of Unix"
"""
PHRASES, EXEMPTIONS = read_list(TEXT)


def words(path: str, text: str) -> list[tuple[int, str]]:
    return [(fault.line, fault.word) for fault in faults_of(path, text, PHRASES, EXEMPTIONS)]


def test_prose_is_judged_and_code_is_not():
    source = 'nobody = 1  # Nobody reads\ntext = """one\nsomebody"""\nnobodys = nobody\n'
    assert words("worker/a.py", source) == [(1, "Nobody"), (3, "somebody")]
    assert words("docs/a.md", "a\nnobody\n") == [(2, "nobody")]
    assert words("protos/a.proto", "string nobody = 1; // for somebody\n") == [(1, "somebody")]


def test_an_exemption_counts_for_its_words_in_its_files():
    assert words("tests/a.py", "# nobody, somebody\n") == [(1, "somebody")]
    assert words("worker/a.py", "# nobody\n") == [(1, "nobody")]


def test_an_exemption_needs_a_reason():
    with pytest.raises(ValueError, match="reason"):
        read_list(TEXT.replace("a name of Unix", ""))


def test_lines_of_long_strings_are_counted():
    assert [line for line, _ in prose_of("a.py", '\n"""\na\nb"""\n')] == [2, 3, 4]


def test_the_list_is_read():
    phrases, exemptions = read_list(LIST.read_text())
    assert len(phrases) > 5 and all(exemption.reason for exemption in exemptions)


def test_patterns_count_on_their_pages_alone():
    assert words("docs/a.md", "has a thread of its own\n") == [(1, "a thread of its own")]
    assert words("README.md", "has a thread of its own\n") == []


def test_first_words_of_docstrings():
    assert list(first_words('"""Of it."""\nclass A:\n    """Holds it."""\n\n    def f(self): ...\n')) == [
        "Of",
        "Holds",
        "",
    ]
