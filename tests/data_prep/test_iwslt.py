"""iwslt14.py and iwslt15.py on tiny stand-ins in the original layout, and on the real test sets."""

from __future__ import annotations

import io
import os
import tarfile
from dataclasses import replace
from pathlib import Path

import pytest

import iwslt14
import iwslt15
from norm_plugin.commands.command_line import CommandError
from prep.files import file_digest, lines_of, write_lines

PAIRS = 100
# Of what Moses' scripts make of the real test set.
DIGESTS14 = {
    "de": "e718c783e33160b7d72af8f733756a466e0d0c016eff8ab624c1b0d1d01cbbdf",
    "en": "4b127beb9050511a3e6209cd837ff36f623a3a423666b32aba6e208b7330cf4c",
}


def read(path):
    return list(lines_of(path))


@pytest.fixture
def run(prepare):
    return lambda corpus, raw, out, *flags: prepare(corpus, raw, out, "--merges", 30, *flags)


# ---- IWSLT14 ------------------------------------------------------------------------------------

TINY14 = replace(iwslt14.CORPUS, lines={"test": 10})


def talk(language):
    """train.tags: two lines too long or too unequal, and PAIRS that stay."""
    lines = ["<url>http://talks</url>", "<keywords>a, b</keywords>", "<talkid>1</talkid>"]
    lines += [f"<title>Ein Titel {language}</title>", "<description>Über A &amp; B</description>"]
    lines += ["", "one two three four" if language == "en" else "eins", "wort " * 176]
    return lines + [f" Satz “{n}” {language}, it’s Nr. {n}." for n in range(PAIRS - 2)]


def xml(name, language):
    return [
        '<?xml version="1.0" encoding="UTF-8"?>',
        f"<title>{name}</title>",
        f'<seg id="1"> {name} {language}: It’s “A”. </seg>',
        '  <seg id="22">Zwei &amp; drei</seg>',
    ]


@pytest.fixture
def archive(tmp_path):
    path = tmp_path / "raw14" / "de-en.tgz"
    path.parent.mkdir()
    with tarfile.open(path, "w:gz") as stream:
        for language in ("de", "en"):
            texts = {f"train.tags.de-en.{language}": talk(language)}
            for name in iwslt14.TEST_SETS:
                texts[f"IWSLT14.{name}.de-en.{language}.xml"] = xml(name, language)
            for name, lines in texts.items():
                content = "".join(f"{line}\n" for line in lines).encode()
                member = tarfile.TarInfo(f"de-en/{name}")
                member.size = len(content)
                stream.addfile(member, io.BytesIO(content))
    return path.parent


def test_iwslt14(archive, tmp_path, run):
    out = tmp_path / "out"
    manifest = run(TINY14, archive, out)
    assert (manifest["source"], manifest["target"]) == ("de", "en")
    parts = ["bin", "bpe", "manifest.json", "raw", "tok"]  # and nothing that was unpacked
    assert sorted(path.name for path in out.iterdir()) == parts
    # 100 clean pairs: the 23rd, 46th, 69th and 92nd are for validation.
    counts = {name: c["lines"] for name, c in manifest["counts"]["tok"].items()}
    sizes = {"train": 96, "valid": 4, "test": 10}
    assert counts == {f"{s}.{x}": n for s, n in sizes.items() for x in ("de", "en")}
    assert manifest["counts"]["raw"]["train.de"]["lines"] == 103
    assert read(out / "tok" / "train.de")[:3] == [
        "ein titel de",
        "über a &amp; amp ; b",
        "satz “ 0 ” de , it ’ s nr. 0 .",
    ]
    assert read(out / "raw" / "valid.en")[0] == " Satz “20” en, it’s Nr. 20."
    assert read(out / "tok" / "valid.en")[0] == "satz “ 20 ” en , it ’ s nr. 20 ."
    # The test set, in the order of its parts; there alone ’ becomes '.
    assert read(out / "raw" / "test.en")[:2] == ["TED.dev2010 en: It’s “A”.", "Zwei &amp; drei"]
    assert read(out / "tok" / "test.en")[2] == "tedx.dev2012 en : it &apos;s “ a ” ."
    assert read(out / "bin" / "dict.de.txt") == read(out / "bin" / "dict.en.txt")
    other = run(TINY14, archive, tmp_path / "other", "--src", "en", "--tgt", "de")
    assert other["counts"] == manifest["counts"]


def test_iwslt14_with_sentencepiece(archive, tmp_path, run):
    out = tmp_path / "out"
    manifest = run(TINY14, archive, out, "--subword", "sentencepiece", "--merges", "60")
    assert manifest["settings"] == {
        **{"merges": 60, "lowercase": True},
        **{"subword": "sentencepiece", "tokenizer": "none"},
    }
    assert read(out / "tok" / "test.en")[0] == "ted.dev2010 en: it's “a”."
    assert (out / "bpe" / "sentencepiece.model").is_file()
    pieces = read(out / "bpe" / "test.en")[0]
    assert pieces.replace(" ", "").replace("▁", " ") == " ted.dev2010 en: it's “a”."


def test_wrong_counts_and_wrong_archives_are_errors(archive, tmp_path, run):
    with pytest.raises(CommandError, match=r"test has 10 lines; 6,750 are expected"):
        run(iwslt14.CORPUS, archive, tmp_path / "out")
    with pytest.raises(CommandError, match=r"raw14/nowhere lacks train.*; de-en\.tgz would do"):
        run(TINY14, archive / "nowhere", tmp_path / "out")
    path = archive / "de-en.tgz"
    path.write_bytes(path.read_bytes()[:-300])
    with pytest.raises(CommandError, match=r"de-en\.tgz is truncated or damaged"):
        run(TINY14, archive, tmp_path / "out")
    assert not (tmp_path / "out").exists()


# ---- IWSLT15 ------------------------------------------------------------------------------------

TINY15 = replace(iwslt15.CORPUS, lines={"valid": 4, "test": 5})


@pytest.fixture
def stanford(tmp_path):
    folder = tmp_path / "raw15"
    lines = {"train": 60, "tst2012": 4, "tst2013": 5}
    for stem, count in lines.items():
        for language, text in (("en", "He &apos;s in"), ("vi", "Tôi &quot; ở &quot;")):
            write_lines(folder / f"{stem}.{language}", [f"{text} {n} ." for n in range(count)])
    return folder


def test_iwslt15(stanford, tmp_path, run, prepare):
    out = tmp_path / "out"
    manifest = run(TINY15, stanford, out)
    assert (manifest["source"], manifest["target"]) == ("en", "vi")
    for folder in ("raw", "tok"):
        assert read(out / folder / "test.en")[3] == "He &apos;s in 3 ."
    for language in ("en", "vi"):
        assert len(read(out / "bpe" / f"codes.{language}")) > 5
    assert read(out / "bin" / "dict.en.txt") != read(out / "bin" / "dict.vi.txt")
    # Without --merges each side goes to the paper's number of types, as far as it can.
    own = prepare(TINY15, stanford, tmp_path / "own")
    assert own["settings"]["merges"] == {"en": 7669, "vi": 6669}
    assert own["scoring"] == ["tokenized_reference"]


def test_iwslt15_with_sentencepiece_has_no_escapes(stanford, tmp_path, run):
    run(TINY15, stanford, tmp_path / "out", "--subword", "sentencepiece")
    assert read(tmp_path / "out" / "tok" / "test.vi")[0] == 'Tôi " ở " 0 .'
    assert read(tmp_path / "out" / "raw" / "test.vi")[0] == "Tôi &quot; ở &quot; 0 ."
    assert (tmp_path / "out" / "bpe" / "sentencepiece.vi.model").is_file()


def test_a_line_without_its_partner(stanford, tmp_path, capsys, run):
    english, vietnamese = stanford / "train.en", stanford / "train.vi"
    lines = read(vietnamese)
    write_lines(vietnamese, lines[:-1])
    with pytest.raises(CommandError, match=r"train has 60 lines in en and 59 in vi; line N"):
        run(TINY15, stanford, tmp_path / "out")
    write_lines(vietnamese, [*lines[:7], " ", *lines[8:]])
    run(TINY15, stanford, tmp_path / "out")
    assert "train: 60 pairs, 1 left out" in capsys.readouterr().err
    kept = [n for n in range(60) if n != 7]
    assert read(tmp_path / "out" / "tok" / "train.en") == [read(english)[n] for n in kept]
    assert read(tmp_path / "out" / "tok" / "train.vi") == [lines[n] for n in kept]
    write_lines(vietnamese, [""] * 60)
    with pytest.raises(CommandError, match=r"train has no pair with text in both, of 60"):
        run(TINY15, stanford, tmp_path / "more")
    write_lines(vietnamese, lines)
    for empty in ("", " "):
        write_lines(stanford / "tst2013.vi", ["một", empty, "ba", "bốn", "năm"])
        with pytest.raises(CommandError, match=r"test, line 2, is empty in vi"):
            run(TINY15, stanford, tmp_path / "more")


# ---- the real test sets -------------------------------------------------------------------------


def real(name):
    root = os.environ.get("NORM_DATA_DIR")
    if not root or not (Path(root) / name).is_dir():
        pytest.skip(f"NORM_DATA_DIR names no folder with {name}/ in it")
    return Path(root) / name


def test_real_iwslt14(tmp_path, run):
    manifest = run(iwslt14.CORPUS, real("iwslt14"), tmp_path / "out")
    digests = {x: file_digest(tmp_path / "out" / "tok" / f"test.{x}") for x in ("de", "en")}
    assert digests == DIGESTS14
    assert manifest["counts"]["tok"]["test.de"]["lines"] == 6750


def test_real_iwslt15(tmp_path, run):
    raw = real("iwslt15")
    manifest = run(iwslt15.CORPUS, raw, tmp_path / "out")
    counts = manifest["counts"]["bpe"]
    assert [counts[f"{s}.vi"]["lines"] for s in ("valid", "test")] == [1553, 1268]
    assert read(tmp_path / "out" / "tok" / "test.en") == read(raw / "tst2013.en")
