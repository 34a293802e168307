"""tools/fairseq_tests.py: fairseq's tests with our architectures, on a made-up checkout."""

from __future__ import annotations

import pytest

import fairseq_tests
from norm_plugin.io.command_line import CommandError

MADE_UP = """
import argparse
import unittest

from fairseq import options
from fairseq.models.transformer import TransformerModel

STOCK = ("transformer_tiny", "fconv")


class Made(unittest.TestCase):
    def arch(self, name):
        argv = ["DATA", "--task", "translation", "--arch", name]
        return options.parse_args_and_arch(options.get_training_parser(), argv).arch

    def test_both(self):
        self.assertIn("transformer_tiny", self.arch("transformer_tiny"))

    def test_stock_alone(self):
        self.assertEqual("transformer_tiny", self.arch("transformer_tiny"))

    def test_none(self):
        self.assertEqual("norm_fconv", self.arch("transformer_tiny"))

    def test_no_counterpart(self):
        self.assertEqual("fconv", self.arch("fconv"))

    def test_class(self):
        parser = argparse.ArgumentParser()
        TransformerModel.add_args(parser)
        args = parser.parse_args([])
        TransformerModel.build_model(args, None)
"""


@pytest.fixture
def checkout(tmp_path, monkeypatch):
    """A folder that looks like a clone of fairseq."""
    tests = tmp_path / "tests"
    tests.mkdir()
    (tests / "__init__.py").touch()
    (tests / "test_binaries.py").write_text(MADE_UP)
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


def test_each_test_is_run_with_both_architectures(checkout, capfd):
    assert fairseq_tests.main([str(checkout), "--norm-type", "rmsnorm"]) == 1
    lines = capfd.readouterr().out.splitlines()
    tests = [line.split() for line in lines if line.startswith(("passed", "failed"))]
    rows = {name.rpartition(".")[2]: [stock, ours] for stock, ours, name, *_ in tests}
    assert rows.pop("test_both") == ["passed", "passed"]
    assert rows.pop("test_stock_alone") == ["passed", "failed"]
    assert rows.pop("test_none") == ["failed", "failed"]
    assert "test_no_counterpart" not in rows
    assert rows.pop("test_class") == ["failed", "failed"]  # both need a task
    assert lines[-1].startswith("4 tests: 2 pass with fairseq's architectures, 1 with ours; 1 with")


@pytest.mark.parametrize(
    ("name", "whether"),
    [("transformer_iwslt_de_en", True), ("roberta_base", True), ("masked_lm", False), ("x", False)],
)
def test_a_model_of_another_kind_is_no_counterpart(name, whether):
    assert fairseq_tests.has_counterpart(name) == whether


def test_transformer_xl_is_run_with_the_flags_of_our_model():
    command = fairseq_tests.Substitution("dyt", []).command
    given = ["DATA", "--arch", "transformer_xl", "--n-layer", "2", "--user-dir", "own"]
    ours = ["DATA", "--arch", "norm_transformer_xl", "--norm-type", "dyt"]
    assert command(given) == [*ours, "--decoder-layers", "2", "--user-dir", "own"]


def test_a_user_dir_of_the_test_stays_the_only_one():
    command = fairseq_tests.Substitution("dyt", []).command
    ours = ["DATA", "--arch", "norm_transformer", "--norm-type", "dyt", "--user-dir", "own"]
    assert command(["DATA", "--arch", "transformer", "--user-dir", "own"]) == ours
    assert command(["DATA"]) == ["DATA", "--user-dir", fairseq_tests.PLUGIN]


def test_a_folder_without_its_tests_is_refused(tmp_path):
    with pytest.raises(CommandError, match="give a clone of https://github.com"):
        fairseq_tests.main([str(tmp_path)])
