"""The time to a validation loss, read off curves made by hand."""

from __future__ import annotations

import pytest

from made_up_results import folder_of, made_up
from norm_plugin.analysis.reaching import least_loss, when_reached
from norm_plugin.analysis.study import read_study


def curve(*losses):
    """One loss each 30 updates; None for an epoch whose loss was not finite."""
    points = [
        {"epoch": epoch, "updates": 30 * epoch} | ({} if loss is None else {"loss": loss})
        for epoch, loss in enumerate(losses, start=1)
    ]
    return {"train": [], "valid": points}


@pytest.fixture
def study(tmp_path):
    """The training of each run has 60 updates in 120 seconds."""
    return read_study(
        folder_of(
            tmp_path,
            made_up(curves=curve(5.0, 4.0, 4.7)),
            made_up(seed=2, curves=curve(5.0, 4.1)),
            made_up("quick", curves=curve(4.1, 4.6)),
            made_up("quick", seed=2, curves=curve(None, 4.0)),
            made_up("slow", curves=curve(5.0, 4.2)),
            made_up("slow", seed=2, curves=curve(5.0, 4.05)),
            made_up("unknown", curves=None, training__seconds=None),
        )
    )


def test_the_target_is_reached_by_every_seed_of_the_baseline(study):
    assert least_loss(study) == 4.1
    assert when_reached(study.baseline, 4.1).updates == (60, 60)


def test_the_first_loss_at_or_below_the_target_counts(study):
    found = when_reached(study.named("quick, pre"), 4.1)
    assert (found.updates, found.seconds, found.least) == ((30, 60), (60.0, 120.0), 4.0)


def test_a_run_that_does_not_reach_it_is_not_counted(study):
    assert when_reached(study.named("slow, pre"), 4.1).updates == (60,)
    assert when_reached(study.named("slow, pre"), 1.0).updates == ()
    unknown = when_reached(study.named("unknown, pre"), 4.1)
    assert (unknown.updates, unknown.least) == ((), None)


def test_a_length_that_is_not_known_gives_no_seconds(tmp_path):
    (folder,) = folder_of(tmp_path, made_up(training__seconds=None, curves=curve(4.0)))
    assert when_reached(read_study([folder]).baseline, 4.1).seconds == (None,)
