"""Flags of frontends."""

from dataclasses import dataclass
from typing import Literal

from pagewire.config.base import ModelConfig, flag

PoolingKind = Literal["auto", "last", "mean", "cls", "max", "weightedmean", "splade", "none"]


@dataclass(frozen=True, kw_only=True)
class FrontendConfig(ModelConfig):
    """`pagewire frontend`: gRPC server, tokenizer, streams."""

    host: str = flag("127.0.0.1", "address to listen on", common=True)
    port: int = flag(50051, "gRPC port; 0: a free one", common=True, at_least=0, at_most=65535)
    served_model_name: tuple[str, ...] = flag(
        (),
        "model name in requests, repeatable; default: the folder's",
        common=True,
        metavar="NAME",
    )
    engine: tuple[str, ...] = flag(
        (),
        "address of an engine core (ipc:///folder/frontends.ipc); may be repeated; tcp://NAME:PORT: one at"
        " each IPv4 address of the name, looked up every few seconds; @FILE: one per line, reread when the"
        " file changes",
        metavar="ADDRESS",
    )
    reuse_port: bool = flag(False, "let several frontends listen on one port")
    openai_port: int | None = flag(
        None,
        "OpenAI API's HTTP port; 0: any; absent: none",
        common=True,
        at_least=0,
        at_most=65535,
    )
    vllm_engine: bool = flag(
        False, "serve vllm.grpc.engine.VllmEngine, for gateways such as smg (needs the extra `vllm`)"
    )
    open_inference: bool = flag(
        False, "serve inference.GRPCInferenceService, the Open Inference Protocol (KServe v2, Triton)"
    )
    tei: bool = flag(False, "serve tei.v1, the services of text-embeddings-inference")
    orca: bool = flag(
        False,
        "report the load to load balancers: OpenRcaService, and trailers of calls that ask",
    )
    loopback_port: int | None = flag(
        None,
        "second gRPC port, for a gateway on this machine: on 127.0.0.1, without TLS; default: none",
        at_least=1,
        at_most=65535,
    )
    openai_host: str = flag("127.0.0.1", "address of --openai-port")
    console: bool | None = flag(
        None,
        "serve the console, a live page with a chat, on --openai-port; default: where --openai-host is"
        " loopback",
    )
    openai_allowed_host: tuple[str, ...] = flag(
        (),
        "name in the Host header of HTTP requests that is served without --auth-file, besides localhost and"
        " IP addresses; may be repeated",
        metavar="NAME",
    )
    tls_cert: str = flag(
        "", "PEM file with the server's certificate chain; enables TLS", common=True, metavar="FILE"
    )
    tls_key: str = flag("", "PEM file with the private key of --tls-cert", common=True, metavar="FILE")
    tls_client_ca: str = flag(
        "",
        "PEM file with the authorities of client certificates, which are then required (mTLS)",
        metavar="FILE",
    )
    auth_file: str = flag(
        "", "hashed tokens that are accepted (docs/security.md)", common=True, metavar="FILE"
    )
    reflection: bool | None = flag(None, "serve gRPC reflection; default: on, off with --auth-file")
    tokenizer_threads: int = flag(2, "threads for tokenization and chat templates", at_least=1)
    max_request_bytes: int = flag(
        16 << 20, "largest gRPC message to accept", at_least=1024, at_most=(1 << 31) - 1
    )
    media_hosts: tuple[str, ...] = flag(
        (),
        "host from which images are fetched that requests name by URL, by https; http://HOST: by http; *: any"
        " public one; may be repeated; default: none, requests bring their images",
        metavar="HOST",
    )
    max_sequences: int = flag(64, "largest n, best_of and beam width of a request", at_least=1)
    max_stop_strings: int = flag(64, "maximum number of stop strings per request", at_least=0)
    max_logprobs: int = flag(
        20,
        "maximum number of candidates per token in log-probabilities; -1: the whole vocabulary",
        at_least=-1,
    )
    max_continuations: int = flag(128, "maximum number of continuations per scoring request", at_least=1)
    resume_timeout: float = flag(
        60.0, "seconds that streams wait for an engine that has died; 0: they fail at once", at_least=0
    )
    ready_timeout: float = flag(
        10.0, "seconds that new requests wait while no engine serves; 0: refused at once", at_least=0
    )
    share_prefixes: bool = flag(
        False,
        "let an engine core copy the KV blocks of a prompt's prefix from another one that was sent it lately;"
        " the cores need one --prefix-cache-key",
    )
    disconnect_grace: float = flag(
        2.0,
        "seconds for which a request with an id of its client goes on when its connection breaks or its call"
        " is cancelled; the same submit takes it over; 0: it ends at once",
        at_least=0,
        at_most=60,
    )
    max_concurrent_requests: int = flag(
        4096, "concurrent requests per frontend; more are refused; 0: no limit", at_least=0
    )
    max_multiplexed_requests: int = flag(
        1024, "concurrent requests per multiplexed stream; more are refused", at_least=1
    )
    max_tokenizing_bytes: int = flag(
        64 << 20,
        "bytes of requests being tokenized per frontend; more are refused; 0: no limit",
        at_least=0,
    )
    keepalive_time: float = flag(
        30.0, "seconds without traffic after which the server pings a client", at_least=1
    )
    keepalive_timeout: float = flag(
        10.0,
        "seconds to wait for the answer before the connection is closed and its requests end",
        at_least=0.1,
    )
    max_merge_delay: float = flag(
        0.1,
        "seconds that output may wait to be sent with what follows, while the event loop lags; 0: never",
        at_least=0,
        at_most=10,
    )
    write_timeout: float = flag(
        60.0,
        "seconds that a client may take to read a message before its stream ends; 0: no limit",
        at_least=0,
    )
    otlp_endpoint: str = flag(
        "", "OTLP/gRPC collector of traces: http://HOST:PORT (needs the extra `tracing`)", metavar="URL"
    )
    trace_sample_rate: float = flag(
        1.0, "share of the requests without a trace context to trace", at_least=0, at_most=1
    )
    chat_template: str = flag(
        "", "file with a chat template to use instead of the checkpoint's", metavar="FILE"
    )
    score_template: str = flag(
        "",
        "template that makes one prompt of a query and a document: a file, or qwen3-reranker,"
        " bge-reranker-v2-gemma or mxbai-rerank-v2; default: the checkpoint's, or by its name",
        metavar="FILE",
    )
    score_tokens: str = flag(
        "",
        "tokens for and against relevance, such as yes,no; or one, whose logit alone counts; default: as the"
        " model that --score-template names, or the checkpoint's name",
        metavar="YES,NO",
    )
    tool_format: str = flag(
        "auto", "how the model writes tool calls; auto: as its checkpoint says", metavar="NAME"
    )
    reasoning_format: str = flag(
        "auto", "how the model marks reasoning; auto: as its checkpoint says", metavar="NAME"
    )
    generation_config: str = flag(
        "auto",
        "defaults of sampling; auto: the checkpoint's generation_config.json; none: temperature 1, no"
        " filters; or a file, or a folder that has one",
        metavar="PATH",
    )
    override_generation_config: str = flag(
        "",
        'JSON object with defaults of sampling that go before those, such as {"temperature": 0.5}',
        metavar="JSON",
    )
    seed: int = flag(
        -1,
        "seed of requests that have none; -1: a new one for each",
        at_least=-1,
        at_most=(1 << 64) - 1,
    )
    pooling_type: PoolingKind = flag(
        "auto",
        "hidden states that embeddings are made of: that of the last or first (cls) token, or of all the"
        " mean, the largest value of each element (max), or the mean weighted by position; splade: sparse"
        " vectors, of a ...ForMaskedLM; auto: as the checkpoint's modules.json says; none: no embeddings",
    )
    drain_delay: float = flag(
        0.0,
        "seconds between NOT_SERVING and the first refusal, for load balancers to notice; 0: none",
        at_least=0,
    )
    shutdown_grace: float = flag(
        1.0, "seconds for running streams to end after SIGTERM and --drain-delay", at_least=0
    )
