"""Configuration of the commands that are no process of a service: clients, tokens, recordings.

Flags are made from the fields, as in pagewire.config.
"""

from dataclasses import dataclass
from typing import Literal

from pagewire.config import MAX_COUNT, LogLevel, flag


@dataclass(frozen=True, kw_only=True)
class DemoConfig:
    """`pagewire demo`: starts everything on the demo model, streams a few answers, stops."""

    log_level: LogLevel = flag("warning", "least severe log lines to print")


@dataclass(frozen=True, kw_only=True)
class ClientConfig:
    """Flags of commands that call a running service."""

    address: str = flag("127.0.0.1:50051", "HOST:PORT of the service", common=True, metavar="ADDRESS")
    token_file: str = flag(
        "", "file with the token; default: environment variable PAGEWIRE_TOKEN", metavar="FILE"
    )
    tls: bool = flag(False, "use TLS with gRPC's default certificate authorities")
    tls_ca: str = flag("", "use TLS with the certificate authorities in this PEM file", metavar="FILE")
    tls_cert: str = flag("", "PEM file with the client's certificate, for mTLS", metavar="FILE")
    tls_key: str = flag("", "PEM file with the private key of --tls-cert", metavar="FILE")
    tls_server_name: str = flag("", "name in the server's certificate; default: the address", metavar="NAME")


@dataclass(frozen=True, kw_only=True)
class SamplingConfig(ClientConfig):
    """Sampling flags of `generate` and `chat`; the default is the model's."""

    model_name: str = flag("", "served model name; default: the only one", metavar="NAME")
    max_tokens: int | None = flag(None, "maximum number of output tokens", common=True, at_least=1)
    temperature: float | None = flag(None, "0: always the most probable token", common=True, at_least=0)
    top_p: float | None = flag(
        None, "sample from the most probable tokens with this cumulative probability", common=True
    )
    top_k: int | None = flag(None, "sample from this many of the most probable tokens; 0: all", at_least=0)
    min_p: float | None = flag(None, "minimum probability relative to the most probable token", at_least=0)
    repetition_penalty: float | None = flag(None, "values above 1 reduce repetition")
    seed: int | None = flag(
        None, "seed; equal seeds give equal answers", common=True, at_least=0, at_most=(1 << 64) - 1
    )
    stop: tuple[str, ...] = flag(
        (), "end the output before this text; may be repeated", common=True, metavar="TEXT"
    )
    stop_regex: tuple[str, ...] = flag(
        (), "end the output before what this regular expression matches; may be repeated", metavar="REGEX"
    )
    json_object: bool = flag(False, "the output is a JSON object")
    json_schema: str = flag("", "the output is JSON with the schema in this file", metavar="FILE")
    regex: str | None = flag(None, "the output matches this regular expression", metavar="REGEX")
    choice: tuple[str, ...] = flag((), "the output is one of these texts; may be repeated", metavar="TEXT")
    grammar: str = flag("", "the output follows the GBNF grammar in this file", metavar="FILE")
    lark: str = flag("", "the output follows the Lark grammar in this file", metavar="FILE")
    structural_tag: str = flag(
        "", "the output has the structures of the document in this file", metavar="FILE"
    )
    verbose: bool = flag(False, "print where the time went to standard error", common=True)


@dataclass(frozen=True, kw_only=True)
class GenerateConfig(SamplingConfig):
    """`pagewire generate`: streams the continuation of a prompt."""

    prompt: str = flag("-", "text to continue; - reads standard input", positional=True, metavar="PROMPT")
    image: tuple[str, ...] = flag(
        (), "file of an image, for a placeholder in the prompt; may be repeated", metavar="FILE"
    )
    audio: tuple[str, ...] = flag(
        (), "file of a sound, for a placeholder in the prompt; may be repeated", metavar="FILE"
    )
    n: int | None = flag(None, "number of continuations", common=True, at_least=1)
    usage: bool = flag(False, "print token counts and speed to standard error", common=True)


@dataclass(frozen=True, kw_only=True)
class ChatConfig(SamplingConfig):
    """`pagewire chat`: a conversation, line by line."""

    system: str = flag("", "system message", common=True, metavar="TEXT")
    tools: str = flag(
        "", "Python file whose public functions the model may call", common=True, metavar="FILE"
    )
    tool_choice: str = flag(
        "auto",
        "auto, none, or for the first answer to a question: required, or the name of a function",
        metavar="CHOICE",
    )
    thinking: bool = flag(False, "think before answers, by the switch of the chat template", common=True)
    reasoning_budget: int | None = flag(None, "tokens of reasoning, at most", at_least=0)


@dataclass(frozen=True, kw_only=True)
class HealthConfig(ClientConfig):
    """`pagewire health`: exits 0 when the service accepts requests."""

    wait: float = flag(0.0, "seconds to wait until it does", common=True, metavar="SECONDS", at_least=0)
    http: str = flag(
        "",
        "HOST:PORT of a process's HTTP port: asks /readyz there, for an engine core without gRPC",
        metavar="ADDRESS",
    )


@dataclass(frozen=True, kw_only=True)
class TopConfig(ClientConfig):
    """`pagewire top`: shows the load of each engine core, live."""

    once: bool = flag(False, "show it once and end", common=True)
    json: bool = flag(False, "one line of JSON each time, instead of a page", common=True)
    interval: float = flag(
        1.0, "seconds between two pages, at least", metavar="SECONDS", at_least=0.05, at_most=3600
    )


@dataclass(frozen=True, kw_only=True)
class BenchConfig(ClientConfig):
    """`pagewire bench`: sends a load to a service and measures latency, throughput and goodput."""

    action: str = flag("run", "run, or compare two files of --json", positional=True, metavar="run|compare")
    first: str = flag("", "compare: the file of the first", positional=True, metavar="A.json")
    second: str = flag("", "compare: the file of the second", positional=True, metavar="B.json")
    url: str = flag(
        "", "OpenAI API to measure, such as http://127.0.0.1:8000/v1; default: gRPC at --address", common=True
    )
    api: Literal["completions", "chat"] = flag("completions", "with --url: which of its methods", common=True)
    model_name: str = flag("", "served model name; default: the first", metavar="NAME")
    concurrency: str = flag(
        "1,8,32", "requests in flight, a run for each number (a closed loop)", common=True, metavar="N,N,.."
    )
    rate: str = flag(
        "",
        "requests per second instead, however busy the service is (an open loop)",
        common=True,
        metavar="X,X,..",
    )
    arrivals: Literal["poisson", "constant"] = flag("poisson", "with --rate: how requests are spaced")
    num_requests: int | None = flag(
        None, "requests of each run; default: 64, unless --duration is given", common=True, at_least=1
    )
    duration: float | None = flag(
        None, "seconds for which a run sends requests", common=True, metavar="SECONDS", at_least=0.1
    )
    input_len: str = flag(
        "128", "tokens of a prompt, or a range such as 16..512", common=True, metavar="N|N..M"
    )
    output_len: str = flag("128", "tokens of an answer, or a range", common=True, metavar="N|N..M")
    prefix_len: int = flag(0, "more tokens, which all prompts begin with", common=True, at_least=0)
    workload: str = flag("", "lengths of a workload of our figures instead", metavar="NAME")
    prompts: str = flag(
        "",
        "prompts of this file instead: JSONL with prompt, token_ids or messages",
        common=True,
        metavar="FILE",
    )
    ignore_eos: bool | None = flag(None, "answers have all their tokens; default: on, but not with --prompts")
    temperature: float = flag(0.0, "0: always the most probable token", at_least=0)
    goodput: str = flag(
        "",
        "limits in ms, such as ttft=200,itl=50: counts the answers within them",
        common=True,
        metavar="LIMITS",
    )
    repeats: int = flag(1, "runs of each level, in turns", common=True, at_least=1, at_most=1000)
    warmup: int = flag(2, "requests before the first run, which do not count", at_least=1, at_most=100_000)
    seed: int | None = flag(None, "of prompts and arrivals; default: new prompts each time", at_least=0)
    request_timeout: float = flag(600.0, "seconds for one answer", metavar="SECONDS", at_least=0.1)
    label: str = flag("", "title of the reports", metavar="TEXT")
    json: str = flag("", "write every request to this file", common=True, metavar="FILE")
    html: str = flag("", "write a page with plots to this file", common=True, metavar="FILE")
    svg: str = flag("", "write each plot to this folder, as SVG", metavar="FOLDER")


@dataclass(frozen=True, kw_only=True)
class RequestsConfig(ClientConfig):
    """`pagewire requests`: lists requests in flight, the oldest first."""

    limit: int = flag(100, "list so many at most", common=True, at_least=1, at_most=MAX_COUNT)
    tenant: str = flag("", "those of this tenant; default: all that the token may see", metavar="NAME")
    json: bool = flag(False, "one line of JSON, instead of a table", common=True)
    watch: bool = flag(False, "list them again and again, until Ctrl-C", common=True)
    interval: float = flag(
        1.0, "with --watch: seconds between two lists", metavar="SECONDS", at_least=0.05, at_most=3600
    )


@dataclass(frozen=True, kw_only=True)
class ExplainConfig(ClientConfig):
    """`pagewire explain`: says where a request's time went, what it waits for, and which share its blocks."""

    request: str = flag("", "id of a request in flight", positional=True, metavar="REQUEST")
    tenant: str = flag("", "its tenant, with an admin's token; default: the token's", metavar="NAME")
    json: bool = flag(False, "JSON instead of text", common=True)


@dataclass(frozen=True, kw_only=True)
class AdaptersConfig(ClientConfig):
    """`pagewire adapters`: lists, loads and unloads LoRA adapters, with an admin's token."""

    action: Literal["list", "load", "unload"] = flag(
        "list", "list, load or unload; default: list", positional=True, metavar="list|load|unload"
    )
    name: str = flag("", "name of the adapter", positional=True, metavar="NAME")
    folder: str = flag(
        "",
        "load: its folder on the engine's host, absolute or below --lora-folder, or its name on the Hugging"
        " Face Hub; default: the subfolder NAME",
        positional=True,
        metavar="FOLDER",
    )
    pinned: bool = flag(False, "load: it stays loaded while no request has it", common=True)
    tenant: tuple[str, ...] = flag(
        (), "load: a tenant that may use it; may be repeated; default: all", common=True, metavar="NAME"
    )
    json: bool = flag(False, "list, load: one line of JSON, instead of a table", common=True)


@dataclass(frozen=True, kw_only=True)
class DocsConfig:
    """`pagewire docs`: prints where the pages of this documentation are."""


@dataclass(frozen=True, kw_only=True)
class CompletionConfig:
    """`pagewire completion`: prints a script that completes commands and flags in a shell."""

    shell: Literal["bash", "zsh", "fish"] = flag(
        "bash", "bash, zsh or fish", positional=True, metavar="SHELL"
    )


@dataclass(frozen=True, kw_only=True)
class TokenConfig:
    """`pagewire token`: makes a token and prints it once; servers store its hash."""

    action: str = flag("new", "new: make a token", positional=True, metavar="new")
    tenant: str = flag("", "tenant of the token", common=True, metavar="NAME")
    auth_file: str = flag(
        "", "file to add its entry to; default: print the entry", common=True, metavar="FILE"
    )
    role: Literal["user", "admin"] = flag("user", "admin: may also call AdminService", common=True)
    weight: float | None = flag(
        None, "the tenant's weight in fair queueing; default 1", common=True, at_least=0.001, at_most=1000
    )
    max_requests: int | None = flag(
        None, "maximum number of requests in flight per engine core", common=True, at_least=1
    )
    max_tokens_per_minute: int | None = flag(
        None, "maximum number of prompt and output tokens per minute", common=True, at_least=1
    )
    max_sequences: int | None = flag(
        None,
        "maximum number of sequences in flight per engine core: n, best_of, beams",
        common=True,
        at_least=1,
    )
    min_priority: int | None = flag(
        None,
        "the best priority class of its requests, lower is sooner; default 0",
        common=True,
        at_least=-1000,
        at_most=1000,
    )
    expires: str = flag("", "date or time (UTC) at which it expires", common=True, metavar="DATE")


@dataclass(frozen=True, kw_only=True)
class FrontendChoice(ClientConfig):
    """The frontends that a command is for."""

    frontend: str = flag(
        "",
        "name, address or id of the frontend; default: the one that answers",
        common=True,
        metavar="NAME",
    )
    all: bool = flag(False, "all frontends of the service", common=True)


@dataclass(frozen=True, kw_only=True)
class DrainConfig(FrontendChoice):
    """`pagewire drain`: makes frontends refuse new requests."""

    end_after: float | None = flag(
        None,
        "seconds after which remaining streams end, to continue on another frontend; default: never",
        common=True,
        metavar="SECONDS",
        at_least=0,
        at_most=24 * 3600,
    )


@dataclass(frozen=True, kw_only=True)
class ResumeConfig(FrontendChoice):
    """`pagewire resume`: ends a drain."""


@dataclass(frozen=True, kw_only=True)
class ReplayConfig:
    """`pagewire replay`: repeats a recording and compares the plans; with settings, answers "what if"."""

    recording: str = flag("", "file written by --record", common=True, positional=True, metavar="FILE")
    policy: Literal["recorded", "fair", "fcfs"] = flag("recorded", "what if: queue order", common=True)
    scheduling: Literal["recorded", "sync", "ahead"] = flag(
        "recorded", "what if: when steps are planned", common=True
    )
    num_blocks: int | None = flag(None, "what if: KV blocks", common=True, at_least=1)
    num_host_blocks: int | None = flag(None, "what if: blocks of the swap space", common=True, at_least=0)
    max_num_seqs: int | None = flag(None, "what if: running sequences", common=True, at_least=1)
    max_num_batched_tokens: int | None = flag(None, "what if: tokens per step", common=True, at_least=1)
    no_prefix_cache: bool = flag(False, "what if: no prefix cache", common=True)
    block_size: int | None = flag(
        None, "what if: tokens per block (needs --record-tokens)", common=True, at_least=1
    )
