"""The verbs of ``norm-plugin`` that the lab adds: see :data:`norm_plugin.cli.VERBS`.

Only the standard library is imported here, so that ``--help`` works before the environment exists.
"""

from __future__ import annotations

VERBS = {
    "run": ("norm_lab.experiments.options:run", "one run, from raw text to a score"),
    "sweep": ("norm_lab.experiments.options:sweep", "a grid of runs, several at once"),
    "status": ("norm_lab.experiments.options:status", "the state of the runs of a sweep"),
    "tune": ("norm_lab.experiments.options:tune", "tune each arm of a study over a grid"),
    "study": ("norm_lab.analysis.whole_study", "tune, run and report a study"),
    "demo": (
        "norm_lab.experiments.options:demo",
        "train four norms on a toy corpus, and compare them",
    ),
    "flags": (
        "norm_lab.experiments.recipes",
        "the hyperparameters of a recipe as flags of fairseq",
    ),
    "report": (
        "norm_lab.analysis.report",
        "compare runs over seeds: a page with tables and figures",
    ),
    "table": ("norm_lab.analysis.study", "the results of an experiment as a Markdown table"),
    "records": (
        "norm_lab.analysis.records",
        "the statistics of --norm-record, and the data of figures",
    ),
    "spectrum": (
        "norm_lab.analysis.spectrum",
        "the singular values of the embeddings of checkpoints",
    ),
    "theory": ("norm_lab.analysis.theory_command", "measure the claims of the papers"),
    "predict": (
        "norm_lab.experiments.metrics.accuracy",
        "the labels of a split by a trained classifier",
    ),
    "evaluate-lm": (
        "norm_lab.experiments.metrics.language_model",
        "the loss of a language model",
    ),
    "score": ("norm_lab.experiments.metrics.bleu", "BLEU of the output of fairseq-generate"),
    "result": (
        "norm_lab.experiments.results:result_command",
        "write the result of a finished training",
    ),
    "publish": (
        "norm_lab.experiments.publishing:publish_command",
        "store the results of an experiment as one table of runs",
    ),
    # called by programs only, and not in the help
    "stages": ("norm_lab.experiments.runner", ""),  # several stages of a run in one process
    "compose": ("norm_lab.experiments.compose", ""),  # the runs of a command line, as JSON
    "job": ("norm_lab.experiments.options:job", ""),  # one run of a sweep
    "worker": ("norm_lab.experiments.cpu_worker", ""),  # of a training on CPUs, started by srun
}
