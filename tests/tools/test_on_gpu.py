"""tools/on_gpu: parts go on after a failure, and what is measured outlives the session."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from on_gpu import __main__ as command
from on_gpu import environment, precision
from on_gpu.parts import RECIPE, ROOT, Machine, Places, all_parts, kernels_built
from on_gpu.running import Part, Session

WAIT = "import signal; signal.pause()"
GOOD = "print('good')"


def part(name, code, seconds=60.0, skip=""):
    return Part(name, (sys.executable, "-c", code), seconds, skip)


def session(out, code="c0ffee", left=600.0, device="cuda"):
    deadline = time.monotonic() + left
    return Session(out, {"code": code, "device": device}, dict(os.environ), deadline)


def stored(out):
    return {one["name"]: one for one in json.loads((out / "summary.json").read_text())["parts"]}


def test_a_failed_part_costs_no_other(tmp_path, capsys):
    parts = [
        part("one", "import sys; print('why it failed'); sys.exit(3)"),
        part("two", GOOD),
        part("three", GOOD, skip="there is none"),
        Part("four", ("no-such-command",), 60.0),
    ]
    assert session(tmp_path).run(parts) == 1
    printed = capsys.readouterr().out
    found = stored(tmp_path)
    assert [one["status"] for one in found.values()] == ["failed", "passed", "skipped", "failed"]
    assert found["one"]["reason"] == "status 3, see logs/one.log" and "why it failed" in printed
    assert found["three"]["reason"] == "there is none"
    assert "No such file" in found["four"]["reason"]
    assert (tmp_path / "logs" / "two.log").read_text() == "good\n"
    assert "two    passed " in printed.splitlines()[-5]
    assert session(tmp_path / "other").run(parts[1:3]) == 0


def test_a_part_that_takes_too_long_ends_with_all_that_it_started(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    inner = f"stream = open({str(pipe)!r}, 'w'); {WAIT}"
    outer = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {inner!r}])"
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    assert session(tmp_path).run([part("slow", outer, seconds=2.0), part("next", GOOD)]) == 0
    os.set_blocking(reader, True)
    assert os.read(reader, 1) == b""  # its end comes when nobody holds the pipe open for writing
    os.close(reader)
    found = stored(tmp_path)
    assert found["slow"]["status"] == "out of time" and found["next"]["status"] == "passed"


def test_without_time_nothing_begins(tmp_path):
    assert session(tmp_path, left=-1).run([part("one", GOOD)]) == 0
    assert stored(tmp_path)["one"]["reason"] == "no time was left"
    assert not (tmp_path / "logs" / "one.log").exists()


def test_a_part_ends_with_the_time_of_the_session(tmp_path):
    assert session(tmp_path, left=2.0).run([part("slow", WAIT)]) == 0
    assert stored(tmp_path)["slow"]["status"] == "out of time"


def test_what_has_passed_is_not_repeated_with_the_same_code(tmp_path, capsys):
    count = f"open({str(tmp_path / 'count')!r}, 'a').write('x')"
    for code, runs in (("a", 1), ("a", 1), ("b", 2)):
        session(tmp_path, code).run([part("one", count)])
        assert (tmp_path / "count").read_text() == "x" * runs
    session(tmp_path, "b").run([part("one", count + "; print()")])
    assert (tmp_path / "count").read_text() == "xxx"
    session(tmp_path, "b", device="cpu").run([part("one", count + "; print()")])
    assert (tmp_path / "count").read_text() == "xxxx"
    assert "one: passed before" in capsys.readouterr().out


DRIVER = """
import os, sys, time
from pathlib import Path
sys.path.insert(0, sys.argv[2])
from on_gpu.running import Part, Session
out = Path(sys.argv[1])
code = "import sys; open(sys.argv[1], 'a').write(sys.argv[2] + '\\\\n')"
parts = [Part(f"part {n}", (sys.executable, "-c", code, str(out / "rows"), str(n)), 60.0)
         for n in range(12)]
sys.exit(Session(out, {"code": "c"}, dict(os.environ), time.monotonic() + 600).run(parts))
"""


def start_driver(out):
    words = [sys.executable, "-u", "-c", DRIVER, str(out), str(ROOT / "tools")]
    return subprocess.Popen(words, stdout=subprocess.PIPE, text=True)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_session_cut_off_at_random_goes_on(tmp_path, number):
    generator = random.Random(int(number))
    for _ in range(3):
        with start_driver(tmp_path) as driver:
            for _ in range(generator.randint(1, 8)):
                driver.stdout.readline()
            driver.send_signal(number)
            driver.stdout.read()
        for one in stored(tmp_path).values():  # whole at any moment
            assert one["status"] in ("passed", "running", "interrupted")
    with start_driver(tmp_path) as last:
        last.stdout.read()
    assert last.returncode == 0
    assert {one["status"] for one in stored(tmp_path).values()} == {"passed"}
    rows = (tmp_path / "rows").read_text().split()
    assert set(rows) == {str(n) for n in range(12)}
    # a part that was cut off is repeated, and no other
    assert len(rows) <= 12 + 3


def test_a_killed_session_takes_its_part_along(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    code = f"stream = open({str(pipe)!r}, 'w'); print('on', file=stream, flush=True); {WAIT}"
    script = DRIVER.replace(
        "sys.exit(Session",
        f"parts = [Part('waits', (sys.executable, '-c', {code!r}), 60.0)]\nsys.exit(Session",
    )
    words = [sys.executable, "-c", script, str(tmp_path), str(ROOT / "tools")]
    driver = subprocess.Popen(words, stdout=subprocess.DEVNULL)
    with open(pipe) as reader:
        assert reader.readline() == "on\n"
        driver.kill()
        driver.wait()
        assert reader.read() == ""  # comes when the part has ended
    assert stored(tmp_path)["waits"]["status"] == "running"
    assert session(tmp_path).summary.outcomes["waits"].status == "interrupted"


def places(tmp_path, raw=None):
    return Places(sys.executable, tmp_path, tmp_path / "rows", tmp_path / "results", raw)


@pytest.mark.parametrize("quick", [True, False])
@pytest.mark.parametrize(("device", "gpus"), [("cpu", 0), ("cuda", 1), ("cuda", 2)])
def test_the_parts(tmp_path, device, gpus, quick):
    parts = list(all_parts(places(tmp_path, Path("/raw")), Machine(device, gpus, "c"), quick))
    names = [one.name for one in parts]
    assert len(set(names)) == len(names)
    for one in parts:
        scripts = [word for word in one.command if word.endswith(".py")]
        assert [word for word in scripts if not (ROOT / word).exists()] == []
    by_name = {one.name: one for one in parts}
    assert bool(by_name["two GPUs"].skip) == (gpus < 2)
    assert f"--device {device}" in " ".join(by_name["layers"].command)
    assert str(tmp_path / "rows" / "gpu_training.csv") in by_name["updates"].command
    if not quick:
        first = by_name["multi30k layernorm post 1"].command
        assert {"preset=paper", "norm=layernorm", "placement=post", "/raw/multi30k"} <= set(first)
        assert names.index("multi30k layernorm pre 1") < names.index("multi30k layernorm post 2")


def test_a_machine_without_a_gpu(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(command, "probe", lambda python: {"torch": "2.13", "gpus": 0})
    assert command.main(["--out", str(tmp_path / "out")]) == 2
    assert "give --device cpu --quick" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_a_machine_whose_torch_is_yet_to_be_installed(tmp_path, monkeypatch):
    monkeypatch.setattr(command, "probe", lambda python: {"torch": None, "gpus": 0})
    assert command.main(["--out", str(tmp_path / "out"), "--parts", "two"]) == 0
    assert stored(tmp_path / "out")["two GPUs"]["reason"] == "torch sees 0 GPUs"


def test_kernels_older_than_their_sources_are_built_again(tmp_path):
    (tmp_path / "csrc").mkdir()
    source, library = tmp_path / "csrc" / "rows.inc", tmp_path / "_native.so"
    source.touch()
    assert not kernels_built(tmp_path)
    library.touch()
    for age, built in ((-1, True), (1, False)):
        os.utime(source, (age + library.stat().st_mtime,) * 2)
        assert kernels_built(tmp_path) == built


def test_the_command_runs_the_parts_that_are_named(tmp_path, capsys):
    out = tmp_path / "out"
    words = ["--device", "cpu", "--quick", "--out", str(out), "--parts", "sanit", "two"]
    assert command.main(words) == 0
    summary = json.loads((out / "summary.json").read_text())
    assert summary["device"] == "cpu" and len(summary["code"]) == 12
    assert [one["name"] for one in summary["parts"]][-1] == "two GPUs"
    assert len(summary["parts"]) == 2


def test_scores_beside_the_published_one(tmp_path):
    result = {"scores": {"tokenized": {"score": 40.5}}}
    for recipe in (RECIPE, "multi30k_cpu"):  # the second one has no published score
        (tmp_path / recipe).mkdir()
        (tmp_path / recipe / "layernorm-seed1.json").write_text(json.dumps(result))
    line = "multi30k_paper layernorm-seed1: 40.50 BLEU (published, post-norm LayerNorm: 41.02)"
    assert command.bleu_lines(tmp_path) == [line]


def test_what_is_installed_from_a_folder_of_wheels(tmp_path):
    for name in (
        "hydra_core-1.3.2-py3-none-any.whl",
        "fairseq-fixed-0.12.3.1.tar.gz",
        "numpy-2.4.6-cp312-cp312-manylinux_2_28_x86_64.whl",
        "notes.txt",
    ):
        (tmp_path / name).touch()
    pins = {"hydra-core": "hydra-core==1", "fairseq-fixed": "fairseq-fixed==2", "regex": "regex==3"}
    pins |= {"numpy": "numpy==1", "torch": "torch==2.13.0", "ruff": "ruff==0.17.5"}
    there = {"numpy"}
    assert environment.wanted(pins, there, tmp_path) == (["hydra-core", "fairseq-fixed"], ["regex"])
    everything = ["hydra-core==1", "fairseq-fixed==2", "regex==3"]
    assert environment.wanted(pins, there, None) == (everything, [])


def test_the_lock_names_what_is_not_needed():
    pins = environment.locked(ROOT / "requirements.lock")
    assert pins["fairseq-fixed"].startswith("fairseq-fixed==")
    assert environment.NOT_NEEDED - set(pins) <= {"pip"}


def test_losses_of_a_training():
    line = '2026 | INFO | train_inner | {"loss": "6.5", "num_updates": "7"}'
    assert precision.losses(f"noise\n{line}\n") == {7: 6.5}


HALF = {update: 10.0 - update / 10 for update in range(1, 16)}
REST = {update: 8.0 - update / 10 for update in range(16, 31)}


@pytest.mark.parametrize(
    ("first", "second", "message"),
    [
        (HALF, REST, None),
        ({}, REST, "are not all of 30"),
        (HALF, {**HALF, **REST}, "resuming began with update 1, not 16"),
        (HALF, {**REST, 20: float("nan")}, r"not finite in updates \[20\]"),
        (HALF, {**REST, 30: 11.0}, "the loss went from 9.9 to 11.0"),
    ],
)
def test_what_a_training_must_show(first, second, message):
    if message is None:
        precision.check(first, second)
    else:
        with pytest.raises(ValueError, match=message):
            precision.check(first, second)


def test_a_row_that_was_cut_off_is_none(tmp_path):
    path = tmp_path / "precision.jsonl"
    assert precision.done_before(path, "c") == set()
    row = {"norm": "dyt", "flag": "--amp", "device": "cpu", "code": "c", "status": "passed"}
    rows = [row, {**row, "norm": "none", "status": "failed"}, {**row, "norm": "derf", "code": "d"}]
    path.write_text("".join(json.dumps(one) + "\n" for one in rows) + '{"norm": "rms')
    assert precision.done_before(path, "c") == {("dyt", "--amp", "cpu")}
