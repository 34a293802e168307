"""tools/audit.py: what the findings of docs/audit.md show."""

from __future__ import annotations

import re

import pytest

from audit import FINDINGS, better, finding_lines, main

NUMBER = r"-?\d+(?:\.\d+)?(?:e[-+]\d+)?"


def numbers(name):
    """The numbers at the end of each line."""
    return [float(re.findall(NUMBER, line)[-1]) for line in FINDINGS[name]()]


@pytest.mark.parametrize(
    ("name", "paper", "released"), [("gradient", 1.0, 0.5), ("padding", 1.0, 0.5)]
)
def test_the_released_powernorm_differs(name, paper, released):
    lines = [line for line in FINDINGS[name]() if line.startswith(("paper: ", "released: "))]
    ratios = [float(re.findall(r"\d\.\d+", line)[0]) for line in lines]
    assert ratios == pytest.approx([paper, released], abs=0.02)


def test_only_the_paper_warms_up_with_the_exact_gradient():
    exact, approximate, updates = numbers("warmup")
    # the gradient of x / sqrt(psi^2 + eps) is along x_hat by about eps
    assert exact < 1e-5 < 1e-3 < approximate and updates == 1000


def test_without_a_mask_the_first_output_sees_the_last_word():
    without, masked = FINDINGS["mask"]()
    assert "by 0.00" not in without and "by 0.00" in masked


def test_the_stated_gains_over_bn_are_those_over_pn_v():
    batchnorm, powernorm_v, *_ = FINDINGS["numbers"]()
    assert "+13.1 and +9.3" in batchnorm and "+7.7 and +3.4" in powernorm_v


def test_a_finding_is_printed_as_the_page_has_it(capsys):
    assert main(["mask"]) == 0
    assert capsys.readouterr().out.strip() in finding_lines("mask")
    with pytest.raises(SystemExit):
        main(["nothing"])


def test_a_norm_that_diverges_is_worse_and_bits_are_better_when_lower():
    assert better("layernorm", "none") == (6, 0)  # on En-De no norm diverges
    assert better("none", "layernorm") == (2, 0)  # of which Enwik8, where 1.04 is below 1.07
    assert better("adanorm", "layernorm") == (7, 1)


def test_the_tensorized_models_alone_fall_from_validation_to_test():
    fall = {line.partition(":")[0] for line in FINDINGS["perplexities"]() if line[-4] == "-"}
    ours = {"layernorm", "batchnorm", "powernorm-v", "powernorm"}
    assert fall == {*ours, "tensorized 1-core", "tensorized 2-core"}
    assert len(list(FINDINGS["perplexities"]())) == len(fall) + 3
