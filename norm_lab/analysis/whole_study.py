"""A whole study in one command: tunes the arms, runs each at its tuned values, writes the page.

    norm-plugin study STUDY [--out PAGE]

A study without a section ``tune`` is run as it is. The same command resumes it. The trials are in
WORK/studies/STUDY/tuning, the runs beside them, and the page is WORK/studies/STUDY/page, unless
--results and --out name other folders.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from norm_lab.experiments import options


def main(argv: Sequence[str]) -> int:
    """The command ``study``; the exit status is 1 unless all runs are done or diverged."""
    parser = options.sweep_parser("study")
    parser.add_argument("--out", metavar="DIR", help="of the page")
    parser.add_argument("--baseline", metavar="NORM", help="of the page, as for norm-plugin report")
    args = options.parse(parser, argv)
    # --help of a script is there before the packages are
    from norm_lab.experiments import sweep, tune
    from norm_lab.experiments.spec import ROOT
    from norm_lab.experiments.studies import read_study_file, study_path

    path = study_path(args.experiment)
    folder = Path(args.work or ROOT / "work", "studies", path.stem)
    args.results = args.results or str(folder)
    if read_study_file(path).tune is None:
        composed = sweep.read_specs(args)
    else:
        status = tune.main(args)
        if status or not tune.tuned_path(path).exists():
            return status
        composed = tune.compose_tuned(args)
    status = sweep.run_grid(args, composed)
    if status or args.status or args.dry_run:
        return status
    from norm_lab.analysis import report  # with torch, which need not wait for the runs

    results = sorted({str(spec.result.parent) for spec in composed.runs})
    page = args.out or folder / "page"
    print(flush=True)
    baseline = [] if args.baseline is None else ["--baseline", args.baseline]
    shown = ["--study", str(path), *baseline, "--format", report.LATEX]
    return report.main([*results, *shown, "--out", str(page)])
