"""The scripts count the cores of the machine, whatever OMP_NUM_THREADS says of threads."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

from fake_machine import CHECKOUT, FakeMachine

# As GNU's: its answer is OMP_NUM_THREADS, where that is set. The machine has three cores.
NPROC = """#!/usr/bin/env bash
echo "nproc ${OMP_NUM_THREADS:-3}" >>"$FAKE_CALLS"
echo "${OMP_NUM_THREADS:-3}"
"""
SAYS_ITS_ARGUMENTS = """#!/usr/bin/env bash
echo "${0##*/} $*, threads: $OMP_NUM_THREADS"
"""


def write_command(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)


def test_setup_compiles_on_all_cores(machine: FakeMachine) -> None:
    machine.add_command("nproc", NPROC)

    done = machine.run(OMP_NUM_THREADS="1")

    assert done.returncode == 0, done.stderr
    assert "nproc 3" in machine.take_calls()


def test_the_tests_run_on_all_cores_with_the_threads_asked_for(tmp_path: Path) -> None:
    write_command(tmp_path / "scripts/setup.sh", "#!/usr/bin/env bash\n")
    write_command(tmp_path / "path/nproc", NPROC)
    for tool in ("ruff", "shellcheck", "mypy", "python"):
        write_command(tmp_path / ".venv/bin" / tool, SAYS_ITS_ARGUMENTS)
    script = shutil.copy(CHECKOUT / "scripts/test.sh", tmp_path / "scripts")
    subprocess.run(["git", "init", "--quiet", str(tmp_path)], check=True)

    environment = {
        **{name: value for name, value in os.environ.items() if name != "NORM_VENV"},
        "PATH": f"{tmp_path / 'path'}:{os.environ['PATH']}",
        "FAKE_CALLS": os.devnull,
        "OMP_NUM_THREADS": "2",
    }
    done = subprocess.run(
        ["bash", script], env=environment, capture_output=True, text=True, check=False
    )

    assert done.returncode == 0, done.stderr
    pytest = done.stdout.splitlines()[-1]
    assert pytest.startswith("python -m pytest -n 3 ") and pytest.endswith("threads: 2")
