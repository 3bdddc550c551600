"""Pages of the site: links between them, names for what is not in it, and pages made of the program."""

import pytest

from frontend.errors import ModelNotFound
from pagewire import cli
from scripts.site.__main__ import slug
from scripts.site.reference import errors_page, flags_page
from scripts.site.staging import ROOT, SECTIONS, linked, page_name, sources, staged, without_escapes

STREAMS = ROOT / "docs" / "streams.md"
PAGES = {path: page_name(path) for paths in sources().values() for path in paths}


def test_every_page_is_in_the_site_once():
    files = [path for paths in sources().values() for path in paths]
    assert len(files) == len(set(files)) == len(set(PAGES.values()))
    assert set(ROOT.glob("docs/**/*.md")) <= set(files)
    for patterns in SECTIONS.values():
        for pattern in patterns:
            assert list(ROOT.glob(pattern)), pattern


@pytest.mark.parametrize(
    ("link", "expected"),
    [
        ("[a](structure.md#measured)", "[a](structure.md#measured)"),
        ("[a](../README.md)", "[a](index.md)"),
        ("[a](decisions/README.md)", "[a](decisions/README.md)"),
        ("[a](../examples/cpp)", "[a](examples/cpp.md)"),
        ("[a](../protos/pagewire/v1/model.proto)", "[a](protos/model.md)"),
        ("[a](../compose.yaml)", "a (`compose.yaml`)"),
        ("[compose.yaml](../compose.yaml)", "compose.yaml"),
        ("![a](../docs/console.png)", "![a](console.png)"),
        ("[a](https://example.org/x)", "[a](https://example.org/x)"),
        ("[a](#below)", "[a](#below)"),
        ("```\n[a](../compose.yaml)\n```", "```\n[a](../compose.yaml)\n```"),
    ],
)
def test_links(link: str, expected: str):
    assert linked(link, STREAMS, PAGES) == expected


def test_a_link_that_leads_nowhere():
    with pytest.raises(SystemExit, match=r"docs/streams.md: none.md does not exist"):
        linked("[a](none.md)", STREAMS, PAGES)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (r"| `a\|b` | c\|d | `e` |", r"| `a|b` | c\|d | `e` |"),
        (r"not a table: `a\|b`", r"not a table: `a\|b`"),
    ],
)
def test_pipes_in_code_of_tables(text: str, expected: str):
    assert without_escapes(text) == expected


def test_a_contract_is_a_page():
    text = staged(ROOT / "protos/pagewire/v1/model.proto", PAGES)
    assert text.startswith("# model.proto\n\n```proto\nsyntax") and text.endswith("}\n```\n")


def test_anchors_are_those_of_github():
    assert slug("Stops as regular expressions", "-") == "stops-as-regular-expressions"
    assert slug("Why `n`, and (not) _m_?", "-") == "why-n-and-not-_m_"


def test_flags_and_errors():
    flags, errors = flags_page(), errors_page()
    assert all(f"## pagewire {command}\n" in flags for command in cli.COMMANDS if command != "version")
    assert "| `--port N` |" in flags and "auto\\|cpu" in flags
    assert f"| NOT_FOUND | `{ModelNotFound.reason}` | 404 |" in errors
