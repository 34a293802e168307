"""The C++ kernels of norm_plugin, which are optional, and the files that its lab reads."""

import hashlib
import importlib.util
import os
import platform
import shutil
import sys
import sysconfig
from pathlib import Path
from runpy import run_path

from setuptools import setup
from setuptools.command.build_py import build_py

KERNELS = Path("norm_plugin") / "kernels" / "cpu" / "csrc"
COMPILER_FLAGS = [
    "-O3",
    "-g0",
    "-fopenmp",
    "-fno-math-errno",
    "-ffp-contract=fast",
    "-Wno-psabi",
]
FALLBACK = "the norms will run in plain torch, which is slower and gives the same results"


def optional_extension():
    """Return the arguments of setup() for the C++ kernels; none if torch is not installed.

    A compiler that is missing or fails must not prevent an installation.
    """
    if importlib.util.find_spec("torch") is None:
        # pip hides the packages of the environment from an isolated build. Naming torch in
        # pyproject.toml would download a second one, which the kernels might then not fit.
        sys.path.append(sysconfig.get_path("platlib"))
    try:
        import torch
        from torch.utils.cpp_extension import BuildExtension, CppExtension
    except ImportError as error:
        say(f"no C++ kernels ({error}; install torch first, then this again)")
        return {"cmdclass": LAB}

    class OptionalBuild(BuildExtension):
        def run(self):
            try:
                super().run()
            # whatever a compiler's absence or failure raises is reported, and ignored
            except Exception as error:  # noqa: BLE001
                say(f"no C++ kernels ({first_line(error)})")

        def build_extension(self, ext):
            kept = cache / key(torch, digest) / Path(self.get_ext_filename(ext.name)).name
            built = Path(self.get_ext_fullpath(ext.name))
            if kept.is_file():
                copy_whole(kept, built)
                return
            super().build_extension(ext)
            try:
                copy_whole(built, kept)
            except OSError as error:
                print(f"norm_plugin: kernels not kept in {cache} ({error})", file=sys.stderr)

    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "norm_plugin"
    digest = run_path(str(KERNELS.parent / "sources.py"))["digest"]()
    kernels = CppExtension(
        "norm_plugin.kernels.cpu._native",
        sources=[str(path) for path in sorted(KERNELS.glob("*.cpp"))],
        depends=[str(path) for glob in ("*.h", "*.inc") for path in sorted(KERNELS.glob(glob))],
        extra_compile_args=[*COMPILER_FLAGS, f"-DNORM_PLUGIN_SOURCES={digest}"],
        extra_link_args=["-fopenmp"],
    )
    return {"ext_modules": [kernels], "cmdclass": {**LAB, "build_ext": OptionalBuild}}


class BuildLab(build_py):
    """Adds to a wheel the folders of the checkout that the lab reads: see norm_lab/paths.py."""

    def run(self):
        super().run()
        for name in () if self.editable_mode else ("configs", "data-prep"):
            target = Path(self.build_lib) / "norm_lab" / "installed" / name
            unwanted = shutil.ignore_patterns("__pycache__")
            shutil.copytree(name, target, ignore=unwanted, dirs_exist_ok=True)


def key(torch, digest):
    """Return a digest of everything that the built kernels depend on, for other checkouts."""
    flags = [os.environ.get(name, "") for name in ("CXX", "CC", "CPPFLAGS", "CFLAGS", "CXXFLAGS")]
    build = [digest, Path(__file__).read_text(encoding="utf-8"), torch.__version__]
    build += [str(torch.version.git_version), str(torch._C._GLIBCXX_USE_CXX11_ABI)]
    build += [str(sysconfig.get_config_var("EXT_SUFFIX")), platform.machine(), *flags]
    return hashlib.sha256("\n".join(build).encode()).hexdigest()[:32]


def copy_whole(source, target):
    """Copy a file, so that ``target`` is never seen half-written."""
    target.parent.mkdir(parents=True, exist_ok=True)
    part = target.with_name(f"{target.name}.{os.getpid()}")
    shutil.copy(source, part)
    part.replace(target)


LAB = {"build_py": BuildLab}


def first_line(error):
    """Return the first line of an error's message, or its type if it has none."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def say(text):
    """Print a line, which pip shows with -v, and on an error."""
    print(f"norm_plugin: {text}: {FALLBACK}", file=sys.stderr)


setup(**optional_extension())
