"""The page is one file, without scripts and without anything from elsewhere, and escapes what it shows."""

from html.parser import HTMLParser

from bench_fakes import made_record
from pagewire_bench.driver import LevelRun
from pagewire_bench.load import Load
from pagewire_bench.record import BenchRecord
from pagewire_bench.report.page import page
from pagewire_bench.trace import Trace


class Elements(HTMLParser):
    """Names and attributes of all elements."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.names: list[str] = []
        self.attributes: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.names.append(tag)
        self.attributes.update(name for name, _ in attrs)


def test_a_page():
    text = page(made_record(failures=2))
    found = Elements(text)
    assert found.names.count("svg") == 6
    assert "2 failed: RESOURCE_EXHAUSTED QUEUE_FULL" in text and "demo at here:1" in text
    assert not {"src", "href"} & found.attributes and "url(" not in text
    assert "default-src 'none'" in text


def test_names_of_strangers_are_escaped():
    evil = "<script>alert(1)</script>"
    text = page(made_record(model=evil, label=f'"{evil}'))
    assert evil not in text and "script" not in Elements(text).names


def test_a_run_without_an_answer_has_a_page():
    failed = LevelRun(Load(rate=2.0), 1.0, [Trace(0.0, error="<b>", ended=0.5)])
    text = page(BenchRecord({}, {}, [failed]))
    assert "b" not in Elements(text).names and "1 failed: &lt;b&gt;" in text
