"""The comparisons behind the pages of papers/, by question.

``findings.py`` tests and shows them; ``summary.py`` has the tables of the first page.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from norm_lab.config.studies import MINUS, SCORE, read_study_file, study_path, terms

BOTH = (SCORE, "valid_loss")


def with_placement(side: str) -> str:
    """Return the full name of an arm, or of a difference of two; pre-norm if it names none."""
    return MINUS.join(name if ", " in name else f"{name}, pre" for name in terms(side))


class Key(NamedTuple):
    """What identifies a comparison: the study, the two arms with their placement, the outcome."""

    study: str
    pair: tuple[str, str]
    outcome: str


class Effect(NamedTuple):
    """A comparison, ``arm`` minus ``baseline``; pre-norm if they name no placement.

    Each may be the difference of two arms, as in a study file.

    Attributes:
        off_scale: it would flatten the figure, so it is only in the table.
        title: what tables and figures call the difference, in place of the names of the arms.
    """

    study: str
    arm: str
    baseline: str = "layernorm"
    outcome: str = SCORE
    off_scale: bool = False
    title: str = ""

    @property
    def key(self) -> Key:
        """The comparison, whatever tables call it."""
        pair = with_placement(self.arm), with_placement(self.baseline)
        return Key(self.study, pair, self.outcome)


def effects(
    studies: Sequence[str],
    *pairs: tuple[str, str],
    outcomes: Sequence[str] = (SCORE,),
) -> list[Effect]:
    """Return the effects of the pairs in several studies and outcomes."""
    return [
        Effect(study, *pair, outcome) for outcome in outcomes for pair in pairs for study in studies
    ]


def declared_by(study: str, *more: str) -> list[Effect]:
    """Return the effects that the file of a study declares, and the same in ``more`` outcomes."""
    declared = read_study_file(study_path(study)).primary
    own = [Effect(study, each.arm, each.baseline, each.outcome) for each in declared]
    others = [each._replace(outcome=outcome) for outcome in more for each in own]
    return list(dict.fromkeys(own + others))  # a pair may be declared in several outcomes


def norms_of(study: str, *norms: str, placement: str = "") -> list[Effect]:
    """Return each norm minus LayerNorm."""
    return [Effect(study, norm + placement, "layernorm" + placement) for norm in norms]


CLASSIFICATION = ("adanorm_sst5", "adanorm_rt")
DERIVATIVES = (("detachnorm-std", "detachnorm-mean"), ("detachnorm", "layernorm-simple"))
"""Norms without the derivative of the deviation against that of the mean, and without both."""
POWERNORM_200 = "powernorm-warmup-updates-200"
LEAKING = ("batchnorm", "powernorm-v")
"""Norms that take the statistics of the batch throughout training."""
WITHOUT_WARMUP = "layernorm-warmup-init-lr-0.005, pre"
FINDINGS = {
    "norms": [
        *declared_by("own_start"),
        *norms_of("characters_fair", "none", "rmsnorm", "powernorm"),
        *norms_of("characters_tuned_short", "none", "powernorm", "dyt"),
        *norms_of("characters_tuned_post", "rmsnorm", "powernorm", placement=", post"),
        Effect("characters_tuned_post", "dyt, post", "layernorm, post", off_scale=True),
        *norms_of("characters", "none", "rmsnorm", "powernorm", "adanorm"),
        *norms_of("characters", "rmsnorm", "powernorm", "adanorm", placement=", post"),
    ],
    "translation": [
        *declared_by("multi30k_powernorm", "valid_loss"),
        *declared_by("table1_small", "valid_loss"),
        Effect("table1_small", POWERNORM_200, "batchnorm"),
        *declared_by("multi30k_batchnorm", "valid_loss"),
        Effect("multi30k_cpu", "powernorm"),
    ],
    "encoder-norms": [
        *declared_by("encoder_norms", "valid_loss"),
        Effect("encoder_norms", "powernorm", "batchnorm"),
    ],
    "powernorm": [
        *declared_by("characters_powernorm"),
        Effect("table1_small", "powernorm-v", "batchnorm"),
        Effect("table1_small", POWERNORM_200, "powernorm-v"),
        Effect("multi30k_cpu", "powernorm", "powernorm-layer-scale-groups-0", off_scale=True),
        Effect("multi30k_cpu", "powernorm-released", "powernorm", off_scale=True),
    ],
    "pre-scaling": effects(
        ["no_layer_scale"],
        *(
            (f"powernorm-layer-scale-groups-{groups}{rate}", f"powernorm{rate}")
            for groups in (0, 4)
            for rate in ("", "-lr-0.004", "-lr-0.016", "-lr-0.064")
        ),
    ),
    "tensorized": declared_by("tensorized_small"),
    "small-batches": [
        *(
            Effect(
                "stat_tokens_wide",
                f"{norm}-ghost-batch-tokens-{tokens}",
                baseline.format(norm),
                off_scale=tokens == 64 and norm in LEAKING,
            )
            for baseline, sizes in (
                ("{}-ghost-batch-tokens-4096", (64, 512)),
                ("layernorm", (64, 512, 4096)),
            )
            for tokens in sizes
            for norm in (*LEAKING, "powernorm")
        ),
        *(
            Effect(study, f"{arm}-ghost-batch-tokens-{n}", f"{baseline}-ghost-batch-tokens-{m}")
            for study, arm, n, baseline, m in (
                ("stat_tokens_wide", "powernorm-v", 512, "batchnorm", 512),
                ("stat_tokens_wide", "powernorm-v", 4096, "batchnorm", 4096),
                ("stat_tokens", "batchnorm", 256, "batchnorm", 4096),
                ("stat_tokens", "powernorm", 256, "powernorm", 4096),
                ("stat_tokens", "powernorm", 256, "batchnorm", 256),
            )
        ),
    ],
    "adanorm": [
        *effects(
            ["sst5_confirmed"],
            ("adanorm", "layernorm"),
            ("adanorm", "layernorm-kaiming"),
            outcomes=BOTH,
        ),
        *effects(CLASSIFICATION, ("adanorm", "layernorm"), outcomes=BOTH),
        *effects(
            CLASSIFICATION, ("adanorm", "layernorm-kaiming"), ("layernorm-kaiming", "layernorm")
        ),
    ],
    "adanorm-scale": [
        *effects(
            ["adanorm_scale"],
            ("adanorm", "layernorm-kaiming"),
            ("adanorm", "adanorm-k-0"),
            ("adanorm-scale-1", "layernorm-kaiming"),
            outcomes=("valid_loss",),
        ),
        *effects(
            ["adanorm_scale"],
            ("adanorm", "layernorm-kaiming"),
            outcomes=("loss", "calibrated_loss", SCORE),
        ),
    ],
    "warmup": [
        *effects(
            ["warmup_confirmed"],
            (WITHOUT_WARMUP, "layernorm, pre"),
            (WITHOUT_WARMUP, "layernorm, post"),
        ),
        Effect(
            "warmup_confirmed",
            "layernorm-post-warmup-init-lr-0.005, post",
            "layernorm, post",
            off_scale=True,
        ),
        *effects(
            ["warmup_published"],
            ("layernorm-post-warmup-updates-1, post", "layernorm, post"),
            ("layernorm-warmup-updates-1, pre", "layernorm, post"),
            ("layernorm-warmup-updates-1, pre", "layernorm-post-warmup-updates-1, post"),
        ),
        *effects(
            ["warmup_own_rates"],
            ("layernorm-warmup-updates-1, pre", "layernorm-warmup-updates-67, pre"),
            outcomes=(SCORE, "chrf"),
        ),
    ],
    "depth": [
        Effect(
            "depth",
            f"layernorm-{placement}-decoder-layers-{layers}, {placement}",
            f"layernorm-decoder-layers-{layers}, pre",
            off_scale=(placement, layers) == ("post", 24),
        )
        for layers in (24, 12, 6)
        for placement in ("rezero", "deepnorm", "scaled-pre", "post")
    ],
    "depth-longer": [
        Effect("depth_longer", f"layernorm, {placement}", f"{baseline}, pre")
        for placement, baseline in (("rezero", "none"), ("rezero", "layernorm"), ("pre", "none"))
    ],
    "depth-uncensored": [
        Effect("depth_uncensored", f"layernorm, {placement}", f"{baseline}, pre")
        for placement, baseline in (
            ("rezero", "none"),
            ("rezero-pre", "layernorm"),
            ("scaled-pre", "layernorm"),
            ("rezero", "layernorm"),
        )
    ],
    "gain-and-bias-characters": declared_by("gain_and_bias"),
    "gain-and-bias": effects(CLASSIFICATION, ("layernorm-simple", "layernorm"), outcomes=BOTH),
    "derivatives": effects(
        CLASSIFICATION,
        ("layernorm-simple", "detachnorm"),
        ("detachnorm-mean", "detachnorm-std"),
        outcomes=BOTH,
    ),
    "derivatives-in-translation": declared_by("adanorm_translation", "valid_loss"),
    "derivatives-by-depth": [
        *(
            Effect(
                "derivatives_depth",
                f"{norm}-decoder-layers-24 minus {other}-decoder-layers-24",
                f"{norm}-decoder-layers-6 minus {other}-decoder-layers-6",
                title=f"{what}, 24 minus 6 layers",
            )
            for (norm, other), what in zip(
                DERIVATIVES,
                ("deviation minus mean detached", "both detached minus LN-simple"),
            )
        ),
        *effects(
            ["derivatives_depth"],
            *(
                (f"{norm}-decoder-layers-{layers}", f"{other}-decoder-layers-{layers}")
                for norm, other in DERIVATIVES
                for layers in (24, 6)
            ),
        ),
    ],
    "transformer-xl": effects(
        ["transformer_xl_characters"],
        ("none, post", "layernorm, post"),
        ("layernorm-simple, post", "layernorm, post"),
        ("adanorm-scale-1, post", "layernorm, post"),
        ("detachnorm, post", "layernorm-simple, post"),
        ("detachnorm-std, post", "detachnorm-mean, post"),
        ("detachnorm, post", "none, post"),
    ),
    "little-data": [
        *effects(["sst5_confirmed"], ("dyt", "layernorm"), outcomes=BOTH),
        *effects(CLASSIFICATION, ("dyt", "layernorm"), ("none", "layernorm"), outcomes=BOTH),
        *norms_of("characters", "dyt", "none"),
    ],
}
"""The comparisons that answer a question, by the name of its block and its figure."""


class Task(NamedTuple):
    """A column of the table of norms: each norm minus LayerNorm.

    Attributes:
        title: the task and the unit.
        page: the name of the page in papers/.
        cells: the comparison of each norm.
    """

    title: str
    page: str
    cells: dict[str, Effect]


def cells_of(study: str, *norms: str, placement: str = "", **arms: str) -> dict[str, Effect]:
    """Return the comparison of each norm with LayerNorm; ``arms`` have options in their names."""
    named = {**{norm: norm for norm in norms}, **arms}
    return dict(zip(named, norms_of(study, *named.values(), placement=placement)))


NORMS = (
    *("layernorm", "rmsnorm", "powernorm", "batchnorm", "none"),
    *("powernorm-v", "adanorm", "layernorm-simple", "dyt"),
)
"""The rows of the table of norms; LayerNorm, the baseline, is the first."""
CLASSIFIED = ("layernorm-simple", "rmsnorm", "batchnorm", "powernorm", "dyt", "none")
TASKS = (
    Task(
        "translation, Multi30k, 12 epochs, BLEU",
        "translation",
        {
            **cells_of("table1_small", "powernorm-v", powernorm=POWERNORM_200),
            **cells_of("multi30k_batchnorm", "batchnorm"),
        },
    ),
    Task(
        "characters, nanoGPT's start, nats",
        "norms",
        cells_of("characters_fair", "rmsnorm", "powernorm", "none"),
    ),
    Task(
        "characters, fairseq's start, nats",
        "norms",
        {"none": declared_by("own_start")[0]},
    ),
    Task(
        "the same, 1,000 updates",
        "norms",
        cells_of("characters_tuned_short", "powernorm", "dyt", "none"),
    ),
    Task(
        "the same, post-norm",
        "norms",
        cells_of("characters_tuned_post", "rmsnorm", "powernorm", "dyt", placement=", post"),
    ),
    Task(
        "characters, Transformer-XL, post-norm, nats",
        "transformer-xl",
        cells_of(
            "transformer_xl_characters",
            "layernorm-simple",
            "none",
            placement=", post",
            adanorm="adanorm-scale-1",
        ),
    ),
    Task(
        "characters, tensorized, nats",
        "tensorized",
        cells_of("tensorized_small", "batchnorm", "powernorm-v", "powernorm"),
    ),
    Task(
        "SST5, % correct",
        "adanorm",
        {**cells_of("adanorm_sst5", *CLASSIFIED), **cells_of("sst5_confirmed", "adanorm", "dyt")},
    ),
    Task("RT, % correct", "adanorm", cells_of("adanorm_rt", "adanorm", *CLASSIFIED)),
)
"""The columns of the table of norms."""
RATES = {"characters": "characters_fair", "Transformer-XL": "transformer_xl_characters"}
"""The studies whose trials show the highest rate at which a norm trains."""


MAIN_CLAIMS = (
    ("powernorm", "Section III, Table I, BN and LN", "translation"),
    ("powernorm", "Table I, PN and LN", "translation"),
    ("powernorm", "Table II, PN and LN", "norms"),
    ("powernorm", "Figure 5, PN and LN", "small-batches"),
    ("adanorm", "Table 4, SST5", "adanorm"),
    ("adanorm", "Figure 1, validation loss", "gain-and-bias"),
    ("adanorm", "Table 2, bottom, Enwik8", "derivatives"),
    ("adanorm", "Table 3, Enwik8", "derivatives"),
    ("xiong", "Figure 4, pre-LN", "warmup"),
    ("xiong", "Theorem 1, pre-LN", "theory"),
)
"""The rows of papers/papers.md that papers/README.md repeats, and the page with more."""
COMPARISONS = tuple(
    dict.fromkeys(
        each.key
        for each in (
            *(each for group in FINDINGS.values() for each in group),
            *(each for task in TASKS for each in task.cells.values()),
        )
    )
)
"""All comparisons, each once."""
