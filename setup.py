"""The C++ kernels of norm_plugin, which are optional; all other metadata is in pyproject.toml."""

import importlib.util
import sys
import sysconfig
from pathlib import Path
from runpy import run_path

from setuptools import setup

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
        from torch.utils.cpp_extension import BuildExtension, CppExtension
    except ImportError as error:
        say(f"no C++ kernels ({error}; install torch first, then this again)")
        return {}

    class OptionalBuild(BuildExtension):
        def run(self):
            try:
                super().run()
            # whatever a compiler's absence or failure raises is reported, and ignored
            except Exception as error:  # noqa: BLE001
                say(f"no C++ kernels ({first_line(error)})")

    digest = run_path(str(KERNELS.parent / "sources.py"))["digest"]()
    kernels = CppExtension(
        "norm_plugin.kernels.cpu._native",
        sources=[str(path) for path in sorted(KERNELS.glob("*.cpp"))],
        depends=[str(path) for glob in ("*.h", "*.inc") for path in sorted(KERNELS.glob(glob))],
        extra_compile_args=[*COMPILER_FLAGS, f"-DNORM_PLUGIN_SOURCES={digest}"],
        extra_link_args=["-fopenmp"],
    )
    return {"ext_modules": [kernels], "cmdclass": {"build_ext": OptionalBuild}}


def first_line(error):
    """Return the first line of an error's message, or its type if it has none."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def say(text):
    """Print a line, which pip shows with -v, and on an error."""
    print(f"norm_plugin: {text}: {FALLBACK}", file=sys.stderr)


setup(**optional_extension())
