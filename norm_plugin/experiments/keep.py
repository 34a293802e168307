"""Keep translations and statistics beside results that were written without them.

    norm-plugin keep work/results/multi30k_cpu --work work

Takes them from the folders of the runs in WORK. A result is left as it is where its run is gone, or
where it is known to be of another training than its run: the reason is printed, and the exit
status is 1. What is kept already is not written again without --again.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from norm_plugin.checkpoints.user_dirs import add_user_dir, import_user_dir
from norm_plugin.commands.command_line import CommandError, read_json, read_lines, write_text
from norm_plugin.experiments.generate_log import read_generate_log
from norm_plugin.experiments.kept import keep_files
from norm_plugin.experiments.metrics import AVERAGE
from norm_plugin.experiments.metrics.bleu import reference_file, text_form
from norm_plugin.experiments.results import (
    Result,
    headline,
    metric_of,
    read_result_files,
    result_name,
    result_text,
)
from norm_plugin.experiments.score import score_detokenized
from norm_plugin.models.plan import RECORDS

FOLDED = "-folded"
"""How the label of a result ends whose norms were folded for the translation."""


def keep_again(result: Result, folder: Path, work: Path) -> None:
    """Write what is kept beside one result, from the folder of its run.

    Args:
        folder: of the result.
        work: the ``--work`` folder of its run.

    Raises:
        CommandError: the run or its data is gone, or gives another score than the result has.
    """
    label, metric = str(result["norm"]), metric_of(result)
    variant = FOLDED if label.endswith(FOLDED) else ""
    run_name = result_name(label.removesuffix(FOLDED), result["seed"]).removesuffix(".json")
    run = work / "runs" / result["experiment"] / run_name
    record = run / "checkpoints" / RECORDS
    path = folder / result_name(label, result["seed"])
    best = run / "checkpoints" / "checkpoint_best.pt"
    entries = keep_files(
        path,
        translations_of_run(result, run / f"{metric.stage}{variant}.log", work),
        record if record.exists() else None,
        run / "averaged.pt" if metric.checkpoint == AVERAGE else best,
    )
    write_text(path, result_text({**result, "kept": entries}))


def translations_of_run(result: Result, log: Path, work: Path) -> Sequence[str] | None:
    """The translations in ``log``; None for a result without a score of translations.

    Raises CommandError where the log gives another score than the result has.
    """
    data, metric = data_of(result, work), metric_of(result)
    translated = "sacrebleu" in result["scores"]
    if translated:  # the score of the kept text
        title, stored = "sacrebleu", result["scores"]["sacrebleu"]["score"]
        manifest = read_json(data / "manifest.json")
        form = text_form(manifest)
        references = read_lines(reference_file(data, result["split"], manifest["target"]))
        score = score_detokenized(read_generate_log(log, form.subword), references, form)["score"]
    else:
        title, stored = metric.title, headline(result)
        score = metric.scores(log, data, result["split"])[metric.headline]["score"]
    if score != stored:
        raise CommandError(
            f"{log} gives {score} of {title}, and the result has {stored}: the run was made again"
        )
    return metric.texts(log, data) if translated else None


def data_of(result: Result, work: Path) -> Path:
    """The prepared corpus of a result, by its checksum."""
    checksum = result["data"]["checksum"]
    for manifest in sorted(work.glob("data/*/manifest.json")):
        if read_json(manifest).get("checksum") == checksum:
            return manifest.parent
    raise CommandError(f"no corpus in {work / 'data'} has the checksum {checksum}")


def main(argv: Sequence[str]) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="norm-plugin keep",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("folders", nargs="+", type=Path, metavar="RESULTS", help="of experiments")
    parser.add_argument(
        "--work",
        type=Path,
        default=Path("work"),
        metavar="DIR",
        help="the --work folder of the runs (default: %(default)s)",
    )
    parser.add_argument("--again", action="store_true", help="also where they are kept already")
    add_user_dir(parser)
    args = parser.parse_args(argv)
    import_user_dir(args.user_dir)
    status = 0
    for folder in args.folders:
        results = read_result_files(folder)
        if not results:
            raise CommandError(f"{folder} has no files of results; published ones keep theirs")
        for result in results:
            outcome = "kept"
            if "kept" in result and not args.again:
                outcome = "kept before"
            else:
                try:
                    keep_again(result, folder, args.work)
                except CommandError as error:
                    outcome, status = f"not kept: {error}", 1
            print(f"{result['norm']}, seed {result['seed']}: {outcome}")
    return status
