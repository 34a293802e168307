"""The toy corpus: pinned bytes, and a translator written the other way round, by parsing."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys

import pytest

import toy

SIZES = {"train": 8000, "valid": 500, "test": 500}
SHA256 = "e00990010afbcf1df86c738d82dae3a58a7c9d371c9d7f7839a38aa08b6a5641"


@pytest.fixture(scope="module")
def files():
    return toy.generate(1, SIZES)


def pairs(files, split):
    return list(zip(files[f"{split}.en"], files[f"{split}.xx"]))


def test_bytes_are_pinned(files):
    # A change here changes every result on the toy corpus: make it knowingly.
    text = "".join(f"{en}\t{xx}\n" for split in SIZES for en, xx in pairs(files, split))
    assert hashlib.sha256(text.encode()).hexdigest() == SHA256
    assert toy.generate(2, {"train": 1})["train.en"] != files["train.en"][:1]


def test_splits_are_disjoint_and_sentences_5_to_20_tokens(files):
    sources = [line for split in SIZES for line in files[f"{split}.en"]]
    assert len(sources) == len(set(sources)) == 9000
    lengths = [len(line.split()) for lines in files.values() for line in lines]
    assert (min(lengths), max(lengths)) == (5, 20)


def test_test_words_are_all_in_train_on_the_source_side(files):
    train = {word for line in files["train.en"] for word in line.split()}
    assert {word for line in files["test.en"] for word in line.split()} <= train
    assert 150 < len(train) < 300


# ---- an independent translator ----------------------------------------------------------------

NOUNS = {}
for _noun in toy.BEINGS + toy.THINGS + toy.PLACES:
    NOUNS[_noun.singular] = (_noun, False)
    NOUNS[_noun.plural] = (_noun, True)
DETERMINERS = {d.singular: d.stem for d in toy.DETERMINERS}
DETERMINERS.update({d.plural: d.stem for d in toy.DETERMINERS}, an="n")
VERBS = {}
for _verb in toy.TRANSITIVE + toy.INTRANSITIVE + toy.DITRANSITIVE:
    VERBS.update({_verb.base: (_verb, "ar"), _verb.third: (_verb, "ar"), _verb.past: (_verb, "ir")})
ADJECTIVES, PREPOSITIONS, MANNERS = map(dict, (toy.ADJECTIVES, toy.PREPOSITIONS, toy.MANNERS))
TIMES = {english: velan for rows in toy.TIMES.values() for english, velan in rows}


class Translator:
    """Reads an English sentence from left to right; knows nothing of how it was drawn."""

    def __init__(self, sentence):
        self.rest = sentence.split()

    def take(self, *allowed):
        return self.rest.pop(0) if self.rest[0] in allowed else None

    def noun_phrase(self, case):
        determiner, adjectives = DETERMINERS[self.rest.pop(0)], []
        while self.rest[0] in ADJECTIVES:
            adjectives.insert(0, ADJECTIVES[self.rest.pop(0)])
        noun, plural = NOUNS[self.rest.pop(0)]
        ending = noun.gender + "i" * plural
        phrase = [determiner + ending + case, noun.stem + ending + case]
        return self.before(plural) + phrase + [stem + ending for stem in adjectives], plural

    def before(self, plural):
        preposition = self.take(*PREPOSITIONS)
        if preposition:
            return [*self.noun_phrase("")[0], PREPOSITIONS[preposition]]
        if not self.take("which"):
            return []
        if self.rest[0] in DETERMINERS:
            other, plural = self.noun_phrase("")
            return [*other, *self.verb(plural), "ke"]
        verb = self.verb(plural)
        return [*self.noun_phrase("n")[0], *verb, "ke"]

    def verb(self, plural):
        auxiliary = self.take("do", "does", "did", "will")
        negation = ["ne"] if self.take("not") else []
        verb, tense = VERBS[self.rest.pop(0)]
        tense = {"did": "ir", "will": "ur"}.get(auxiliary, tense)
        return [verb.stem + tense + "en" * plural, *negation]

    def translate(self):
        time = self.take(*TIMES)
        subject, plural = self.noun_phrase("")
        verb, middle = self.verb(plural), []
        if self.rest[0] in DETERMINERS:
            middle = self.noun_phrase("n")[0]
        if self.take("to"):
            middle = [*self.noun_phrase("")[0], "ri", *middle]
        manner = self.take(*MANNERS)
        time = time or self.take(*TIMES)
        assert self.rest == ["."]
        result = [TIMES[time]] if time else []
        result += [*subject, *middle, *([MANNERS[manner]] if manner else []), *verb, "."]
        return " ".join(result)


def test_order_and_agreement_by_hand():
    english = "the old cat did not see some dogs ."
    assert Translator(english).translate() == "ta mirka vesa noin kelodoin palir ne ."


def test_every_sentence_has_the_one_translation_that_the_grammar_says(files):
    for english, velan in pairs(files, "train") + pairs(files, "test"):
        assert Translator(english).translate() == velan


def test_sacrebleu_leaves_the_words_alone(files):
    sacrebleu = pytest.importorskip("sacrebleu")
    raw = [toy.detokenize(line) for line in files["test.xx"]]
    assert raw[0].endswith("r.") and " ." not in raw[0]
    assert sacrebleu.corpus_bleu(raw, [files["test.xx"]], force=True).score == pytest.approx(100)


def test_the_command(tmp_path, capsys):
    out = tmp_path / "toy"
    command = ["--out", str(out), "--train", "300", "--valid", "20", "--test", "20"]
    command += ["--workers", "1"]
    toy.main(command)
    assert capsys.readouterr().err.splitlines()[-1] == f"done: binarized in {out / 'bin'}"
    assert sorted(path.name for path in out.iterdir()) == ["bin", "manifest.json", "raw", "tok"]
    manifest = json.loads((out / "manifest.json").read_text())
    assert (manifest["source"], manifest["target"]) == ("en", "xx")
    assert manifest["counts"]["tok"]["train.xx"]["lines"] == 300
    assert manifest["counts"]["raw"]["test.xx"]["lines"] == 20
    again = [sys.executable, toy.__file__, *command, "--seed", "2"]
    refused = subprocess.run(again, capture_output=True, text=True, check=False)
    assert refused.returncode == 1
    assert refused.stderr.startswith("error: ") and refused.stderr.count("\n") == 1
    assert json.loads((out / "manifest.json").read_text()) == manifest
    english, velan = (
        (out / "bin" / f"dict.{language}.txt").read_bytes() for language in ("en", "xx")
    )
    assert english == velan and b"kelodoi " in english and b"dogs " in english
