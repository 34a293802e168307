#!/usr/bin/env python3
"""Show one of the findings of papers/audit.md in numbers.

    python -m papers.audit gradient
    python -m papers.audit             all of them

Everything is computed in float64 from fixed seeds; `python -m papers` writes the same lines
into the page.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

from norm_plugin.io.command_line import run_command
from norm_plugin.norms import build_norm
from norm_plugin.norms.power_norm import PowerNorm
from norm_plugin.norms.power_norm_released import WARMUP_AFTER_ENCODER
from papers.scores import ADANORM, POWERNORM, PUBLISHED, published_scores

Lines = Iterator[str]


def draw(*shape: int, seed: int = 0) -> Tensor:
    """Return normal numbers."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def relative_difference(ours: Tensor, theirs: Tensor) -> str:
    """Return the largest difference over the largest value, as text."""
    return f"{float((ours - theirs).abs().max() / theirs.abs().max()):.1e}"


def gradient_of(x: Tensor) -> Tensor:
    """Return the gradient of a leaf after a backward pass."""
    assert x.grad is not None
    return x.grad


def power_norm(variant: str, x: Tensor, upstream: Tensor, mask: Tensor | None = None) -> PowerNorm:
    """Return PowerNorm after one pass without warm-up; ``x.grad`` is its gradient.

    x, upstream: (T, B, C); mask: bool (B, T), True at padding.
    """
    norm = build_norm("powernorm", x.size(-1), variant=variant, layer_scale_groups=0).double()
    assert isinstance(norm, PowerNorm)
    x.grad = None
    (norm(x, padding_mask=mask) * upstream).sum().backward()
    return norm


def gradient() -> Lines:
    """The gradient of the released PowerNorm is divided by the psi of the batch."""
    x, upstream = (2 * draw(64, 4, 8)).requires_grad_(), draw(64, 4, 8, seed=1)
    yield "psi = 1, psi_B about 2, nu = 0: |dL/dx| / |dL/dx_hat|"
    for variant in ("paper", "released"):
        power_norm(variant, x, upstream)
        yield f"{variant}: {float(gradient_of(x).norm() / upstream.norm()):.3f}"


def padding() -> Lines:
    """The means of the released backward pass run over padding."""
    x, upstream = draw(64, 4, 8).requires_grad_(), draw(64, 4, 8, seed=1)
    mask = torch.zeros(4, 64, dtype=torch.bool)
    mask[:, 32:] = True
    with torch.no_grad():
        x[32:], upstream[32:] = 0.0, 0.0
    for variant in ("paper", "released"):
        alone = power_norm(variant, x[:32].detach().requires_grad_(), upstream[:32]).nu
        padded = power_norm(variant, x, upstream, mask).nu
        ratio = float((padded / alone).mean())
        yield f"{variant}: nu with as many padded positions is {ratio:.3f} of nu without"


def warmup() -> Lines:
    """The warm-up of the released PowerNorm has the approximate gradient, that of PN-V is exact."""
    x, upstream = (2 * draw(64, 4, 8)).requires_grad_(), draw(64, 4, 8, seed=1)
    x_hat = (x / x.square().mean((0, 1)).sqrt()).detach()
    for variant in ("paper", "released"):
        norm = build_norm("powernorm", 8, variant=variant, layer_scale_groups=0, warmup_updates=9)
        norm.double()
        for _ in range(2):
            x.grad = None
            (norm(x) * upstream).sum().backward()
        along = (gradient_of(x) * x_hat).mean((0, 1)).abs().mean()
        yield f"{variant}: mean of dL/dx x_hat, 0 for the exact gradient: {float(along):.1e}"
    yield f"warm-up of the norm after the released encoder: {WARMUP_AFTER_ENCODER} forwards"


def deviation() -> Lines:
    """AdaNorm as released: an unbiased deviation with eps outside the root."""
    for dim in (128, 512, 1024):
        x = draw(256, dim)
        paper, released = (
            build_norm("adanorm", dim, variant=variant).double()(x)
            for variant in ("paper", "released")
        )
        yield f"d = {dim}: outputs differ by {relative_difference(released, paper)}"
    layers, per_layer, final = 6, 2 + 3, 2
    yield f"norms of a {layers} + {layers}-layer pre-norm Transformer: {layers * per_layer + final}"
    yield f"norms that --lnv adanorm reaches in the released code: {final}"


def mask() -> Lines:
    """Block-term attention without a mask: the first position sees the last word."""
    length, rank, width = 8, 16, 32
    q, k, v = (draw(width, rank, seed=s) / math.sqrt(width) for s in range(3))
    core = torch.softmax(draw(rank, seed=3), 0)
    out = draw(length * length, width, seed=4) / length
    past = torch.tril(torch.ones(length, length, dtype=torch.bool))

    def attention(words: Tensor, masked: bool) -> Tensor:
        tensor = torch.einsum("h,ih,jh,kh->ijk", core, words @ q, words @ k, words @ v)
        if masked:  # position i sees the pairs j, k <= i
            tensor = tensor * past[:, :, None] * past[:, None, :]
        return tensor.flatten(1) @ out

    words = draw(length, width, seed=5)
    other = words.clone()
    other[-1] = draw(width, seed=6)
    for masked in (False, True):
        change = (attention(other, masked)[0] - attention(words, masked)[0]).norm()
        share = float(change / attention(words, masked)[0].norm())
        kind = "with a mask" if masked else "without"
        yield f"{kind}: another last word changes the first output by {share:.2f} of its length"


LOWER_IS_BETTER = "enwik8"
CITED = {  # on WikiText-103, validation and test
    **{"AWD-LSTM-MoS": (29.0, 29.2), "Adaptive Input": (19.8, 20.5)},
    **{"Transformer-XL base": (23.1, 24.0), "tensorized 1-core": (23.6, 20.9)},
    "tensorized 2-core": (19.7, 18.9),
}
"""What PowerNorm's Table III cites, where it has both."""


def better(arm: str, baseline: str) -> tuple[int, int]:
    """Return on how many of AdaNorm's eight data sets a norm is better, and equal."""
    signs = []
    for corpus in (name for name, papers in PUBLISHED.items() if ADANORM in papers):
        scores = published_scores(corpus)
        worst = "inf" if corpus == LOWER_IS_BETTER else "-inf"
        ours, other = (float(scores[n].replace("diverges", worst)) for n in (arm, baseline))
        signs.append((other - ours) if corpus == LOWER_IS_BETTER else (ours - other))
    return sum(sign > 0 for sign in signs), sum(sign == 0 for sign in signs)


def counts() -> Lines:
    """AdaNorm's sentences on how many of its eight data sets, against its tables."""
    for stated, arm, baseline in (
        ("better on 6", "layernorm", "none"),
        ("better on 4; in a review, on 6", "layernorm-simple", "layernorm"),
        ("worse on 6", "detachnorm", "layernorm"),
        ("worse on 6", "detachnorm", "layernorm-simple"),
        ("better on 7", "adanorm", "layernorm"),
    ):
        wins, equal = better(arm, baseline)
        yield (
            f"{arm} and {baseline}: better on {wins}, equal on {equal}, worse on "
            f"{8 - wins - equal}; stated: {stated}"
        )


def perplexities() -> Lines:
    """PowerNorm's Table III: validation against test on WikiText-103."""
    valid, test = (
        published_scores(f"wikitext103{part}", POWERNORM) for part in (", validation", "")
    )
    both = {norm: (float(valid[norm]), float(test[norm])) for norm in test} | CITED
    for name, (of_valid, of_test) in both.items():
        yield f"{name}: {of_valid} on validation, {of_test} on test, {of_test - of_valid:+.1f}"


def numbers() -> Lines:
    """Sentences against tables, from the published scores."""

    def less(paper: str, corpus: str, arm: str, baseline: str) -> str:
        scores = published_scores(corpus, paper)
        return f"{float(scores[arm]) - float(scores[baseline]):+.1f}"

    for baseline in ("batchnorm", "powernorm-v"):
        ptb, wikitext = (
            less(POWERNORM, corpus, baseline, "powernorm") for corpus in ("ptb", "wikitext103")
        )
        yield f"{baseline} minus powernorm: {ptb} and {wikitext}; stated of BN: 7.7 and 3.4"
    scores = published_scores("iwslt14_de_en", POWERNORM)
    yield f"PN-V on IWSLT14: {scores['powernorm-v']} in Table I; 35.4 in section IV-A"
    for corpus in ("sst5", "parsing"):
        yield (
            f"DetachNorm minus no norm on {corpus}: {less(ADANORM, corpus, 'detachnorm', 'none')}; "
            "stated of it: worse"
        )
        derivatives = less(ADANORM, corpus, "layernorm-simple", "detachnorm")
        yield f"LN-simple minus DetachNorm on {corpus}: {derivatives}; stated: a larger gain"


FINDINGS: dict[str, Callable[[], Lines]] = {
    finding.__name__: finding
    for finding in (
        *(gradient, padding, warmup, deviation),
        *(mask, numbers, counts, perplexities),
    )
}
"""What papers/audit.md shows, by name."""


def finding_lines(name: str) -> str:
    """Return Markdown: the command of a finding, and what it prints."""
    lines = "\n".join(FINDINGS[name]())
    return f"```text\n$ python -m papers.audit {name}\n{lines}\n```"


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(
        prog="python -m papers.audit",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("finding", nargs="*", default=list(FINDINGS), metavar="FINDING")
    for name in parser.parse_args(argv).finding:
        if name not in FINDINGS:
            parser.error(f"there is no finding {name}; choose from {', '.join(FINDINGS)}")
        print("\n".join(FINDINGS[name]()))
    return 0


if __name__ == "__main__":
    run_command(main)
