"""The verbs of ``norm-plugin`` that the lab adds: see :data:`norm_plugin.cli.VERBS`.

Only the standard library is imported here, so that ``--help`` works before the environment exists.
"""

from __future__ import annotations

VERBS = {
    "run": ("norm_lab.commands:run", "execute one run, from raw text to a score"),
    "sweep": ("norm_lab.commands:sweep", "execute a grid of runs, several in parallel"),
    "status": ("norm_lab.commands:status", "print the state of the runs of a sweep"),
    "tune": ("norm_lab.commands:tune", "tune each arm of a study over a grid"),
    "study": ("norm_lab.commands:study", "tune, run and report a study"),
    "demo": (
        "norm_lab.commands:demo",
        "train four norms on a toy corpus, and compare them",
    ),
    "fairseq-flags": (
        "norm_lab.config.configuration",
        "print hyperparameters as flags of fairseq",
    ),
    "report": (
        "norm_lab.report.page",
        "compare runs over seeds: a page with tables and figures",
    ),
    "score-table": (
        "norm_lab.report.score_table",
        "print an experiment's results as a Markdown table",
    ),
    "records": (
        "norm_lab.report.records",
        "print the statistics of --norm-record, and the data of figures",
    ),
    "spectrum": (
        "norm_lab.report.spectrum",
        "compute the singular values of the embeddings of checkpoints",
    ),
    "theory": ("norm_lab.theory.command", "measure the claims of the papers"),
    "translate": (
        "norm_lab.metrics.length_penalty",
        "run fairseq-generate with a length penalty chosen on validation",
    ),
    "score": ("norm_lab.metrics.bleu", "compute BLEU of the output of fairseq-generate"),
    "finish": (
        "norm_lab.results.finish",
        "average, evaluate and score the finished training in a folder",
    ),
    "publish": (
        "norm_lab.results.publishing:publish_command",
        "store the results of an experiment as one table of runs",
    ),
    # called by programs only, and not listed in the help
    "job": ("norm_lab.commands:job", ""),  # the run in a folder
    "worker": ("norm_lab.engine.cpu_worker", ""),  # one worker on CPUs, started by srun
}
