"""``--norm-ghost-batch-tokens`` reaches the norms, and a run goes on with as many."""

from __future__ import annotations

from norm_plugin.models.resuming import differences
from norm_plugin.norms.base.statistics import BatchStatisticsNorm


def test_every_norm_with_batch_statistics_has_groups_and_no_sync(build, build_yaml, batch):
    flags = ("--norm-type", "powernorm-v", "--norm-ghost-batch-tokens", "6")
    for model in (build(*flags), build_yaml(norm_type="powernorm-v", norm_ghost_batch_tokens=6)):
        norms = [m for m in model.modules() if isinstance(m, BatchStatisticsNorm)]
        assert norms and all(norm.ghost_batch_tokens == 6 and not norm.sync for norm in norms)
    model(**batch)
    tokens = int(batch["src_lengths"].sum())
    assert {norm.updates_counted for norm in norms} == {tokens // 6}  # one step for each group


def test_a_run_goes_on_with_as_many_tokens_only(build):
    plans = [
        build("--norm-type", "batchnorm", *flags).cfg.plan
        for flags in ((), ("--norm-ghost-batch-tokens", "9"))
    ]
    assert differences(*plans) == ["norm_ghost_batch_tokens of all sites: stored None, given 9"]
    assert differences(plans[1], plans[1]) == []
