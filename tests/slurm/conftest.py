"""A Slurm of this machine's own: one controller and two nodes, without accounting or munge."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
from pathlib import Path

import pytest

CONFIG = """
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
AuthType=auth/none
CredType=cred/none
SlurmctldPort={ports[0]}
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
SlurmUser=root
SlurmdUser=root
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/controller.pid
SlurmdPidFile={folder}/node-%n.pid
SlurmctldLogFile={folder}/controller.log
SlurmdLogFile={folder}/node-%n.log
ReturnToService=2
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
NodeName=n1 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[1]} CPUs=1
NodeName=n2 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[2]} CPUs=1
PartitionName=main Nodes=n1,n2 Default=YES MaxTime=INFINITE State=UP
"""


@pytest.fixture(scope="session")
def slurm(tmp_path_factory) -> Path:
    """The configuration of a running Slurm, for SLURM_CONF; skipped where there can be none."""
    controller, node = (shutil.which(name, path="/usr/sbin:/sbin") for name in DAEMONS)
    if controller is None or node is None or os.geteuid() != 0:
        pytest.skip("Slurm is not installed (apt-get install slurm-wlm), or this is not root")
    folder = tmp_path_factory.mktemp("slurm")
    (folder / "state").mkdir()
    config = folder / "slurm.conf"
    host = socket.gethostname().partition(".")[0]
    config.write_text(CONFIG.format(host=host, ports=free_ports(3), folder=folder))
    environment = {**os.environ, "SLURM_CONF": str(config)}
    try:
        subprocess.run([controller], env=environment, check=True)
        for name in ("n1", "n2"):
            subprocess.run([node, "-N", name], env=environment, check=True)
        # It comes back when both nodes have answered.
        hostname = ["srun", "--nodes", "2", "hostname"]
        subprocess.run(hostname, env=environment, check=True, capture_output=True, timeout=120)
        yield config
    finally:
        for pid in folder.glob("*.pid"):
            os.kill(int(pid.read_text()), signal.SIGTERM)


DAEMONS = ("slurmctld", "slurmd")


def free_ports(count: int) -> list[int]:
    """Ports that nobody listens on."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]
    finally:
        for each in sockets:
            each.close()
