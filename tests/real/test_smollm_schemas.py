"""SmolLM2-135M-Instruct under schemas: every answer fits, and what it knows is in it."""

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import pytest

from pagewire import LLM


@dataclasses.dataclass
class Country:
    capital: Literal["Berlin", "Madrid", "Paris", "Rome"]
    country: str


@pytest.fixture(scope="module")
def llm(smollm: Path) -> Iterator[LLM]:
    with LLM(str(smollm), device="cpu", num_blocks=64, max_num_seqs=4) as llm:
        yield llm


def test_answers_fit_a_schema(llm: LLM) -> None:
    countries = {"France": "Paris", "Germany": "Berlin"}
    asked = [
        [{"role": "user", "content": f"What is the capital of {country}? Answer in JSON."}]
        for country in countries
    ]
    answers = llm.chat(asked, schema=Country, temperature=0, max_tokens=48, progress=False)
    found = [answer.parsed for answer in answers]
    assert [country.capital for country in found] == list(countries.values())
    assert all(isinstance(country, Country) for country in found)


def test_a_choice_and_a_regular_expression(llm: LLM) -> None:
    question = [{"role": "user", "content": "Is Paris a city?"}]
    (answer,) = llm.chat([question], choice=["yes", "no"], temperature=0, progress=False)
    assert answer.text in ("yes", "no")
    (answer,) = llm.chat([question], regex="[A-Z][a-z]{2,9}\\.", temperature=0, progress=False)
    assert answer.text[0].isupper() and answer.text.endswith(".")
