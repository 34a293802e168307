#!/usr/bin/env python3
"""Run fairseq's own tests with our architectures in place of fairseq's, and compare.

    python tools/fairseq_tests.py CHECKOUT
    python tools/fairseq_tests.py CHECKOUT --norm-type powernorm --tests test_roberta

CHECKOUT is a clone of https://github.com/facebookresearch/fairseq, which provides the tests; the
fairseq under test is the installed one. Each test runs unchanged, and again with norm_ in front of
each architecture that has such a counterpart. A test whose first architecture has none is not
listed. Each runs in a process of its own. The exit status is 1 if a test passes with fairseq's
architecture and fails with ours. fairseq's own ``transformer_xl`` needs a version of
``transformers`` that still has that model, so its test fails with current ones.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import importlib
import io
import itertools
import logging
import multiprocessing
import sys
import unittest
from collections.abc import Callable, Iterator, Mapping, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple

import fairseq_cli.train  # noqa: F401  or else that of the checkout is found
import torch
from fairseq import options, utils
from fairseq.models import ARCH_MODEL_NAME_REGISTRY, ARCH_MODEL_REGISTRY
from fairseq.models.transformer import TransformerModel

from norm_plugin.io.command_line import CommandError, run_command
from norm_plugin.models import NormTransformerModel
from norm_plugin.norms import NORM_TYPES

PLUGIN = str(Path(__file__).resolve().parents[1] / "norm_plugin")
MODULES = (
    "test_activation_checkpointing",
    "test_average_checkpoints",
    "test_binaries",
    "test_checkpoint_utils",
    "test_ema",
    "test_export",
    "test_inference_dropout",
    "test_reproducibility",
    "test_roberta",
    "test_sequence_generator",
    "test_train",
    "test_valid_subset_checks",
)
"""The tests of fairseq that build a Transformer or RoBERTa on a CPU."""
REPLACED: Mapping[str, Mapping[str, str]] = {
    "transformer": {},
    "transformer_lm": {},
    "roberta": {},
    "transformer_xl": {"--n-layer": "--decoder-layers"},
}
"""fairseq's models whose architectures have counterparts, with our flags for each of their flags.
"""


class Outcome(NamedTuple):
    """The outcome of a test.

    Attributes:
        result: passed, failed or skipped.
        reason: the last line of what it raised, or why it was skipped.
        replaced: the architectures that were replaced.
    """

    result: str
    reason: str
    replaced: list[str]


def has_counterpart(name: str) -> bool:
    """Return whether norm_NAME is fairseq's NAME with other norms, and not another model."""
    return ARCH_MODEL_NAME_REGISTRY.get(name) in REPLACED and f"norm_{name}" in ARCH_MODEL_REGISTRY


class Substitution(contextlib.ExitStack):
    """While it is open, fairseq's commands and ``modules`` build models with norms.

    Args:
        norm: the norm of every site that ``--norm-type`` sets.
        modules: modules of tests, some of which build a ``TransformerModel`` themselves.
    """

    def __init__(self, norm: str, modules: Sequence[Any]) -> None:
        super().__init__()
        self.norm, self.modules = norm, modules
        self.replaced: list[str] = []

    def __enter__(self) -> Substitution:
        self._replace(options, "parse_args_and_arch", self._parse(options.parse_args_and_arch))
        for module in self.modules:
            if getattr(module, "TransformerModel", None) is TransformerModel:
                self._replace(module, "TransformerModel", self._transformer())
        return self

    def _replace(self, owner: Any, name: str, value: Any) -> None:
        self.callback(setattr, owner, name, getattr(owner, name))
        setattr(owner, name, value)

    def _parse(self, parse: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(parse)
        def wrapper(parser: Any, input_args: Any = None, *args: Any, **kwargs: Any) -> Any:
            argv = None if input_args is None else self.command(list(input_args))
            return parse(parser, argv, *args, **kwargs)

        return wrapper

    def command(self, argv: list[str]) -> list[str]:
        """Return a fairseq command line with our architecture, if it has one, and a user dir.

        The test's own user dir, if any, is kept; ours is already imported.
        """
        for place, (flag, name) in enumerate(itertools.pairwise(argv)):
            if flag not in ("--arch", "-a"):
                continue
            if has_counterpart(name):
                self.replaced.append(name)
                flags = REPLACED[ARCH_MODEL_NAME_REGISTRY[name]]
                argv = [flags.get(word, word) for word in argv]
                argv[place + 1 : place + 2] = [f"norm_{name}", "--norm-type", self.norm]
            elif not self.replaced:  # most of these tests train for long
                raise unittest.SkipTest(f"{name} has no counterpart")
            break
        return argv if "--user-dir" in argv else [*argv, "--user-dir", PLUGIN]

    def _transformer(self) -> type[TransformerModel]:
        substitution = self

        class WithNorm(NormTransformerModel):
            """The model that ``NormTransformerModel.build_model`` builds with the norm."""

            @classmethod
            def build_model(cls, args: Any, task: Any) -> Any:
                """Add the norm, which fairseq's tests do not give."""
                substitution.replaced.append("TransformerModel")
                args.norm_type = substitution.norm
                return NormTransformerModel.build_model(args, task)

        return WithNorm


def tests_of(suite: unittest.TestSuite) -> Iterator[unittest.TestCase]:
    """Yield each test of a suite, which may contain suites."""
    for part in suite:
        if isinstance(part, unittest.TestSuite):
            yield from tests_of(part)
        else:
            yield part


def run_alone(test: unittest.TestCase, substitution: Substitution | None) -> Outcome:
    """Run a test in a process of its own."""
    receiver, sender = multiprocessing.Pipe(duplex=False)
    process = multiprocessing.get_context("fork").Process(
        target=_run_here, args=(test, substitution, sender)
    )
    process.start()
    sender.close()
    try:
        outcome = Outcome(*receiver.recv())
    except EOFError:
        outcome = Outcome("failed", "its process ended", [])
    process.join()
    return outcome


def _run_here(test: unittest.TestCase, substitution: Substitution | None, to: Connection) -> None:
    torch.set_num_threads(1)
    result = unittest.TestResult()
    with (
        contextlib.redirect_stdout(io.StringIO()),
        contextlib.redirect_stderr(io.StringIO()),
        substitution or contextlib.nullcontext(),
    ):
        test.run(result)
    replaced = [] if substitution is None else substitution.replaced
    problems = [*result.errors, *result.failures]
    if problems:
        lines = [line for line in problems[0][1].splitlines() if line.strip()]
        to.send(("failed", lines[-1], replaced))
    elif result.skipped:
        to.send(("skipped", result.skipped[0][1], replaced))
    else:
        to.send(("passed", "", replaced))


def load(checkout: Path, names: Sequence[str]) -> list[Any]:
    """Return the modules of tests of those names that the checkout has."""
    if not (checkout / "tests" / "test_binaries.py").is_file():
        raise CommandError(
            f"{checkout} has no tests/test_binaries.py; give a clone of "
            "https://github.com/facebookresearch/fairseq"
        )
    logging.root.handlers.clear()  # fairseq's commands print to stdout what they log
    utils.import_user_module(argparse.Namespace(user_dir=PLUGIN))  # which logs it, but only once
    sys.path.insert(0, str(checkout))
    for name in [name for name in sys.modules if name.partition(".")[0] == "tests"]:
        del sys.modules[name]
    found = [name for name in names if (checkout / "tests" / f"{name}.py").is_file()]
    return [importlib.import_module(f"tests.{name}") for name in found]


def compare(modules: Sequence[Any], norm: str, only: str) -> list[tuple[str, Outcome, Outcome]]:
    """Return each test with a replaced architecture: its name, fairseq's outcome and ours."""
    rows = []
    for module in modules:
        for test in tests_of(unittest.defaultTestLoader.loadTestsFromModule(module)):
            name = test.id().removeprefix("tests.")
            if only not in name:
                continue
            ours = run_alone(test, Substitution(norm, modules))
            if not ours.replaced:
                continue
            stock = run_alone(test, None)
            rows.append((name, stock, ours))
            reasons = {stock.reason: "fairseq", ours.reason: "ours"}
            print(f"{stock.result:<8}{ours.result:<8}{name} [{', '.join(set(ours.replaced))}]")
            for reason, whose in reasons.items():
                if reason:
                    print(f"{'':<16}{whose}: {reason}")
            sys.stdout.flush()
    return rows


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(
        prog="python tools/fairseq_tests.py",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("checkout", type=Path, metavar="CHECKOUT", help="a clone of fairseq")
    parser.add_argument(
        "--norm-type", choices=NORM_TYPES, default="layernorm", help="default: %(default)s"
    )
    parser.add_argument(
        "--tests", default="", metavar="TEXT", help="run only the tests whose name contains TEXT"
    )
    args = parser.parse_args(argv)
    modules = load(args.checkout.resolve(), MODULES)
    print("fairseq ours")
    rows = compare(modules, args.norm_type, args.tests)
    if not rows:
        raise CommandError(f"no test with {args.tests!r} in its name has an architecture of ours")
    results = [(stock.result, ours.result) for _, stock, ours in rows]
    worse = results.count(("passed", "failed"))
    passed = [sum(result == "passed" for result in side) for side in zip(*results, strict=True)]
    print(
        f"{len(rows)} tests: {passed[0]} pass with fairseq's architectures, {passed[1]} with ours; "
        f"{worse} with fairseq's alone"
    )
    return int(worse > 0)


if __name__ == "__main__":
    run_command(main)
