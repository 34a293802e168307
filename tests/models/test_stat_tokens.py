"""``--norm-stat-tokens``: it reaches the norms, and what it cannot do is refused."""

from __future__ import annotations

import pytest

from norm_plugin.models.resuming import differences
from norm_plugin.norms.base.statistics import BatchStatisticsNorm


def test_every_norm_with_batch_statistics_has_groups_and_no_sync(build, build_yaml, batch):
    flags = ("--norm-type", "powernorm-v", "--norm-stat-tokens", "6")
    for model in (build(*flags), build_yaml(norm_type="powernorm-v", norm_stat_tokens=6)):
        norms = [m for m in model.modules() if isinstance(m, BatchStatisticsNorm)]
        assert norms and all(norm.stat_tokens == 6 and not norm.sync for norm in norms)
    model(**batch)
    tokens = int(batch["src_lengths"].sum())
    assert {norm.updates_counted for norm in norms} == {tokens // 6}  # one step for each group


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--norm-type", "batchnorm", "--norm-stat-tokens", "0"), "is 0; it must be 1 or more"),
        (("--norm-stat-tokens", "9"), "none of the chosen norms, layernorm, has batch statistics"),
        (
            ("--norm-type", "batchnorm", "--norm-stat-tokens", "9", "--norm-sync", "on"),
            "--norm-stat-tokens 9 contradicts --norm-sync on",
        ),
    ],
)
def test_wrong_flags_are_refused(flags, message, build):
    with pytest.raises(ValueError, match=message):
        build(*flags)


def test_a_run_goes_on_with_as_many_tokens_only(build):
    plans = [
        build("--norm-type", "batchnorm", *flags).cfg.plan
        for flags in ((), ("--norm-stat-tokens", "9"))
    ]
    assert differences(*plans) == ["norm_stat_tokens of all sites: stored None, given 9"]
    assert differences(plans[1], plans[1]) == []
