"""The commands ``run``, ``sweep``, ``status``, ``tune``, ``study``, ``demo`` and ``job``.

Before the options are read, only the standard library is imported, so that ``--help`` of the
scripts works before the environment exists.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from norm_lab.config.options import (
    Request,
    demo_parser,
    description_file,
    parse,
    request_of,
    run_parser,
    sweep_parser,
)
from norm_lab.paths import WORK

DEMO_NORMS = ("layernorm", "adanorm", "powernorm", "none")
SMOKE = "smoke run: the scores mean nothing"
DEMO_END = "A norm with BLEU above 80 has learned the toy language. One seed does not rank norms."


def checked_request(args: argparse.Namespace) -> Request:
    """Return the options of a command line; CommandError for unknown names."""
    from norm_lab.config.names import check_names

    request = request_of(args)
    check_names(request)
    return request


def run(argv: Sequence[str]) -> int:
    """Run the command ``run``."""
    parser = run_parser(description_file(next(iter(argv), "")))
    request = checked_request(parse(parser, argv))
    from norm_lab.config.compose import compose_runs
    from norm_lab.engine.execution import execute, write_run
    from norm_lab.engine.grid import run_grid

    (spec,) = compose_runs(request)
    if request.dry_run:
        return run_grid(request, [spec])
    print_recipe(request)
    write_run(spec)
    execute(spec, request.retry)
    if request.smoke:
        print(SMOKE)
    return 0


def print_recipe(request: Request) -> None:
    """Print the recipe of an experiment that has several, if the user has chosen none."""
    from norm_lab.config.experiments import find_experiment, is_experiment

    chosen = request.overrides.keys() & {"recipe", "preset"}
    if is_experiment(request.experiment) and not chosen:
        recipe = find_experiment(request.experiment).recipe
        if recipe is not None:
            print(f"recipe: {recipe}, the default of {request.experiment}; --recipe R for another")


def job(argv: Sequence[str]) -> int:
    """Run the command ``job``, which a grid calls for each of its runs."""
    parser = argparse.ArgumentParser(
        prog="norm-plugin job", description="Execute the run of run.json in a folder."
    )
    parser.add_argument("folder", type=Path, metavar="FOLDER")
    parser.add_argument("--retry", action="store_true", help="train it again if it has diverged")
    args = parser.parse_args(argv)
    from norm_lab.config.spec import RunSpec
    from norm_lab.engine.execution import execute

    execute(RunSpec.read_in_place(args.folder), args.retry)
    return 0


def sweep(argv: Sequence[str], verb: str = "sweep") -> int:
    """Run the command ``sweep``."""
    request = checked_request(parse(sweep_parser(verb), argv))
    from norm_lab.config.compose import compose_runs
    from norm_lab.config.studies import study_path
    from norm_lab.engine.grid import run_grid

    if request.tuned:
        from norm_lab.study.tune import compose_tuned

        specs = compose_tuned(request)
    else:
        specs = compose_runs(request)
    code = run_grid(request, specs)
    if request.tuned and not (request.dry_run or request.status):
        compose_tuned(request)  # compares corpora that only these runs have prepared
    if not (code or request.dry_run or request.status):
        print(f"results: {specs[0].result.parent}")
        whole = not request.overrides and study_path(request.experiment).is_file()
        study = f" --study {request.experiment}" if whole else ""
        print(f"next: norm-plugin report {specs[0].result.parent}{study}")
        if request.smoke:
            print(SMOKE)
    return code


def status(argv: Sequence[str]) -> int:
    """Run the command ``status``: the runs that were begun, or ``sweep --status`` of a grid."""
    request = request_of(parse(sweep_parser("status"), argv))
    everywhere = Request(request.experiment, grid=True, status=True)
    if replace(request, work=None) != everywhere:
        return sweep(argv, "status")
    from norm_lab.engine.begun import begun_text

    print(begun_text(request.experiment, request.work or WORK))
    return 0


def tune(argv: Sequence[str]) -> int:
    """Run the command ``tune``."""
    request = checked_request(parse(sweep_parser("tune"), argv))
    from norm_lab.study.tune import tune_study

    return tune_study(request)


def demo(argv: Sequence[str]) -> int:
    """Run the command ``demo``: a sweep on all cores, the table of its results, and their page."""
    request = checked_request(parse(demo_parser(), argv))
    from norm_lab.config.compose import compose_runs
    from norm_lab.engine.grid import run_grid

    defaults = {"norm": ",".join(DEMO_NORMS), "preset": "demo"}
    request = replace(request, overrides={**defaults, **request.overrides})
    specs = compose_runs(request)
    jobs = min(len(os.sched_getaffinity(0)), len(specs))
    code = run_grid(replace(request, jobs=jobs, threads=1), specs)
    if code or request.dry_run:
        return code
    from norm_lab.report import page, score_table

    results = specs[0].result.parent
    print()
    score_table.main([str(results)])
    print(f"\n{DEMO_END}\nResults: {results}\nThe page, with curves:")
    out = str(results.parent.parent / "demo")
    return page.main([str(results), "--out", out, "--baseline", specs[0].label])


def study(argv: Sequence[str]) -> int:
    """Run the command ``study``: tune the arms, run each at its tuned values, and write the page.

    The exit status is 1 unless all runs are done or diverged.
    """
    parser = sweep_parser("study")
    parser.add_argument("--out", metavar="DIR", help="folder of the page")
    parser.add_argument("--baseline", metavar="NORM", help="as for norm-plugin report")
    args = parse(parser, argv)
    request = checked_request(args)
    from norm_lab.config.compose import compose_runs
    from norm_lab.config.names import check_is_study
    from norm_lab.config.studies import read_study_file, study_name, study_path
    from norm_lab.engine.grid import run_grid
    from norm_lab.study.tune import compose_tuned, tune_study, tuned_path

    check_is_study(request.experiment)
    path = study_path(request.experiment)
    folder = Path(args.work or WORK, "studies", study_name(path))
    request = replace(request, results=request.results or folder.absolute())
    if not read_study_file(path).tuned:
        specs = compose_runs(request)
    else:
        code = tune_study(request)
        if code or not tuned_path(path).exists():
            return code
        specs = compose_tuned(request)
    code = run_grid(request, specs)
    if code or request.status or request.dry_run:
        return code
    if request.smoke:
        print(SMOKE)
    from norm_lab.report import page

    results = sorted({str(spec.result.parent) for spec in specs})
    print(flush=True)
    baseline = [] if args.baseline is None else ["--baseline", args.baseline]
    shown = ["--study", str(path), *baseline, "--format", page.LATEX]
    return page.main([*results, *shown, "--out", str(args.out or folder / "page")])
