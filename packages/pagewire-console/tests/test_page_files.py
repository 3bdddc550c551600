"""The page's files: what they are served as, and what they must not do."""

import re
from importlib.resources import files

import pytest

from pagewire_console import page_files

STATIC = files("pagewire_console") / "static"
SCRIPTS = sorted(file.name for file in STATIC.iterdir() if file.name.endswith(".js"))
DANGEROUS = re.compile(
    r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\b|new Function|srcdoc|DOMParser"
    r"|createContextualFragment|document\.cookie|localStorage"
)


@pytest.mark.parametrize("name", SCRIPTS)
def test_scripts_make_no_markup_of_text(name: str):
    text = (STATIC / name).read_text(encoding="utf-8")
    assert not DANGEROUS.findall(text)


def test_everything_comes_from_this_port():
    for file in STATIC.iterdir():
        text = file.read_text(encoding="utf-8").replace("http://www.w3.org/2000/svg", "")
        assert not re.search(r"https?:|//[a-z]+\.", text), file.name
    page = (STATIC / "index.html").read_text(encoding="utf-8")
    assert not re.search(r"<style|\son[a-z]+=|\sstyle=|<script(?![^>]*\ssrc=)", page)


def test_every_file_has_a_type():
    for file in STATIC.iterdir():
        assert any(file.name.endswith(ending) for ending in page_files._TYPES), file.name


def test_the_policy_allows_no_code_but_the_port_s_own():
    policy = dict(page_files._HEADERS)["content-security-policy"]
    assert "default-src 'none'" in policy and "frame-ancestors 'none'" in policy
    assert "unsafe" not in policy and "*" not in policy and "data:" not in policy
