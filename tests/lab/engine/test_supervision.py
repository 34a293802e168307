"""The process that executes a run on the CPU imports neither torch nor fairseq."""

from __future__ import annotations

import subprocess
import sys

from fake_runs import spec_of
from norm_lab.config.spec import RunSpec
from norm_lab.engine.execution import write_run
from norm_lab.paths import ROOT

HEAVY = ("torch", "fairseq", "hydra", "omegaconf", "numpy", "pandas")


def test_a_run_of_a_sweep_imports_nothing_heavy(tmp_path):
    """It fails before its first command, when everything that supervises has been imported."""
    spec = spec_of("toy", "--work", tmp_path)
    write_run(spec)
    assert RunSpec.read(spec.folder) == spec
    code = f"""
from norm_lab.engine import execution
from norm_plugin.io.command_line import CommandError
execution.require_setpriv = lambda: (_ for _ in ()).throw(CommandError("no setpriv"))
try:
    from norm_plugin.cli import main
    main(["job", {str(spec.folder)!r}])
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
read_results("studies/adanorm_rt")
print(*(name for name in ("torch", "fairseq", "hydra") if name in sys.modules))
"""
    result = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert (result.returncode, result.stdout) == (0, "\n"), result.stderr
