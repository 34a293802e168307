"""One worker of a training on CPUs under Slurm; srun starts each worker.

    srun python -m norm_plugin worker FLAGS_OF_FAIRSEQ_TRAIN

fairseq's own start-up under Slurm fails on a node without GPUs. This module reads the rank of the
worker and the address of the first node from Slurm. The flags must include --distributed-port.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Mapping, Sequence

from norm_plugin.io.command_line import CommandError

RANK, ADDRESS = "SLURM_PROCID", "SLURM_LAUNCH_NODE_IPADDR"


def worker_flags(flags: Sequence[str], environment: Mapping[str, str]) -> list[str]:
    """Return the flags of ``fairseq-train`` for this worker; CommandError outside srun."""
    if RANK not in environment or ADDRESS not in environment:
        raise CommandError(f"{RANK} or {ADDRESS} is not set; start the workers by srun")
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--distributed-port", type=int, required=True)
    port = parser.parse_known_args(list(flags))[0].distributed_port
    rank = ["--distributed-rank", environment[RANK], "--distributed-no-spawn"]
    return [*flags, *rank, "--distributed-init-method", f"tcp://{environment[ADDRESS]}:{port}"]


def main(argv: Sequence[str]) -> int:
    """Train as this worker."""
    if list(argv) in (["-h"], ["--help"]):
        print(f"usage: srun norm-plugin worker FLAGS\n\n{__doc__}")
        return 0
    sys.argv[1:] = worker_flags(argv, os.environ)
    from fairseq_cli.train import cli_main

    # --user-dir norm_plugin registers nothing, because this package is already imported
    import norm_plugin.models  # noqa: F401

    cli_main()
    return 0
