"""The flags of a model that concern norms: their names, values, help and YAML keys.

The options of the norms have flags too, which the norms declare themselves.
"""

from __future__ import annotations

from typing import NamedTuple

PLACEMENT, INIT = "norm_placement", "norm_init"
PLACEMENT_OF = {side: f"{PLACEMENT}_{side}" for side in ("encoder", "decoder")}
KERNELS_CHOICE, NAN_CHECK = "norm_kernels", "norm_nan_check"
ALLOW_MISMATCH = "norm_allow_mismatch"
EMBEDDING = "norm_embedding"
GHOST_BATCH_TOKENS = "norm_ghost_batch_tokens"
QKV_SCOPE = "norm_qkv_scope"
HEAD, FULL = "head", "full"
XAVIER, PLAIN, AUTO = "xavier", "none", "auto"
"""The defaults of ``--norm-init``, ``--norm-embedding`` and ``--norm-kernels``."""
KERNELS_VARIABLE = "NORM_KERNELS"
"""The environment variable that overrides ``--norm-kernels``."""
RECORD, RECORD_SITES, RECORD_FILE = "norm_record", "norm_record_sites", "norm_record_file"


class Choice(NamedTuple):
    """A flag that takes one of several values; ``models/settle.py`` has these."""

    default: str | None
    help: str


CHOICES = {
    PLACEMENT: Choice(None, "where the norms are; sets --{encoder,decoder}-normalize-before"),
    PLACEMENT_OF["encoder"]: Choice(None, "placement of the encoder; overrides --norm-placement"),
    PLACEMENT_OF["decoder"]: Choice(None, "placement of the decoder; overrides --norm-placement"),
    INIT: Choice(
        XAVIER,
        "initial weights: xavier (those of fairseq), kaiming, kaiming-attention, small, "
        "depth-scaled, fixup, t-fixup, gpt2, nanogpt, the released forms of two of these "
        "(depth-scaled-released, fixup-released), or a placement with initial weights of its own; "
        "the default is that of the placement",
    ),
    EMBEDDING: Choice(
        PLAIN,
        "fixnorm: divide each word embedding by its length (Nguyen and Salazar 2019)",
    ),
    QKV_SCOPE: Choice(
        HEAD,
        "the channels that a norm of queries, keys or values normalizes together: head (those of "
        "each head), full (all of them, before the heads are split, as in OLMo 2)",
    ),
    NAN_CHECK: Choice(
        "on",
        "stop training if the input of a norm is NaN or infinite, and name the norm; checked in "
        "every 100th update and where a gradient is not finite",
    ),
    KERNELS_CHOICE: Choice(
        AUTO,
        "how norms are computed: auto (the kernels of the device if available, else plain "
        "torch), off (plain torch), cpu, triton, compile (torch.compile); the environment variable "
        f"{KERNELS_VARIABLE} overrides it",
    ),
    ALLOW_MISMATCH: Choice(
        "off",
        "allow a checkpoint that was trained with another norm, option or placement, and load its "
        "other weights; by default this is an error",
    ),
}
"""The flags other than those of sites and of the norms' options, by key."""


class Value(NamedTuple):
    """A flag that takes a value of a given type; it is unset by default."""

    type: type
    help: str


VALUES = {
    GHOST_BATCH_TOKENS: Value(
        int,
        "take batch statistics over groups of N tokens (ghost batches) instead of the whole batch; "
        "statistics are then not synchronized over workers",
    ),
    RECORD: Value(
        int, "record statistics of the norms in every N-th update, starting with the first"
    ),
    RECORD_SITES: Value(
        str,
        "sites to record, separated by commas: all (the default), encoder, decoder, or the end of "
        "a --norm-type flag, such as encoder-self",
    ),
    RECORD_FILE: Value(
        str, "file of the records (default: norm_record.jsonl.gz in the checkpoint folder)"
    ),
}
"""The flags that take a value, by key."""

SITE_FLAGS: dict[str, str] = {
    "encoder": "norm of all encoder sites",
    "decoder": "norm of all decoder sites",
    "encoder-self": "norm of the encoder's self-attention",
    "encoder-ffn": "norm of the encoder's feed-forward network",
    "encoder-final": "norm after the encoder's last layer (if the placement has one)",
    "decoder-self": "norm of the decoder's self-attention",
    "decoder-cross": "norm of the decoder's attention over the encoder",
    "decoder-ffn": "norm of the decoder's feed-forward network",
    "decoder-final": "norm after the decoder's last layer (if the placement has one)",
    "embedding": "norm of the embeddings (with --layernorm-embedding)",
    "query": "norm of the queries of every attention (default: none, or that of the placement)",
    "key": "norm of the keys of every attention (default: none, or that of the placement)",
    "value": "norm of the values of every attention (default: none, or that of the placement)",
}
"""``--norm-type-<key>``: the more specific flag overrides the less specific one."""


NORM_TYPE = "norm_type"
NORM_TYPE_HELP = "norm of all sites; in translation, one with batch statistics only in the encoder"


def site_flags() -> list[tuple[str, str]]:
    """Return the flags that choose norms and their place, each with its meaning."""
    helps = {
        NORM_TYPE: NORM_TYPE_HELP,
        **{norm_type_field(flag): text for flag, text in SITE_FLAGS.items()},
        **{key: choice.help for key, choice in CHOICES.items()},
        **{key: value.help for key, value in VALUES.items()},
    }
    return [(flag_of(key), text) for key, text in helps.items()]


def norm_type_field(flag: str) -> str:
    """Return the configuration key of a site: ``encoder-self`` -> ``norm_type_encoder_self``."""
    return "norm_type_" + flag.replace("-", "_")


def option_field(name: str) -> str:
    """Return the configuration key of a norm's option: ``alpha_fwd`` -> ``norm_alpha_fwd``."""
    return "norm_" + name


def flag_of(field: str) -> str:
    """Return the command-line flag of a configuration key: ``norm_init`` -> ``--norm-init``."""
    return "--" + field.replace("_", "-")
