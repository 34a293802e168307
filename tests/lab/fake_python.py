"""Stands in for the Python of a run's commands: notes each in $FAKE_CALLS, does something like it.

A command's output depends only on its arguments and its inputs, so that an interrupted run can be
compared with an uninterrupted one. At point $FAKE_KILL_AT of a run, the whole run is killed.
"""

import hashlib
import json
import math
import os
import re
import signal
import sys
from pathlib import Path

EPOCHS = 4


def point():
    """A moment at which the run can be killed; counted over all commands of a run."""
    counter = Path(os.environ["FAKE_POINTS"])
    with counter.open("a") as stream:
        stream.write(".")
    # Two processes may have added theirs before either reads the number
    if 0 < int(os.environ.get("FAKE_KILL_AT", 0)) <= counter.stat().st_size:
        os.killpg(os.getpgid(0), signal.SIGKILL)


def digest(*parts):
    """The SHA-256 of ``parts``, without the folder of this checkout."""
    text = "\0".join(map(str, parts)).replace(os.environ["FAKE_FOLDER"], "")
    return hashlib.sha256(text.encode()).hexdigest()


def value(argv, flag):
    """The last value of a flag, as argparse takes it."""
    return argv[len(argv) - argv[::-1].index(flag)]


def write(path, text):
    """Replace a file, whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_name(f"{path.name}.{os.getpid()}.new")
    with new.open("w") as stream:
        stream.write(text)
        stream.flush()
        os.fsync(stream.fileno())
    point()
    os.replace(new, path)
    point()


def data_prep(argv):
    """Each stage makes its file from the one before, unless that is done."""
    if os.environ.get("FAKE_DATA") == "fails":
        sys.exit("error: no corpus")
    out, content = Path(value(argv, "--out")), ""
    for stage, file in (
        ("fetch", out.with_name(f"{out.name}.download")),
        ("prepare", out / "manifest.json"),
        ("binarize", out / "bin/data"),
    ):
        if not file.exists():
            content = digest(stage, content)
            write(file, json.dumps({"checksum": content}) if stage == "prepare" else content)
        content = file.read_text()


def train(argv):
    """A chain of checkpoints, each from the one before it; the last one is a mere copy."""
    if os.environ.get("FAKE_TRAINING") == "makes nothing":
        return
    if "--wandb-project" in argv:
        print("wandb:", os.environ["WANDB_NAME"], "in", os.environ["WANDB_DIR"], flush=True)
    of_seed = json.loads(os.environ.get("FAKE_TRAINING_OF_SEED", "{}"))
    does = of_seed.get(value(argv, "--seed"), os.environ.get("FAKE_TRAINING"))
    if does == "is killed":
        print("error: a worker met an empty batch, and went on", flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
    if does in ("diverges", "fails"):
        print("num_updates 3")
        if does == "diverges":
            print("FloatingPointError: encoder.layers.0: its input has a NaN", file=sys.stderr)
        sys.exit("error: the disk is full")
    if os.environ.get("FAKE_TRAINING") == "goes on":
        Path(os.environ["FAKE_FOLDER"], "training").touch()
        signal.pause()
    folder = Path(value(argv, "--save-dir"))
    last = folder / "checkpoint_last.pt"
    start = int(last.read_text().split()[0]) if last.exists() else 0
    state = last.read_text() if last.exists() else digest(*argv)
    for epoch in range(start + 1, EPOCHS + 1):
        state = f"{epoch} {digest(state, Path(argv[0], 'data').read_text())}"
        write(folder / f"checkpoint{epoch}.pt", state)
        with last.open("w") as stream:
            point()
            stream.write(state)
        print("epoch", epoch, flush=True)


def repair(argv):
    folder = Path(argv[0])
    last = folder / "checkpoint_last.pt"
    whole = sorted(folder.glob("checkpoint?.pt"))
    if whole and not (last.exists() and last.read_text()):
        write(last, whole[-1].read_text())
        print("checkpoint_last.pt was damaged")
    for path in folder.glob("*.new"):
        path.unlink()


def valid_loss(norm, run):
    """Least at the learning rate of $FAKE_BEST_LR, by the arm's name without its own rate."""
    best = json.loads(os.environ.get("FAKE_BEST_LR", "{}"))
    if not best:
        return 1.0
    rate = run["arm"]["changes"].get("optimization.lr", [0.005])[0]
    arm = re.sub("-lr-[0-9.]+|-folded", "", norm)
    return 1 + abs(math.log2(rate / best[arm]))


def finish(argv):
    """Average the last two checkpoints, translate and score."""
    of_run = Path(argv[0])
    run = json.loads((of_run / "run.json").read_text())
    folded = "-folded" if run["fold"] else ""
    print("progress: average 0 of 0", flush=True)
    last = [of_run / f"checkpoints/checkpoint{epoch}.pt" for epoch in (EPOCHS - 1, EPOCHS)]
    write(of_run / "averaged.pt", digest(*(path.read_text() for path in last)))
    print("progress: generate 1 of 2 sentences", flush=True)
    translation = digest(folded, (of_run / "averaged.pt").read_text())
    write(of_run / f"generate{folded}.log", translation)
    print("progress: score 0 of 0", flush=True)
    norm, seed = f"{of_run.name.rpartition('-seed')[0]}{folded}", run["seed"]
    score = {
        "score": 35.0 + seed,
        "label": f"sacrebleu of {translation}",
        "signature": "nrefs:1|case:mixed",
    }
    result = {
        "schema": 4,
        "run": {"arm": run["arm"], "fold": run["fold"]},
        "experiment": run["experiment"],
        "differs": run["arm"]["changes"],
        "sources": run["sources"],
        "norm": norm,
        "seed": seed,
        "metric": run["metric"],
        "scores": {"sacrebleu": score, "tokenized": score},
        "curves": {"valid": [{"epoch": 1, "updates": 9, "loss": valid_loss(norm, run)}]},
    }
    folder = Path(run["results"], run["experiment"])
    write(folder / f"{norm}-seed{seed}.json", json.dumps(result))


VERBS = {"repair": repair, "finish": finish}


def be_a_job(argv):
    """Run ``norm-plugin job`` itself, whose own commands are fake, and exit."""
    if sys.flags.no_site:  # it needs the packages of the environment
        os.execv(sys.executable, [sys.executable, __file__, "-m", "norm_plugin", *argv])
    sys.path.insert(0, str(Path(__file__).parents[2]))
    from norm_plugin.cli import run

    replace_commands()
    run(argv)


def replace_commands():
    """From now on, this process runs fake commands, and may be killed at each renaming."""
    from norm_lab import paths

    paths.PYTHON[:] = [sys.executable, "-S", "-E", __file__]
    replace, fsync = os.replace, os.fsync
    synced = set()

    def fsync_and_note(descriptor):
        fsync(descriptor)
        synced.add(os.fstat(descriptor).st_ino)

    def replace_at_points(source, target):
        if os.stat(source).st_ino not in synced:
            with open(os.environ["FAKE_NOT_ON_DISK"], "a") as stream:
                print(target, file=stream)
        point()
        replace(source, target)
        point()

    os.replace, os.fsync = replace_at_points, fsync_and_note


def main(argv):
    if argv[:3] == ["-m", "norm_plugin", "job"]:
        be_a_job(argv[2:])
    point()
    with open(os.environ["FAKE_CALLS"], "a") as stream:
        stream.write(json.dumps(argv) + "\n")
    if argv[:2] == ["-m", "norm_plugin"]:
        VERBS[argv[2]](argv[3:])
    elif argv[:2] == ["-m", "fairseq_cli.train"]:
        train(argv[2:])
    else:
        own = argv[0].endswith("my_corpus.py") and "data-prep" in os.environ["PYTHONPATH"]
        assert own or argv[0].startswith("data-prep/"), argv
        data_prep(argv[1:])
    point()


if __name__ == "__main__":
    main(sys.argv[1:])
