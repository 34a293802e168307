"""Every command that reads a checkpoint, as a function of pytest's monkeypatch and what it reads.

``made`` has the attributes ``path``, the checkpoint; ``data``, a prepared corpus; ``output``, what
to write.
"""

from __future__ import annotations

import io
import shutil
import sys
from dataclasses import replace
from pathlib import Path

import fairseq_cli.generate
import fairseq_cli.train

from fake_runs import spec_of
from norm_lab.config.spec import RunSpec
from norm_lab.results.result import collect_result
from norm_plugin.checkpoints import average, fold, repair
from norm_plugin.models import NormTransformerModel

ROOT = Path(__file__).resolve().parents[2]
SCORED = ROOT / "tests" / "lab" / "data"


def fold_it(monkeypatch, made):
    fold.main([str(made.path), "--output", str(made.output)])


def average_it(monkeypatch, made, *flags):
    average.main(["--inputs", str(made.path), "--output", str(made.output), *flags])


def average_last(monkeypatch, made):
    average_it(monkeypatch, made, "--running-stats", "last")


def repair_it(monkeypatch, made):
    repair.main([str(made.path.parent)])


def result_of_it(monkeypatch, made):
    spec = replace(
        spec_of("toy", "seed=3", "--work", made.output.with_name("work")), data=made.data
    )
    spec.folder.mkdir(parents=True)
    monkeypatch.setattr(RunSpec, "checkpoints", made.path.parent)
    monkeypatch.setattr(RunSpec, "evaluated", made.path)
    shutil.copy(SCORED / "generate.txt", spec.evaluation_log)
    collect_result(spec, spec.evaluation_log)


def hub(monkeypatch, made):
    NormTransformerModel.from_pretrained(
        str(made.path.parent), made.path.name, str(made.data / "bin")
    )


def by_fairseq(module, *flags):
    def command(monkeypatch, made):
        common = (made.data / "bin", "--user-dir", ROOT / "norm_plugin", "--cpu", *flags)
        path = ("--restore-file",) if module is fairseq_cli.train else ("--path",)
        arguments = [module.__name__, *map(str, (*common, *path, made.path))]
        monkeypatch.setattr(sys, "argv", arguments)
        monkeypatch.setattr(sys, "stdin", io.StringIO(""))
        module.cli_main()

    command.__name__ = module.__name__
    return command


SMALL = ("--arch", "norm_transformer_tiny", "--max-tokens", 100, "--lr-scheduler", "inverse_sqrt")
QUICK = (fold_it, average_it, average_last, repair_it, result_of_it, hub)
FAIRSEQ = (
    by_fairseq(fairseq_cli.generate, "--task", "translation"),
    by_fairseq(fairseq_cli.train, *SMALL, "--optimizer", "adam", "--disable-validation"),
)
