"""Corpora of sentence pairs: tiny made-up ones in the original layout, and the real ones."""

from __future__ import annotations

import gzip
import hashlib
import json
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

import iwslt14
import iwslt15
import multi30k
import news_commentary
import wmt14
from norm_lab.results.table import read_results
from norm_plugin.io.command_line import CommandError
from prep import stages
from prep.files import SPLITS, file_digest, read_raw, write_lines
from prep.pairs import read_side
from prep.text import apply_rules

ROOT = Path(__file__).resolve().parents[2]


def run(corpus, *argv):
    corpus.run(list(map(str, argv)))


def listing(folder):
    return sorted(path.name for path in folder.iterdir())


# ---- Multi30k: plain files ----------------------------------------------------------------------

LINES = {"train": 40, "valid": 8, "test": 8}
TINY30K = replace(multi30k.CORPUS, lines=LINES)


def caption(split, language, number):
    if language == "en":
        return f"A man's {split} No. {number} waits – near the U.S.A."
    return f"Ein Mann {split} Nr. {number} wartet „hier“ im Schnee."


@pytest.fixture
def raw(tmp_path):
    """A folder in the layout of the real one."""
    folder = tmp_path / "raw"
    folder.mkdir()
    for split, stem in multi30k.STEMS.items():
        for language in multi30k.CORPUS.languages:
            text = "".join(f"{caption(split, language, n)}\n" for n in range(LINES[split]))
            (folder / f"{stem}.{language}.gz").write_bytes(gzip.compress(text.encode(), mtime=0))
    return folder


def prepare_all(raw, out, *more):
    run(TINY30K, "--raw", raw, "--out", out, "--merges", 50, "--workers", 1, *more)


def test_from_raw_to_bin(raw, tmp_path, lines, capsys):
    out = tmp_path / "out"
    prepare_all(raw, out)
    assert listing(out) == ["bin", "bpe", "manifest.json", "raw", "tok"]
    assert listing(out / "raw") == ["test.de", "test.en", "valid.de", "valid.en"]
    assert len(listing(out / "bin")) == 15  # dictionaries, two files a text, the record
    assert lines(out, "raw/test.de")[7] == caption("test", "de", 7)
    assert lines(out, "tok/valid.en")[3] == "a man &apos;s valid no. 3 waits - near the u.s.a ."
    for name in ("train.en", "test.de"):
        segmented = (out / "bpe" / name).read_text()
        assert "@@ " in segmented
        assert segmented.replace("@@ ", "") == (out / "tok" / name).read_text()
    assert len(lines(out, "bpe/codes")) == 51
    capsys.readouterr()
    prepare_all(raw, out)
    assert capsys.readouterr().err.count("nothing to do") == 2
    with pytest.raises(CommandError, match=r'"merges": 50.*"merges": 51'):
        prepare_all(raw, out, "--merges", "51")
    # Plain files and more processes give the same data.
    plain = tmp_path / "plain"
    plain.mkdir()
    for path in raw.iterdir():
        (plain / path.stem).write_bytes(gzip.decompress(path.read_bytes()))
    prepare_all(plain, tmp_path / "plain-out", "--workers", "2")
    manifests = [
        json.loads((tmp_path / name / "manifest.json").read_text()) for name in ("out", "plain-out")
    ]
    assert manifests[0]["files"] == manifests[1]["files"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda path: path.unlink(), r"raw lacks val\.de"),
        (
            lambda path: path.write_bytes(gzip.compress(b"eins\nzwei\n")),
            r"valid has fewer lines in de, 2, than in the other language; line N",
        ),
        (
            lambda path: path.write_bytes(gzip.compress(b"eins\n\n")),
            r"valid, line 2, is empty in de",
        ),
    ],
)
def test_what_is_refused_is_named_and_leaves_nothing(raw, tmp_path, change, message):
    change(raw / "val.de.gz")
    with pytest.raises(CommandError, match=message):
        prepare_all(raw, tmp_path / "out")
    assert "out" not in listing(tmp_path)


def test_without_raw_it_downloads_beside_out(raw, tmp_path, monkeypatch, capsys):
    def download(sources, folder):
        assert sources == multi30k.CORPUS.sources
        shutil.copytree(raw, folder, dirs_exist_ok=True)

    monkeypatch.setattr(stages, "download_all", download)
    command = [TINY30K, "--out", tmp_path / "out", "--merges", 50, "--workers", 1]
    run(*command)
    assert listing(tmp_path) == [".out.lock", "out", "out.download", "raw"]
    # The published checksums say that OUT is right, without the files.
    shutil.rmtree(tmp_path / "out.download")
    run(*command)
    assert "nothing to do" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (["--raw", "nowhere"], 1, ", val.en, val.de, test_2016_flickr.en, test_2016_flickr.de\n"),
        (["--src", "de"], 2, "--src and --tgt are both de; pass two languages\n"),
    ],
)
def test_the_command_refuses_in_one_line(tmp_path, arguments, status, message):
    command = [sys.executable, multi30k.__file__, "--out", "out", *arguments]
    result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert result.returncode == status
    assert result.stderr.endswith(message) and "Traceback" not in result.stderr
    assert listing(tmp_path) == []


def test_real_multi30k(real, tmp_path, lines):
    folder, out = real("multi30k"), tmp_path / "out"
    assert {p.name: file_digest(p) for p in folder.glob("*.gz")} == multi30k.DIGESTS
    run(multi30k.CORPUS, "--raw", folder, "--out", out, "--merges", 2000)
    manifest = json.loads((out / "manifest.json").read_text())
    # A change here changes every result on this corpus: make it knowingly.
    tokens = {side: manifest["counts"]["tok"][f"train.{side}"]["tokens"] for side in ("en", "de")}
    assert tokens == {"en": 377535, "de": 360784}
    assert {manifest["checksum"]} == set(
        read_results(ROOT / "studies/multi30k_cpu")["data.checksum"]
    )


# ---- IWSLT14: an archive, with a validation set taken from the training text --------------------

TINY14 = replace(iwslt14.CORPUS, lines={"test": 10})
# Of what Moses' scripts make of the real test set.
DIGESTS14 = {
    "de": "e718c783e33160b7d72af8f733756a466e0d0c016eff8ab624c1b0d1d01cbbdf",
    "en": "4b127beb9050511a3e6209cd837ff36f623a3a423666b32aba6e208b7330cf4c",
}


def talk(language):
    """train.tags: three lines too long or too unequal, and 100 that stay."""
    lines = ["<url>http://talks</url>", "<keywords>a, b</keywords>", "<talkid>1</talkid>"]
    lines += [f"<title>Ein Titel {language}</title>", "<description>Über A &amp; B</description>"]
    lines += ["", "one two three four" if language == "en" else "eins", "wort " * 176]
    return lines + [f" Satz “{n}” {language}, it’s Nr. {n}." for n in range(98)]


def xml(name, language):
    return [
        '<?xml version="1.0" encoding="UTF-8"?>',
        f"<title>{name}</title>",
        f'<seg id="1"> {name} {language}: It’s “A”. </seg>',
        '  <seg id="22">Zwei &amp; drei</seg>',
    ]


@pytest.fixture
def archive(tmp_path, pack):
    texts = {}
    for language in ("de", "en"):
        texts[f"de-en/train.tags.de-en.{language}"] = talk(language)
        for name in iwslt14.TEST_SETS:
            texts[f"de-en/IWSLT14.{name}.de-en.{language}.xml"] = xml(name, language)
    contents = {name: "".join(f"{line}\n" for line in text) for name, text in texts.items()}
    return pack(tmp_path / "raw14" / "de-en.tgz", contents).parent


def test_iwslt14(archive, tmp_path, prepare, lines):
    out, merges = tmp_path / "out", ("--merges", 30)
    manifest = prepare(TINY14, archive, out, *merges)
    assert (manifest["source"], manifest["target"]) == ("de", "en")
    parts = ["bin", "bpe", "manifest.json", "raw", "tok"]  # and nothing that was unpacked
    assert listing(out) == parts
    # 100 clean pairs: the 23rd, 46th, 69th and 92nd are for validation.
    counts = {name: c["lines"] for name, c in manifest["counts"]["tok"].items()}
    sizes = {"train": 96, "valid": 4, "test": 10}
    assert counts == {f"{s}.{x}": n for s, n in sizes.items() for x in ("de", "en")}
    # of the raw text, with the lines that are left out
    tokens = sum(len(line.split()) for line in talk("de")[3:])
    assert manifest["counts"]["raw"]["train.de"] == {"lines": 103, "tokens": tokens}
    assert lines(out, "tok/train.de")[:3] == [
        "ein titel de",
        "über a &amp; amp ; b",
        "satz “ 0 ” de , it ’ s nr. 0 .",
    ]
    assert lines(out, "raw/valid.en")[0] == " Satz “20” en, it’s Nr. 20."
    assert lines(out, "tok/valid.en")[0] == "satz “ 20 ” en , it ’ s nr. 20 ."
    # The test set, in the order of its parts; there alone ’ becomes '.
    assert lines(out, "raw/test.en")[:2] == ["TED.dev2010 en: It’s “A”.", "Zwei &amp; drei"]
    assert lines(out, "tok/test.en")[2] == "tedx.dev2012 en : it &apos;s “ a ” ."
    assert lines(out, "bin/dict.de.txt") == lines(out, "bin/dict.en.txt")
    other = prepare(TINY14, archive, tmp_path / "other", *merges, "--src", "en", "--tgt", "de")
    assert other["counts"] == manifest["counts"]
    with pytest.raises(CommandError, match=r"test has 10 lines, but the published one has 6,750"):
        prepare(iwslt14.CORPUS, archive, tmp_path / "more", *merges)


def test_iwslt14_with_sentencepiece(archive, tmp_path, prepare, lines):
    out = tmp_path / "out"
    manifest = prepare(TINY14, archive, out, "--subword", "sentencepiece", "--merges", 60)
    assert manifest["settings"] == {
        **{"merges": 60, "lowercase": True},
        **{"subword": "sentencepiece", "tokenizer": "none"},
    }
    assert lines(out, "tok/test.en")[0] == "ted.dev2010 en: it's “a”."
    pieces = lines(out, "bpe/test.en")[0]
    assert pieces.replace(" ", "").replace("▁", " ") == " ted.dev2010 en: it's “a”."


def test_real_iwslt14(tmp_path, prepare, real):
    prepare(iwslt14.CORPUS, real("iwslt14"), tmp_path / "out", "--merges", 30)
    digests = {x: file_digest(tmp_path / "out" / "tok" / f"test.{x}") for x in ("de", "en")}
    assert digests == DIGESTS14


# ---- IWSLT15: text that comes tokenized, a vocabulary for each language ------------------------

TINY15 = replace(iwslt15.CORPUS, lines={"valid": 4, "test": 5})


@pytest.fixture
def stanford(tmp_path):
    folder = tmp_path / "raw15"
    for stem, count in {"train": 60, "tst2012": 4, "tst2013": 5}.items():
        for language, text in (("en", "He &apos;s in"), ("vi", "Tôi &quot; ở &quot;")):
            write_lines(folder / f"{stem}.{language}", [f"{text} {n} ." for n in range(count)])
    return folder


def test_iwslt15(stanford, tmp_path, prepare, lines):
    out = tmp_path / "out"
    prepare(TINY15, stanford, out, "--merges", 30)
    for folder in ("raw", "tok"):
        assert lines(out, f"{folder}/test.en")[3] == "He &apos;s in 3 ."
    for language in ("en", "vi"):
        assert len(lines(out, f"bpe/codes.{language}")) > 5
    assert lines(out, "bin/dict.en.txt") != lines(out, "bin/dict.vi.txt")
    # Without --merges each side goes to the paper's number of types, as far as it can.
    own = prepare(TINY15, stanford, tmp_path / "own")
    assert own["settings"]["merges"] == {"en": 7669, "vi": 6669}
    assert own["scoring"] == ["tokenized_reference"]


def test_iwslt15_with_sentencepiece_has_no_escapes(stanford, tmp_path, prepare, lines):
    out = tmp_path / "out"
    prepare(TINY15, stanford, out, "--merges", 30, "--subword", "sentencepiece")
    assert lines(out, "tok/test.vi")[0] == 'Tôi " ở " 0 .'
    assert lines(out, "raw/test.vi")[0] == "Tôi &quot; ở &quot; 0 ."
    assert (out / "bpe" / "sentencepiece.vi.model").is_file()


def test_a_training_pair_with_an_empty_side_is_left_out(stanford, tmp_path, capsys, prepare, lines):
    english, vietnamese = (lines(stanford, f"train.{language}") for language in ("en", "vi"))
    write_lines(stanford / "train.vi", [*vietnamese[:7], " ", *vietnamese[8:]])
    prepare(TINY15, stanford, tmp_path / "out", "--merges", 30)
    assert "train: 60 pairs, 1 omitted" in capsys.readouterr().err
    assert lines(tmp_path / "out", "tok/train.en") == english[:7] + english[8:]
    assert lines(tmp_path / "out", "tok/train.vi") == vietnamese[:7] + vietnamese[8:]
    write_lines(stanford / "train.vi", [""] * 60)
    with pytest.raises(CommandError, match=r"train has 60 pairs, but none to keep"):
        prepare(TINY15, stanford, tmp_path / "more", "--merges", 30)


# ---- WMT14: several archives, pairs left out after BPE -----------------------------------------

# Of what Moses' tokenizer.perl -a makes of the real newstest2014.
DIGESTS_WMT14 = {
    "en": "6da6b7a12160ba7eddb6be87054fd6fcda983960074374d860e937a4aba176fb",
    "de": "26037be77fd7c0177bbe1c1a3d289d4c61d18ad56217dc30c8afd683d4970e0f",
}


def stand_in(split, name, language):
    if split == "test":
        return [
            "<doc>",
            f'<seg id="1">It’s “A” – B-{language}.</seg>',
            '<seg id="2"> Zwei und drei. </seg>',
            "</doc>",
        ]
    stem = re.sub("[^a-z].*", "", name.rpartition("/")[2])
    text = [f"The “well-known” {stem}\u200b No. {n}—{n}." for n in range(20)]
    # A line that is no pair at all, and one too unequal.
    unequal = "a b c d e f g h" if language == "en" else "a"
    return text if split == "valid" else ["", unequal, *text]


@pytest.fixture
def wmt(tmp_path, pack):
    contents = {}
    for split in SPLITS:
        for language in wmt14.LANGUAGES:
            for name, archive in wmt14.files(split, language):
                text = "".join(f"{line}\n" for line in stand_in(split, name, language))
                contents.setdefault(archive, {})[name] = text
    for archive, files in contents.items():
        pack(tmp_path / "wmt" / archive, files)
    return tmp_path / "wmt"


def test_wmt14(wmt, tmp_path, prepare, lines):
    corpus, out = replace(wmt14.CORPUS, lines={"test": 2}), tmp_path / "out"
    manifest = prepare(corpus, wmt, out, "--merges", 40)
    assert manifest["scoring"] == ["compound_split"]
    counts = manifest["counts"]
    assert counts["raw"]["train.en"]["lines"] == 66
    # Of three times 22, the empty pairs go first and the unequal ones after BPE.
    assert [counts[step]["train.de"]["lines"] for step in ("tok", "bpe")] == [63, 60]
    assert [counts["bpe"][f"{s}.en"]["lines"] for s in ("valid", "test")] == [20, 2]
    tokens = lines(out, "tok/train.en")
    assert tokens[1] == "The &quot; well @-@ known &quot; europarl No. 0 - 0 ."
    assert [line.split()[6] for line in tokens[1::21]] == ["europarl", "commoncrawl", "news"]
    assert lines(out, "tok/test.en")[0] == "It &apos;s “ A ” – B @-@ en ."
    assert lines(out, "raw/test.de") == ["It’s “A” – B-de.", "Zwei und drei."]
    (wmt / "dev.tgz").write_bytes((wmt / "test-full.tgz").read_bytes())
    with pytest.raises(CommandError, match=r"dev\.tgz lacks dev/newstest2013\.de, dev/newstest2"):
        prepare(corpus, wmt, tmp_path / "more")
    (wmt / "dev.tgz").unlink()
    with pytest.raises(CommandError, match=r"lacks newstest2013\.en, .*; dev\.tgz can be used"):
        prepare(corpus, wmt, tmp_path / "more")


def test_news_commentary_is_prepared_as_wmt14(wmt, tmp_path, prepare, pack, lines):
    texts = {
        "en": "The “well-known” news.\n\nA line.\n",
        "de": "Die „Nachricht“.\nx\nEine Zeile.\n",
    }
    stem = "training/news-commentary-v12.de-en"
    pack(wmt / news_commentary.NEWS, {f"{stem}.{x}": text for x, text in texts.items()})
    counted = replace(news_commentary.CORPUS, lines=news_commentary.CORPUS.lines | {"train": 3})
    with pytest.raises(CommandError, match="test has 2 lines, but the published one has 3,003"):
        prepare(counted, wmt, tmp_path / "wrong", "--merges", 10)
    out = tmp_path / "out"
    manifest = prepare(replace(counted, lines={"train": 3}), wmt, out, "--merges", 10)
    assert manifest["scoring"] == ["compound_split"]  # as in WMT14, which has the same test set
    # the pair without a source is left out
    assert lines(out, "tok/train.en") == ["The &quot; well @-@ known &quot; news .", "A line ."]
    assert lines(out, "tok/test.en")[0] == "It &apos;s “ A ” – B @-@ en ."
    assert set(manifest["inputs"]) == {news_commentary.NEWS, wmt14.DEV, wmt14.TEST}


def test_real_newstest2014(tmp_path, real):
    for language, digest in DIGESTS_WMT14.items():
        paths = read_raw(real("wmt14"), wmt14.files("test", language), tmp_path)
        text = apply_rules(
            list(read_side(wmt14.CORPUS, paths, "test", language)), language, wmt14.TEST_RULES
        )
        assert len(text) == 3003
        assert hashlib.sha256("".join(f"{x}\n" for x in text).encode()).hexdigest() == digest
