"""The process that supervises runs imports neither torch nor fairseq."""

from __future__ import annotations

import subprocess
import sys

import pytest
from forked import ROOT, WARM_PYTHON

from fake_runs import spec_of
from norm_lab.config.request import Request
from norm_lab.engine.jobs import Job

HEAVY = ("torch", "fairseq", "hydra", "omegaconf", "numpy", "pandas")
CODE = f"""
import sys
from norm_plugin.cli import main
from norm_lab import paths
paths.PYTHON[:] = {WARM_PYTHON}
status = main(sys.argv[2:])
print("imported:", *(name for name in sys.argv[1].split() if name in sys.modules))
sys.exit(status)
"""


def imported(*argv: object) -> list[str]:
    """Return which of HEAVY a command has imported in its own process, not in forked ones."""
    command = [sys.executable, "-c", CODE, " ".join(HEAVY), *map(str, argv)]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    return result.stdout.splitlines()[-1].split()[1:]


@pytest.mark.usefixtures("fork_server")
@pytest.mark.parametrize("verb", ["run", "sweep"])
def test_a_command_composes_its_runs_in_another_process(verb, tmp_path):
    assert imported(verb, "toy", "--work", tmp_path, "--dry-run") == []


@pytest.mark.usefixtures("fork_server")
def test_a_study_supervises_its_runs_without_torch(tmp_path):
    """It reads the trials with pandas."""
    modules = imported("study", "toy_tuned", "--work", tmp_path, "--dry-run")
    assert not {"torch", "fairseq", "hydra"} & {*modules}


def test_a_run_of_a_sweep_imports_nothing_heavy(tmp_path):
    """It fails before its first command, when everything that supervises has been imported."""
    spec = spec_of("toy", "--work", tmp_path)
    job = Job(Request("toy", work=tmp_path), spec)
    job.write(tmp_path / "0.json")
    assert Job.read(tmp_path / "0.json") == job
    code = f"""
from norm_lab.engine import execution
from norm_plugin.io.command_line import CommandError
execution.require_setpriv = lambda: (_ for _ in ()).throw(CommandError("no setpriv"))
try:
    from norm_plugin.cli import main
    main(["job", {str(tmp_path / "0.json")!r}])
except CommandError as error:
    assert str(error) == "no setpriv"
import sys
print(*(name for name in {HEAVY} if name in sys.modules))
"""
    result = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert (result.returncode, result.stdout) == (0, "\n"), result.stderr


def test_reading_results_imports_no_torch():
    code = """
import sys
from norm_lab.results.table import read_results
read_results("results/rt")
print(*(name for name in ("torch", "fairseq", "hydra") if name in sys.modules))
"""
    result = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert (result.returncode, result.stdout) == (0, "\n"), result.stderr
