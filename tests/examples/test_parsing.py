"""examples/parsing.py, arc_standard.py and treebank.py on made-up trees."""

from __future__ import annotations

import gzip
import random

import pytest

import parsing
from arc_standard import NOTHING, State, oracle
from norm_plugin.norms import build_norm
from treebank import read_conllu, uas

# Heads of words 1 to n. In the second the arcs 1 <- 3 and 2 -> 4 cross.
PROJECTIVE, CROSSING = [2, 0, 5, 5, 2], [3, 0, 2, 2]


def conllu(heads, tags=None):
    lines = []
    for position, head in enumerate(heads, 1):
        tag = tags[position - 1] if tags else f"T{head}"
        label = "root" if head == 0 else "dep"
        lines.append(
            "\t".join([str(position), f"w{head}", "_", tag, *"__", str(head), label, *"__"])
        )
    return "# a comment\n" + "\n".join(lines) + "\n\n"


def random_tree(generator, first, last, head):
    """Heads of the words first to last, none of whose arcs cross."""
    if first > last:
        return []
    top = generator.randint(first, last)
    left = random_tree(generator, first, top - 1, top)
    return [*left, head, *random_tree(generator, top + 1, last, top)]


@pytest.fixture
def folder(tmp_path):
    """A treebank in which a word's tag says where its head is."""
    generator = random.Random(1)
    for part, count in (("train", 60), ("dev", 10), ("test", 10)):
        trees = [random_tree(generator, 1, generator.randint(1, 5), 0) for _ in range(count)]
        text = "".join(conllu(heads) for heads in [*trees, CROSSING])
        (tmp_path / f"en-{part}.conllu.gz").write_bytes(gzip.compress(text.encode()))
    return tmp_path


def test_it_learns(folder, monkeypatch, capsys):
    monkeypatch.setattr(parsing, "BATCH", 32)
    argv = ["--data", str(folder), "--epochs", "8", "--norm-type", "adanorm"]
    scores = parsing.main(argv)
    # chance is below 40; a tag says everything, but no moves build the one tree that crosses
    assert scores["test UAS"] > 70
    printed = capsys.readouterr().out
    assert "60 of 61 trees are projective" in printed
    assert f"adanorm, seed 1: dev UAS {scores['dev UAS']:.2f}, test UAS" in printed
    assert parsing.main([*argv[:2], "--epochs", "1"]) == parsing.main([*argv[:2], "--epochs", "1"])


def test_the_epoch_with_the_best_dev_score_counts(folder, monkeypatch):
    # dev; where it is the best so far test follows, without and with punctuation
    scores = iter([50, 1, 2, 70, 3, 4, 60])
    monkeypatch.setattr(parsing, "uas", lambda *args: next(scores))
    best = parsing.main(["--data", str(folder), "--epochs", "3"])
    assert list(best.values()) == [70, 3, 4]


def test_the_moves_build_the_tree(tmp_path):
    for seed in range(20):
        heads = random_tree(random.Random(seed), 1, 9, 0)
        (tmp_path / "one.conllu").write_text(conllu(heads))
        (tree,) = read_conllu(tmp_path / "one.conllu")
        state = State(len(heads))
        for move in oracle(tree):
            assert state.allows(move[0])
            state.apply(move)
        assert state.done
        assert [state.heads[word] for word in range(1, 10)] == heads == tree.heads[1:]
        assert state.labels == dict(enumerate(tree.labels[1:], 1))


def test_no_moves_build_a_tree_with_crossing_arcs(tmp_path):
    (tmp_path / "two.conllu").write_text(conllu(PROJECTIVE) + conllu(CROSSING))
    projective, crossing = read_conllu(tmp_path / "two.conllu")
    assert oracle(crossing) is None
    assert [kind for kind, _ in oracle(projective)] == [
        *("shift", "shift", "left", "shift", "shift", "shift", "left", "left", "right", "right")
    ]


@pytest.mark.parametrize(("flags", "scale"), [([], 1.0), (["--norm-scale", "0.3"], 0.3)])
def test_adanorm_has_the_c_of_the_paper(folder, monkeypatch, flags, scale):
    built = []

    def build(*args, **options):
        built.append(norm := build_norm(*args, **options))
        return norm

    monkeypatch.setattr(parsing, "build_norm", build)
    parsing.main(["--data", str(folder), "--epochs", "1", "--norm-type", "adanorm", *flags])
    assert [norm.scale for norm in built] == [scale]


def test_the_features_of_a_state():
    # on the stack the root, 4 and 9, each with two children on both sides, of which 2 and 10 have
    # children of their own; 12 to 13 are in the buffer
    children = {4: [2, 3, 5, 6], 2: [1], 9: [7, 8, 10, 11], 11: [12]}
    state = State(14, [0, 4, 9], 13, {}, {}, children)
    assert state.features() == [
        *(9, 4, 0, 13, 14, NOTHING),
        *(7, 11, 8, 10, NOTHING, 12),
        *(2, 6, 3, 5, 1, NOTHING),
    ]


def test_words_of_several_tokens_and_empty_nodes_are_left_out(tmp_path):
    head, first, *others = conllu([2, 0]).splitlines()
    joined, empty = "1-2\t" + "\t".join("_" * 9), "1.1\t" + "\t".join("_" * 9)
    (tmp_path / "a.conllu").write_text("\n".join([head, joined, first, empty, *others]) + "\n\n")
    (tree,) = read_conllu(tmp_path / "a.conllu")
    assert tree.heads[1:] == [2, 0]


def test_a_byte_order_mark_is_no_row(tmp_path):
    (tmp_path / "a.conllu").write_text("# a comment\n" + conllu([2, 0]), encoding="utf-8-sig")
    (tree,) = read_conllu(tmp_path / "a.conllu")
    assert tree.heads[1:] == [2, 0]


def test_punctuation_counts_only_where_it_is_asked_for(tmp_path):
    (tmp_path / "a.conllu").write_text(conllu([2, 0, 2], tags=["A", "B", "PUNCT"]))
    trees = read_conllu(tmp_path / "a.conllu")
    assert uas([{1: 2, 2: 0, 3: 1}], trees, punctuation=False) == 100
    assert uas([{1: 0, 2: 0, 3: 2}], trees, punctuation=False) == 50
    assert uas([{1: 0, 2: 0, 3: 2}], trees, punctuation=True) == pytest.approx(100 * 2 / 3)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (conllu([0, 3, 4, 2]), r"sentence 2: the heads form no tree: \[2, 3, 4\] leads to 2"),
        (conllu([7, 0]), r"no tree: \[1\] leads to 7"),
        (conllu([2, 0, 2]).replace("\n3\t", "\n4\t"), "sentence 2: the words are not numbered"),
    ],
)
def test_what_is_no_tree(tmp_path, text, message):
    (tmp_path / "a.conllu").write_text(conllu([2, 0, 2]) + text)
    with pytest.raises(ValueError, match=message):
        read_conllu(tmp_path / "a.conllu")
