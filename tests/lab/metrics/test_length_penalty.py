"""One beam search gives the translations of every length penalty; validation chooses among them."""

from __future__ import annotations

import shutil
import sys

import fairseq_cli.generate
import pytest
import torch
from tiny_run import run_state, write_dictionaries, write_pairs

from norm_lab.metrics import find_metric
from norm_lab.metrics.length_penalty import PENALTIES, bleu_by_penalty, main, read_translations
from norm_plugin.io.command_line import CommandError

NBEST = """\
S-7\ta
T-7\tw x y z v
H-7\t-1.0\tw x y z
D-7\t-1.0\tw x y z
P-7\t-1.0 -1.0 -1.0 -1.0 -1.0
H-7\t-1.1\tw x y z v
D-7\t-1.1\tw x y z v
P-7\t-1.1 -1.1 -1.1 -1.1 -1.1 -1.1
"""


def test_a_larger_penalty_prefers_longer_translations():
    (sentence,) = read_translations(NBEST, penalty=1.0).values()
    assert sentence.best(1.0) == ("w x y z", -1.0)
    assert sentence.best(1.4)[0] == "w x y z"  # -5 / 5^1.4 = -0.525, -6.6 / 6^1.4 = -0.537
    text, score = sentence.best(2.0)  # -5 / 5^2 = -0.2, -6.6 / 6^2 = -0.183
    assert (text, round(score, 3)) == ("w x y z v", -0.183)
    bleu = bleu_by_penalty([sentence])
    assert list(bleu) == list(PENALTIES)
    assert bleu[1.0] < bleu[2.0] == 100


def test_a_line_separator_in_a_sentence_is_a_part_of_it():
    output = NBEST.replace("w x y z", "w\u2028x y z")
    (sentence,) = read_translations(output, penalty=1.0).values()
    assert sentence.reference == "w\u2028x y z v"
    assert sentence.best(1.0)[0] == "w\u2028x y z"


@pytest.fixture(scope="module")
def command(tmp_path_factory):
    """The arguments of fairseq-generate for a model of random weights."""
    data = write_pairs(write_dictionaries(tmp_path_factory.mktemp("length") / "bin"), 12)
    for file in list(data.glob("train.*")):
        for split in ("valid", "test"):
            shutil.copy(file, data / file.name.replace("train", split))
    path = data / "model.pt"
    torch.save(run_state(data), path)
    flags = ("--num-workers", 0, "--beam", 4, "--max-len-b", 12, "--max-tokens", 100)
    flags += ("--required-batch-size-multiple", 1, "--gen-subset", "test", "--cpu")
    return [*map(str, (data, "--path", path, *flags))]


def sentences(output: str) -> list[tuple[str, str]]:
    lines = [line.split("\t") for line in output.splitlines()]
    return [(line[0], line[-1]) for line in lines if line[0][:2] in ("T-", "D-")]


@pytest.mark.parametrize("penalty", [0.2, 1.0, 3.0])
def test_translations_are_those_of_fairseq_with_the_penalty(
    command, penalty, monkeypatch, capsys, tmp_path
):
    monkeypatch.setattr(sys, "argv", ["", *command, "--lenpen", str(penalty)])
    fairseq_cli.generate.cli_main()
    expected = capsys.readouterr().out
    monkeypatch.setattr("norm_lab.metrics.length_penalty.PENALTIES", (penalty,))
    assert main(command) == 0
    printed = capsys.readouterr().out
    assert sentences(printed) == sentences(expected)
    assert printed.splitlines()[-1] == expected.splitlines()[-1]
    assert printed.startswith(f"| length penalty {penalty}: ")


def test_a_score_without_penalty_is_refused(command):
    with pytest.raises(CommandError, match="--unnormalized"):
        main([*command, "--unnormalized"])


def test_the_labels_of_scores_name_the_penalty(tmp_path):
    metric, log = find_metric("bleu_length"), tmp_path / "generate.log"
    for folder in ("bin", "tok"):
        (tmp_path / folder).mkdir()
    (tmp_path / "manifest.json").write_text('{"source": "en", "target": "de"}')
    (tmp_path / "bin" / "dict.de.txt").write_text("w 1\nx 1\ny 1\nz 1\n")
    (tmp_path / "tok" / "test.de").write_text("w x y z\n")
    end = "BLEU4 = 100.00, 100.0/100.0/100.0/100.0 (BP=1.000, ratio=1.000, syslen=4, reflen=4)"
    text = f"T-0\tw x y z\nD-0\t-1.0\tw x y z\nGenerate test with beam=5: {end}\n"
    log.write_text(f"| length penalty 1.4: BLEU on valid is 1.4 20.00\n{text}")
    scores = metric.scores(log, tmp_path, "test")
    assert all(score["label"].endswith("penalty 1.4 chosen on valid") for score in scores.values())
    log.write_text(text)
    with pytest.raises(CommandError, match="names 0 length penalties"):
        metric.scores(log, tmp_path, "test")
