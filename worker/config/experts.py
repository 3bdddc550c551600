"""The experts of a layer, and how most families spell their fields. Needs no torch."""

from dataclasses import dataclass

from kernels.ops.experts.routing import Routing, Score
from worker.config.hf_config import Fields

MOST_EXPERTS = 4096
_OF_EXPERTS = (
    *("num_experts_per_tok", "norm_topk_prob", "moe_intermediate_size", "shared_expert_intermediate_size"),
    *("decoder_sparse_step", "mlp_only_layers"),
)


@dataclass(frozen=True)
class ClampedSwiglu:
    """(clamp(up, -limit, limit) + 1) * g * sigmoid(alpha * g), g = min(gate, limit)."""

    alpha: float
    limit: float


@dataclass(frozen=True, kw_only=True)
class ExpertsConfig:
    """Gated feed-forward parts of which a router chooses some for each token, besides shared ones."""

    routing: Routing
    intermediate_size: int  # of an expert
    router_bias: bool = False
    corrected: bool = False  # the choice has a correction by expert; see kernels.ops.experts.routing
    bias: bool = False  # of the experts' products
    shared_size: int = 0  # intermediate size of the part that all tokens have; 0: none
    shared_gate: bool = False  # it is multiplied by sigmoid(x @ w)
    swiglu: ClampedSwiglu | None = None  # in place of the decoder's activation
    transposed: bool = False  # stacked weights are [N, in, out]
    alternating: bool = False  # gate and up alternate in them; else the one comes after the other
    weighs_inputs: bool = False  # the weights of experts multiply what they take, not what they give


def read_routing(
    fields: Fields, count: str, chosen: str, default_chosen: int | None = None, **settings: object
) -> Routing:
    """Reads how many experts there are and how many a token has. count, chosen: names of the fields; some
    versions of transformers write `num_local_experts` for the first. settings: other fields of Routing.
    Raises StartupError."""
    count = _written_name(fields, count)
    num_experts = fields.integer(count, most=MOST_EXPERTS)
    top_k = fields.integer(chosen, default_chosen)
    if top_k > num_experts:
        raise fields.wrong(chosen, f"must be at most {count} ({num_experts})")
    return Routing(num_experts=num_experts, top_k=top_k, **settings)  # type: ignore[arg-type]


def has_experts(fields: Fields) -> bool:
    """Returns whether any layer may have experts. Where `num_experts` is 0, all are dense, and what the file
    says of experts counts for nothing. Raises StartupError."""
    name = _written_name(fields, "num_experts")
    if not fields.has(name) or fields.integer(name, least=0):
        return True
    for each in _OF_EXPERTS:
        fields.has(each)
    return False


def _written_name(fields: Fields, count: str) -> str:
    """Returns what the file calls the number of experts."""
    return "num_local_experts" if not fields.has(count) and fields.has("num_local_experts") else count


def read_grouped_routing(
    fields: Fields, normalized: bool, groups: tuple[int, int] = (1, 1), scale: float = 1.0
) -> Routing:
    """Reads the routing of DeepSeek-V3's form: sigmoid with a correction, groups, a factor. normalized,
    groups (all and chosen ones), scale: for files that do not say. Raises StartupError."""
    num_groups, top_groups = fields.integer("n_group", groups[0]), fields.integer("topk_group", groups[1])
    routing = read_routing(
        fields,
        "n_routed_experts",
        "num_experts_per_tok",
        score=Score.SIGMOID,
        groups=num_groups,
        top_groups=top_groups,
        group_best=2,
        normalized=fields.boolean("norm_topk_prob", normalized),
        least_sum=1e-20,
        scale=fields.number("routed_scaling_factor", scale),
    )
    check_groups(fields, routing)
    return routing


def check_groups(fields: Fields, routing: Routing) -> None:
    """Raises StartupError unless the groups are equally large and have enough experts."""
    size, rest = divmod(routing.num_experts, routing.groups)
    if rest or size < routing.group_best:
        raise fields.wrong(
            "n_group",
            f"must divide {routing.num_experts} experts into groups of {routing.group_best} or more",
        )
    if routing.top_groups > routing.groups:
        raise fields.wrong("topk_group", f"must be at most n_group ({routing.groups})")
    if routing.top_groups * size < routing.top_k:
        raise fields.wrong(
            "topk_group", f"{routing.top_groups} groups have less than {routing.top_k} experts"
        )


def sparse_layers(fields: Fields, num_layers: int) -> tuple[bool, ...]:
    """Returns for each layer whether it has experts: each `decoder_sparse_step`-th one that is not among
    `mlp_only_layers`. Raises StartupError."""
    step = fields.integer("decoder_sparse_step", 1)
    dense = fields.integers("mlp_only_layers", least=0) if fields.has("mlp_only_layers") else ()
    return tuple((layer + 1) % step == 0 and layer not in dense for layer in range(num_layers))
