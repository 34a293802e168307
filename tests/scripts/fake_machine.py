"""A machine for scripts/setup.sh: a checkout, and a PATH with fakes of Python, pip and g++."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[2]
CSRC = "norm_plugin/kernels/cpu/csrc/rows.inc"  # one of the sources of the C++ kernels
COPIED = (
    *("scripts/setup.sh", "scripts/check_python.py", "setup.py", "pyproject.toml", CSRC),
    *("requirements.lock", "requirements-cpu.lock"),
)
TOOLS = (
    *("bash", "cat", "cp", "dirname", "flock", "grep", "ls", "mkdir", "mv", "realpath", "rm"),
    *("sed", "sha256sum", "tail"),
)

# Notes in $FAKE_CALLS what it is told to do; answers about itself as this Python does, after the
# statements in $FAKE_SELF, and with the version in its own.
PYTHON = """#!/usr/bin/env bash
case "$*" in
  -V) echo "Python {version}" ;;
  */check_python.py)
    exec {python} -S -c "import sys, sysconfig; sys.version_info = ({commas})
${{FAKE_SELF:-}}
exec(open('$1').read())" ;;
  *"triton"*) [[ -n ${{FAKE_CPU_TORCH:-}} ]] ;;
  "-c import pip") exit 0 ;;
  *fairseq.libnat*) grep -q -e "${{FAKE_LOADS_AFTER:-pip}}" "$FAKE_CALLS" ;;
  "-m venv "*)
    echo "venv $3" >>"$FAKE_CALLS"
    mkdir -p "$3/bin"
    cp "$0" "$3/bin/python"
    echo "VIRTUAL_ENV=$3" >"$3/bin/activate" ;;
  "-m pip install "*)
    echo "pip $* CUDA_HOME=${{CUDA_HOME-none}}" >>"$FAKE_CALLS"
    [[ -z ${{FAKE_PIP_KILLS_SETUP:-}} ]] || kill -KILL $PPID
    [[ -n ${{FAKE_PIP_FAILS:-}} && $* == *"$FAKE_PIP_FAILS"* ]] || exit 0
    echo "$FAKE_PIP_ERROR"
    exit 1 ;;
  *) echo "the fake Python has no answer to: $*" >&2; exit 99 ;;
esac
"""


class FakeMachine:
    """Files below ``folder``; nothing outside is reached but a few harmless commands."""

    def __init__(self, folder: Path) -> None:
        self.root = folder / "checkout"
        self.bin = folder / "bin"
        self.venv = self.root / ".venv"
        self.stamp = self.venv / "setup.stamp"
        self.log = self.venv / "setup.log"
        self.calls_file = folder / "calls"
        for name in COPIED:
            (self.root / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(CHECKOUT / name, self.root / name)
        self.bin.mkdir(parents=True)
        for tool in TOOLS:
            (self.bin / tool).symlink_to(shutil.which(tool) or f"{tool} is not on PATH")
        self.calls_file.touch()
        self.add_python("python3", "3.11.7")
        self.add_command("g++", "#!/usr/bin/env bash\n")

    def add_command(self, name: str, text: str) -> None:
        path = self.bin / name
        path.unlink(missing_ok=True)  # the link to a tool of this machine, not the tool
        path.write_text(text)
        path.chmod(0o755)

    def add_python(self, name: str, version: str) -> None:
        commas = version.replace(".", ", ")
        python = shlex.quote(sys.executable)
        self.add_command(name, PYTHON.format(version=version, commas=commas, python=python))

    def start(self, *arguments: str, **environment: str) -> subprocess.Popen[str]:
        """Start setup.sh with ``environment`` on top of the bare minimum."""
        clean = {"PATH": str(self.bin), "FAKE_CALLS": str(self.calls_file), **environment}
        return subprocess.Popen(
            [str(self.root / "scripts/setup.sh"), *arguments],
            env=clean,
            cwd=self.root.parent,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        process = self.start(*arguments, **environment)
        out, err = process.communicate(timeout=60)
        return subprocess.CompletedProcess(process.args, process.returncode, out, err)

    def take_calls(self) -> list[str]:
        """What Python and pip were told to do since the last time; "venv" or "pip" comes first."""
        calls = self.calls_file.read_text().splitlines()
        os.truncate(self.calls_file, 0)
        return calls
