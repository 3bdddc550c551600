"""Rerankers that are known by name: the template of their prompts, and the tokens that they answer by."""

import re
from dataclasses import dataclass

_QWEN3 = """\
<|im_start|>system
Judge whether the Document meets the requirements based on the Query and the Instruct provided. \
Note that the answer can only be "yes" or "no".<|im_end|>
<|im_start|>user
<Instruct>: {{ instruction or "Given a web search query, retrieve relevant passages that answer the query" }}
<Query>: {{ query }}
<Document>: {{ document }}<|im_end|>
<|im_start|>assistant
<think>

</think>


"""
_BGE_GEMMA = """\
{{ bos_token }}A: {{ query }}
B: {{ document }}
{{ instruction or "Given a query A and a passage B, determine whether the passage contains an answer to the \
query by providing a prediction of either 'Yes' or 'No'." }}"""
_MXBAI = """\
<|im_start|>system
You are Qwen, created by Alibaba Cloud. You are a helpful assistant.<|im_end|>
<|im_start|>user
{{ "instruction: " + instruction + "\\n" if instruction }}query: {{ query }}
document: {{ document }}
You are a search relevance expert who evaluates how well documents match search queries. For each \
query-document pair, carefully analyze the semantic relationship between them, then provide your binary \
relevance judgment (0 for not relevant, 1 for relevant).
Relevance:<|im_end|>
<|im_start|>assistant

"""


@dataclass(frozen=True, slots=True)
class Reranker:
    """A family of rerankers.

    checkpoint: found in the name or path of a checkpoint, in lower case. template: of pairs, in Jinja, which
    drops one line break at the end. tokens: for and against relevance; one: its logit alone counts.
    """

    checkpoint: re.Pattern[str]
    template: str
    tokens: tuple[str, ...]


RERANKERS = {
    "qwen3-reranker": Reranker(re.compile("qwen3-reranker"), _QWEN3, ("yes", "no")),
    "bge-reranker-v2-gemma": Reranker(re.compile("bge-reranker-v2-gemma"), _BGE_GEMMA, ("Yes",)),
    "mxbai-rerank-v2": Reranker(re.compile("mxbai-rerank-[a-z]+-v2"), _MXBAI, ("1", "0")),
}
"""By the names that --score-template takes. Templates of Qwen3-Reranker, FlagEmbedding and mxbai-rerank."""
