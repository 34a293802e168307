from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from forked import run_forked

from norm_lab.metrics.bleu import (
    TextForm,
    detokenize,
    exact_bleu,
    fairseq_bleu,
    main,
    read_generate_log,
    score_log,
    split_compounds,
)
from norm_plugin.io.command_line import CommandError

# What fairseq-generate --remove-bpe printed for a small model and eight sentences, one of them
# with words that the dictionary lacks; out of order, as always.
DATA = Path(__file__).parents[1] / "data"
LOG = DATA / "generate.txt"
REFERENCE = DATA / "reference.de"
LOWER = TextForm("de", lowercase=True)


def edited(tmp_path: Path, edit) -> Path:
    path = tmp_path / "generate.log"
    path.write_text(edit(LOG.read_text(encoding="utf-8")), encoding="utf-8")
    return path


def without(text: str, start: str) -> str:
    return "".join(line for line in text.splitlines(True) if not line.startswith(start))


def test_sentences_are_sorted() -> None:
    log = read_generate_log(LOG)
    assert (log.split, log.beam, len(log.hypotheses)) == ("test", 5, 8)
    assert log.references[3] == "ein hund schläft unter dem großen tisch ."
    assert log.hypotheses[1] == "zwei mäner sehen den roten zug nicht ."


def test_tokenized_bleu_is_what_fairseq_printed() -> None:
    score = score_log(LOG, REFERENCE, LOWER)["tokenized"]
    last = LOG.read_text(encoding="utf-8").splitlines()[-1]
    assert last.endswith(
        f"BLEU4 = {score['score']:.2f}, {'/'.join(f'{p:.1f}' for p in score['precisions'])} "
        f"(BP={score['brevity_penalty']:.3f}, ratio={score['length_ratio']:.3f}, "
        f"syslen={score['system_length']}, reflen={score['reference_length']})"
    )
    assert score["score"] == 76.55
    assert "after BPE removal" in score["label"]
    assert "lower-cased" in score["label"]


# --- fairseq's score depends on the numbers of the words


def numbered_words(folder: Path, count: int) -> Path:
    """A dictionary in which wN is the word of number N; its first four are fairseq's own."""
    path = folder / "dict.de.txt"
    path.write_text("".join(f"w{number} 1\n" for number in range(4, count)))
    return path


def generated(path: Path, dictionary: Path, sentences) -> Path:
    """The log of (number, reference, translation), scored as fairseq-generate does."""
    from fairseq.data import Dictionary
    from fairseq.scoring.bleu import BleuConfig, Scorer

    vocabulary, scorer, lines = Dictionary.load(str(dictionary)), Scorer(BleuConfig()), []
    for number, reference, translation in sentences:
        sides = [
            vocabulary.encode_line(text, add_if_not_exist=True) for text in (reference, translation)
        ]
        scorer.add(*sides)
        lines += [f"T-{number}\t{reference}", f"D-{number}\t-0.5\t{translation}"]
    lines.append(f"Generate test with beam=5: {scorer.result_string()}")
    path.write_text("".join(f"{line}\n" for line in lines))
    return path


RIGHT = "w5 w6 w7 w8 w9 w10"
# fairseq's hash takes the pairs of numbers (126, 250) and (128, 4) for equal.
COLLISIONS = {
    "known words": (251, [(0, "w126 w250", "w128 w4"), (1, RIGHT, RIGHT)]),
    # The word "new" is number 250 because it comes first in the log, though not in the corpus.
    "new words": (250, [(1, "w126 new", "w128 w4"), (0, f"later {RIGHT}", f"later {RIGHT}")]),
}


@pytest.mark.parametrize("case", COLLISIONS)
def test_the_score_is_that_of_the_runs_own_dictionary(tmp_path, case) -> None:
    count, sentences = COLLISIONS[case]
    dictionary = numbered_words(tmp_path, count)
    path = generated(tmp_path / "log", dictionary, sentences)
    reference = tmp_path / "reference"
    reference.write_text("".join(f"{text}\n" for _, text, _ in sorted(sentences)))
    log = read_generate_log(path)
    assert fairseq_bleu(log.references, log.hypotheses) != log.printed  # numbered anew
    scores = score_log(path, reference, TextForm("de"), dictionary)
    assert "note" not in scores["tokenized"]
    right = len(log.hypotheses[-1 if case == "known words" else 0].split())
    # of all words `right` are right and two wrong, and so of all pairs right - 1 and one
    assert scores["tokenized"]["precisions"][1] == 100.0  # the wrong pair counts as right
    assert scores["exact"]["precisions"][:2] == [
        round(100 * right / (right + 2), 4),
        round(100 * (right - 1) / right, 4),
    ]


def test_the_exact_score_against_its_definition() -> None:
    # Precisions 5/6, 4/5, 3/4, 2/3, of product 1/3; as long as its reference: 100 / 3 ** 0.25.
    score = exact_bleu(["a b c d e <<unk>>"], ["a b c d e <unk>"])
    assert score["score"] == round(100 / 3**0.25, 4)
    assert exact_bleu(["a b c d e <unk>"], ["a b c d e <unk>"])["score"] == score["score"]
    assert "tok:none|smooth:none" in score["signature"]
    assert exact_bleu(["a b ."], ["a b ."])["score"] == 0  # no 4-gram, and no smoothing


def test_another_score_than_the_printed_one_is_a_note(tmp_path) -> None:
    dictionary = numbered_words(tmp_path, 5)
    path = edited(tmp_path, lambda text: text.replace("= 76.55", "= 76.56"))
    score = score_log(path, REFERENCE, LOWER, dictionary)["tokenized"]
    assert score["score"] == 76.55
    assert "printed 'BLEU4 = 76.56, " in score["note"]
    assert "give 'BLEU4 = 76.55, " in score["note"]
    # without a dictionary there is nothing to compare it with
    score = score_log(path, REFERENCE, LOWER)["tokenized"]
    assert (score["score"], "note" in score) == (76.56, False)


def test_unknown_words_match_nothing() -> None:
    # A reference's <unk> is printed as <<unk>> in the log; in the dictionary it matches nothing.
    # Precisions 5/6, 4/5, 3/4, 2/3: their product is 1/3, and 100 / 3 ** 0.25 = 75.98.
    for reference in ("a b c d e <<unk>>", "a b c d e <unk>"):
        assert fairseq_bleu([reference], ["a b c d e <unk>"]).startswith("BLEU4 = 75.98,")


@pytest.mark.parametrize("lowercase", [True, False])
@pytest.mark.parametrize(
    ("kind", "flags", "lower"),
    [("sacrebleu", [], "-lc"), ("chrf", ["-m", "chrf"], "--chrf-lowercase")],
)
def test_a_score_of_sacrebleu_equals_that_of_its_command(
    tmp_path, kind, flags, lower, lowercase
) -> None:
    hypotheses = tmp_path / "hypotheses"
    lines = detokenize(read_generate_log(LOG).hypotheses, "de")
    hypotheses.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    command = [sys.executable, "-m", "sacrebleu", str(REFERENCE), "-i", str(hypotheses), "-w", "4"]
    command += [*flags, *([lower] if lowercase else [])]
    printed = json.loads(subprocess.run(command, capture_output=True, check=True).stdout)
    score = score_log(LOG, REFERENCE, TextForm("de", lowercase))[kind]
    assert score["score"] == printed["score"]
    assert score["signature"] == printed["signature"]


def test_detokenized_text_has_no_escapes() -> None:
    tokens = ["er sagte : &quot; kalt ! &quot;", "brot &amp; milch ."]
    assert detokenize(tokens, "de") == ['er sagte: "kalt!"', "brot & milch."]


# --- compounds split, for WMT14

COMPOUNDS = {
    "a well-known man": "a well ##AT##-##AT## known man",
    "a-b-c": "a ##AT##-##AT## b-c",
    "ab-cd-ef": "ab ##AT##-##AT## cd ##AT##-##AT## ef",
    "10 - 12 -x y- --": "10 - 12 -x y- --",
    "a---b": "a ##AT##-##AT## --b",
    "ü-ä no\u00a0-\u00a0break": "ü ##AT##-##AT## ä no\u00a0 ##AT##-##AT## \u00a0break",
}


@pytest.mark.parametrize("line", COMPOUNDS)
def test_compounds_are_split(line) -> None:
    assert split_compounds(line) == COMPOUNDS[line]


def with_hyphens(text: str) -> str:
    """The log after half of its translations and all references hold compounds; no score yet."""
    text = re.sub(r"^(T-\d+\t\w+) ", r"\1-", text, flags=re.MULTILINE)
    return re.sub(r"^(D-[0246]\t\S+\t\w+) ", r"\1-", text, flags=re.MULTILINE)


def test_compound_split_bleu_equals_fairseq_score(tmp_path) -> None:
    path = edited(tmp_path, with_hyphens)
    log = read_generate_log(path)
    printed = fairseq_bleu(log.references, log.hypotheses)
    path.write_text(re.sub(r"BLEU4 = .*", printed, path.read_text(encoding="utf-8")))
    scores = score_log(path, REFERENCE, TextForm("de", compound_split=True))
    files = []
    for name, lines in (("ref", log.references), ("sys", log.hypotheses)):
        files += [f"--{name}", str(tmp_path / name)]
        text = "".join(f"{split_compounds(line)}\n" for line in lines)
        (tmp_path / name).write_text(text, encoding="utf-8")
    result = run_forked("fairseq_cli.score", *files)
    assert result.returncode == 0, result.stderr
    score = scores["compound_split"]["score"]
    assert f"BLEU4 = {score:.2f}, " in result.stdout.splitlines()[-1]
    assert score != scores["tokenized"]["score"]
    assert "compounds split" in scores["compound_split"]["label"]


def test_compounds_are_split_only_where_asked() -> None:
    assert list(score_log(LOG, REFERENCE, LOWER)) == ["tokenized", "exact", "sacrebleu", "chrf"]


# --- other forms of text


def test_a_tokenized_reference_is_detokenized_too(tmp_path) -> None:
    # Stanford's files of IWSLT15: tokenized, with escapes.
    log = read_generate_log(LOG)
    reference = tmp_path / "reference"
    lines = [line.replace("nicht .", "&quot; nicht &quot; .") for line in log.hypotheses]
    reference.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    same = [line for line in lines if "&quot;" not in line]
    assert 0 < len(same) < len(lines)
    form = TextForm("de", tokenized_reference=True)
    score = score_log(LOG, reference, form)["sacrebleu"]
    assert "the reference detokenized too" in score["label"]
    plain = tmp_path / "plain"
    plain.write_text("".join(f"{line}\n" for line in detokenize(lines, "de")), encoding="utf-8")
    assert "&quot;" not in plain.read_text(encoding="utf-8")
    assert score["score"] == score_log(LOG, plain, TextForm("de"))["sacrebleu"]["score"]


def test_translations_of_sentencepiece_are_plain_text_already(tmp_path) -> None:
    def plain(text: str) -> str:
        return re.sub(r"^(D-0\t\S+)\t.*", r"\1\tEr sagt : so", text, flags=re.MULTILINE)

    path = edited(tmp_path, plain)
    log = read_generate_log(path, "sentencepiece")
    printed = fairseq_bleu(log.references, log.hypotheses)
    path.write_text(re.sub(r"BLEU4 = .*", printed, path.read_text(encoding="utf-8")))
    reference = tmp_path / "reference"
    reference.write_text("".join(f"{line}\n" for line in log.hypotheses), encoding="utf-8")
    scores = score_log(path, reference, TextForm("de", subword="sentencepiece"))
    assert scores["sacrebleu"]["score"] == 100  # a detokenizer would have moved the colon
    assert "not tokenized" in scores["tokenized"]["label"]


def test_segments_of_sentencepiece_are_refused(tmp_path) -> None:
    path = edited(tmp_path, lambda text: text.replace("zug nicht", "\u2581zu g nicht"))
    with pytest.raises(CommandError, match="with --remove-bpe=sentencepiece"):
        read_generate_log(path, "sentencepiece")


def test_only_the_best_of_several_translations_counts(tmp_path) -> None:
    path = edited(tmp_path, lambda text: re.sub(r"(D-0\t.*\n)", r"\1D-0\t-9.0\tworse\n", text))
    assert read_generate_log(path).hypotheses == read_generate_log(LOG).hypotheses


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (lambda text: without(text, "Generate"), "truncated"),
        (lambda text: text + text, "twice"),
        (lambda text: text + text.splitlines(True)[-1], "several runs"),
        (lambda text: without(text, "D-3"), "lacks translation D-3;"),
        (lambda text: without(text, "T-3"), "lacks reference T-3;"),
        (lambda text: re.sub(r"\w-[234]\t.*\n", "", text), "lacks reference T-2 and 2 more"),
        (lambda text: without(without(text, "T-"), "D-"), "has no translation"),
        (lambda text: text.replace("zug nicht", "zu@@ g nicht"), "BPE segment 'zu@@'"),
        (
            lambda text: re.sub(r"BLEU4 = .*", "BLEU = 1.0 2/3/4/5", text),
            "not with fairseq's BLEU4",
        ),
        (lambda text: re.sub(r"(D-3\t)\S+", r"\1nan", text), "score of translation D-3 is nan"),
        (lambda text: re.sub(r"(D-3\t)\S+", r"\1-inf", text), "score of translation D-3 is -inf"),
        (lambda text: text.replace("= 76.55", "= 7.6.55"), "not with fairseq's BLEU4"),
    ],
)
def test_a_bad_log_is_refused(tmp_path, edit, message) -> None:
    path = edited(tmp_path, edit)
    with pytest.raises(CommandError) as error:
        score_log(path, REFERENCE, LOWER, numbered_words(tmp_path, 4))
    assert message in str(error.value)
    assert str(path) in str(error.value)
    assert len(str(error.value)) < 600


def test_another_number_of_references(tmp_path) -> None:
    # What fairseq leaves of nine sentences with its --required-batch-size-multiple of 8.
    reference = tmp_path / "raw.de"
    reference.write_text(REFERENCE.read_text(encoding="utf-8") + "Noch einer.\n", encoding="utf-8")
    with pytest.raises(CommandError) as error:
        score_log(LOG, reference, LOWER)
    assert f"{LOG} has 8 translations, but {reference} has 9 lines" in str(error.value)
    assert "--required-batch-size-multiple 1" in str(error.value)


def test_a_line_ends_at_newline_only(tmp_path) -> None:
    # U+2028 and U+0085 inside a sentence are no line ends, as in data-prep.
    reference = tmp_path / "raw.de"
    text = REFERENCE.read_text(encoding="utf-8").replace("Hund schläft", "Hund\u2028schläft\x85")
    reference.write_text(text, encoding="utf-8")
    score_log(LOG, reference, LOWER)


def test_the_command_prints_both(capsys) -> None:
    arguments = ["--generate-log", str(LOG), "--reference", str(REFERENCE), "--target-lang", "de"]
    assert main([*arguments, "--lowercase"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed == score_log(LOG, REFERENCE, LOWER)


def test_a_dictionary_without_words_is_refused(tmp_path) -> None:
    dictionary = numbered_words(tmp_path, 4)  # fairseq's own alone
    with pytest.raises(CommandError, match=f"the dictionary {dictionary} is empty; give the dict"):
        score_log(LOG, REFERENCE, LOWER, dictionary)


def test_a_byte_order_mark_is_no_part_of_the_reference(tmp_path) -> None:
    marked = tmp_path / "reference.de"
    marked.write_bytes(b"\xef\xbb\xbf" + REFERENCE.read_bytes())
    assert score_log(LOG, marked, LOWER) == score_log(LOG, REFERENCE, LOWER)


@pytest.mark.parametrize(("language", "tokenizer"), [("zh", "zh"), ("zh_CN", "zh"), ("ja", "char")])
def test_a_sentence_without_spaces_is_more_than_one_word(language, tokenizer, tmp_path):
    reference, hypothesis = "我们今天去公园散步，天气很好。", "我们今天去公园跑步，天气很好。"
    scores = "BLEU4 = 0.00, 0.0/0.0/0.0/0.0 (BP=1.000, ratio=1.000, syslen=1, reflen=1)"
    log, text = tmp_path / "generate.log", tmp_path / "test.zh"
    log.write_text(
        f"T-0\t{reference}\nD-0\t-0.1\t{hypothesis}\nGenerate test with beam=5: {scores}\n",
        encoding="utf-8",
    )
    text.write_text(f"{reference}\n", encoding="utf-8")
    found = score_log(log, text, TextForm(language, subword="sentencepiece"))["sacrebleu"]
    assert found["score"] > 50 and f"tok:{tokenizer}|" in found["signature"]
