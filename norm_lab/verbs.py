"""The verbs of ``norm-plugin`` that the lab adds: see :data:`norm_plugin.cli.VERBS`.

Only the standard library is imported here, so that ``--help`` works before the environment exists.
"""

from __future__ import annotations

from norm_plugin.cli import COMPARE, EVALUATE, LOOK, Verb

PARSERS = "norm_lab.report.parsers"
VERBS = {
    "run": Verb("norm_lab.commands:run", "execute one run, from raw text to a score", COMPARE),
    "sweep": Verb(
        "norm_lab.commands:sweep", "execute a grid of runs, several in parallel", COMPARE
    ),
    "study": Verb("norm_lab.commands:study", "tune, run and report a study", COMPARE),
    "tune": Verb("norm_lab.commands:tune", "tune each arm of a study over a grid", COMPARE),
    "status": Verb(
        "norm_lab.commands:status", "print the state of the runs of a sweep or a study", COMPARE
    ),
    "report": Verb(
        "norm_lab.report.page",
        "compare runs over seeds: a page with tables and figures",
        COMPARE,
        f"{PARSERS}:report_parser",
    ),
    "score-table": Verb(
        "norm_lab.report.score_table",
        "print an experiment's results as a Markdown table",
        COMPARE,
        f"{PARSERS}:score_table_parser",
    ),
    "publish": Verb(
        "norm_lab.results.publishing:publish_command",
        "store the results of an experiment as one table of runs",
        COMPARE,
    ),
    "demo": Verb(
        "norm_lab.commands:demo",
        "train four norms on a toy corpus, and compare them",
        COMPARE,
    ),
    "score": Verb(
        "norm_lab.metrics.bleu", "compute BLEU of the output of fairseq-generate", EVALUATE
    ),
    "translate": Verb(
        "norm_lab.metrics.length_penalty",
        "run fairseq-generate with a length penalty chosen on validation",
        EVALUATE,
    ),
    "finish": Verb(
        "norm_lab.results.finish",
        "average, evaluate and score the finished training in a folder",
        EVALUATE,
    ),
    "fairseq-flags": Verb(
        "norm_lab.config.configuration", "print hyperparameters as flags of fairseq", LOOK
    ),
    "records": Verb(
        "norm_lab.report.records",
        "print the statistics of --norm-record, and the data of figures",
        LOOK,
        f"{PARSERS}:records_parser",
    ),
    # called by programs only, and not listed in the help
    "job": Verb("norm_lab.commands:job", ""),  # the run in a folder
    "worker": Verb("norm_lab.engine.cpu_worker", ""),  # one worker on CPUs, started by srun
}
