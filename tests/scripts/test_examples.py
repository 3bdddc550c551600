"""Examples in other languages: what is missing is named, and each has its page."""

import re
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from scripts import examples


def test_a_missing_tool_chain_is_named(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    needs = ("sh", "no-such-compiler", "/no/such/header.h")
    lacking = examples.Example("cpp", needs, examples.binary_command)
    monkeypatch.setattr(examples, "EXAMPLES", {"cpp": lacking})
    assert examples.main([]) == 0 and examples.main(["cpp"]) == 1
    words = "cpp: skipped, no-such-compiler, /no/such/header.h not installed"
    assert all(line.startswith(words) for line in capsys.readouterr().out.splitlines())


def test_an_unknown_example_is_named():
    with pytest.raises(SystemExit, match="no example cobol: cpp, go, java"):
        examples.main(["cobol"])


@pytest.mark.parametrize("name", examples.EXAMPLES)
def test_every_example_has_a_page_and_all_commands(name: str, tmp_path: Path):
    folder = examples.ROOT / "examples" / name
    page = (folder / "README.md").read_text()
    assert all(command in page for command in ("stream", "unary", "chat", "cancel", "TOKEN=", "CA="))
    assert (folder / "Makefile").exists()
    assert examples.EXAMPLES[name].command(tmp_path, "here:1", "chat", "hi")


def test_a_missing_jar_is_named_before_anything_waits_for_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """By `make examples`, and by the Makefile alone, which also says where the packages are listed."""
    monkeypatch.setenv("MAKEFLAGS", f"JARS={tmp_path}")
    java = replace(examples.EXAMPLES["java"], needs=())
    assert f"{tmp_path}/perfmark-api.jar" in java.missing()
    for file in java.missing()[1:]:
        Path(file).touch()
    (missing,) = java.missing()
    for target in (f"{tmp_path}/classes/Client.class", "run"):
        done = examples.run(["make", f"BUILD={tmp_path}", "-o", f"{tmp_path}/generated", target], java, 60)
        assert done.returncode and f"not found: {missing}; README.md names the packages" in done.stderr


def test_an_example_that_does_not_end_is_named():
    with pytest.raises(SystemExit, match="java: no end of .* after 0.1 s; begun"):
        examples.run(["sh", "-c", "echo begun; exec sleep 60"], examples.EXAMPLES["java"], 0.1)


def names_of(protos: str) -> set[str]:
    """The messages, enums, services, RPCs and fields of pagewire/v1/PROTOS.proto."""
    text = (examples.ROOT / "protos" / "pagewire" / "v1" / f"{protos}.proto").read_text()
    named = re.findall(r"^ *(?:message|enum|service|rpc|oneof) (\w+)", text, re.MULTILINE)
    return {*named, *re.findall(r"(\w+) = \d+;", text)}


def block(language: str, syntax: str) -> str:
    """The last block of a page in examples/."""
    page = (examples.ROOT / "examples" / language / "README.md").read_text()
    return re.findall(rf"```{syntax}\n(.*?)```", page, re.DOTALL)[-1]


def test_the_program_in_rust_has_names_of_the_protos():
    program = block("rust", "rust")
    used = {*re.findall(r"\bv1::(\w+)", program), *re.findall(r"(\w+): Some", program)}
    used |= {*re.findall(r"(?:sequence|response)\.(\w+)", program)}
    assert len(used) > 9
    assert used - names_of("generation") - names_of("prompt") == {"generation_service_client"}


@pytest.mark.skipif(shutil.which("protoc") is None, reason="protoc is not installed")
def test_the_program_in_csharp_has_names_that_protoc_generates(tmp_path: Path):
    protos = examples.ROOT / "protos"
    names = ["pagewire/v1/generation.proto", "pagewire/v1/prompt.proto"]
    subprocess.run(["protoc", f"-I{protos}", f"--csharp_out={tmp_path}", *names], check=True)
    generated = "".join(file.read_text() for file in tmp_path.iterdir())
    program = block("csharp", "csharp")
    assert "namespace Pagewire.V1 {" in generated
    messages = re.findall(r"new (\w+) ?\n?\s*\{", program)
    assert len(messages) == 4 and all(f"sealed partial class {name} " in generated for name in messages)
    properties = [*re.findall(r"([A-Z]\w+) = (?:new|\d|args)", program), "Sequences", "Text"]
    assert len(properties) > 6
    assert all(re.search(rf"public [\w.:<>]+ {name} \{{", generated) for name in properties)
