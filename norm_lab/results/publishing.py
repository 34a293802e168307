"""The command ``publish``: store the results of a folder as two files, see ``folder.py``.

It loses no run: runs that the target has are kept, and of a run that is there in several versions,
the newer result. It removes only files that it has read, and none whose run is not stored because
the published one is newer. It is one step: at any time, a reader finds the old or the new version.
"""

from __future__ import annotations

import fcntl
import gzip
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from norm_lab.config.studies import results_folder
from norm_lab.results.folder import (
    DIGEST,
    NEXT_OUTPUTS,
    OUTPUTS,
    PUBLISHED_OUTPUTS,
    RUN_KEY,
    RUNS,
    Row,
    RunKey,
    add_run,
    check_has_results,
    complete_publishing,
    read_folder,
    run_key,
    sha256,
)
from norm_plugin.io.command_line import CommandError, Parser
from norm_plugin.io.files import atomic_write, make_folder


@dataclass(frozen=True)
class Published:
    """The result of :func:`publish`: how many runs are finished, and how many have no result."""

    runs: int
    failures: int
    replaced: list[RunKey]  #: of which the target had another version, which was not newer
    kept: list[RunKey]  #: of which the target has a newer version


def publish(source: Path, target: Path) -> Published:
    """Add the runs of a folder to a published folder, which may be the same.

    Raises:
        CommandError: there are no results, or another command is publishing to ``target``.
    """
    check_has_results(read_folder(source))  # before a folder is created
    make_folder(target, "TO")
    with _lock(target):
        complete_publishing(target)
        for name in (NEXT_OUTPUTS, RUNS):  # of a publish that was killed while it wrote
            for part in target.glob(f"{name}.*.tmp"):
                part.unlink()
        present = read_folder(target)
        added = [] if target.samefile(source) else list(read_folder(source).runs.values())
        runs = {run_key(row): row for row in present.published}
        replaced: list[RunKey] = []
        refused: list[tuple[RunKey, Path | None]] = []
        of_files = [(row, path) for path, (_, row) in present.files.items()]
        for row, path in (*of_files, *((row, None) for row in added)):
            key = run_key(row)
            known = runs.get(key, row)
            if not add_run(runs, row):
                refused.append((key, path))
            elif known != row:
                replaced.append(key)
        rows = [runs[key] for key in sorted(runs)]
        columns = (*RUN_KEY, *OUTPUTS)
        of_runs = [{name: row[name] for name in columns if name in row} for row in rows]
        outputs = gzip.compress(_json_lines(of_runs), mtime=0)
        shared, *own = shared_and_own(rows)
        table = _json_lines([{**shared, DIGEST: sha256(outputs)}, *own])
        # everything is encoded; the second step publishes, see folder.py
        for name, content in ((NEXT_OUTPUTS, outputs), (RUNS, table)):
            with atomic_write(target / name) as stream:
                stream.write(content)
        os.replace(target / NEXT_OUTPUTS, target / PUBLISHED_OUTPUTS)
        left = {path for _, path in refused}
        for path, (digest, _) in present.files.items():
            if path not in left and path.exists() and sha256(path.read_bytes()) == digest:
                path.unlink()
    return Published(
        runs=sum("state" not in row for row in rows),
        failures=sum("state" in row for row in rows),
        replaced=list(dict.fromkeys(replaced)),
        kept=list(dict.fromkeys(key for key, _ in refused)),
    )


def shared_and_own(rows: Sequence[Row]) -> list[Row]:
    """Return the values that all finished runs share, then the other values of each run."""
    texts = [
        {name: json.dumps(value, sort_keys=True) for name, value in row.items()}
        for row in rows
        if "state" not in row
    ]
    alike = set.intersection(*(set(each.items()) for each in texts)) if texts else set()
    names = {name for name, _ in alike} - {*RUN_KEY, *OUTPUTS}
    first = next((row for row in rows if "state" not in row), {})
    own = [
        {
            name: row[name]
            for name in (*RUN_KEY, *sorted(row.keys() - RUN_KEY))
            if name not in OUTPUTS
            and ("state" in row or name not in names)
            and row[name] == row[name]  # JSON has no NaN
        }
        for row in rows
    ]
    return [{name: first[name] for name in sorted(names)}, *own]


def _json_lines(rows: Sequence[Mapping[str, Any]]) -> bytes:
    return "".join(
        json.dumps(row, ensure_ascii=False, allow_nan=False, separators=(",", ":")) + "\n"
        for row in rows
    ).encode()


@contextmanager
def _lock(target: Path) -> Iterator[None]:
    """Keep other ``publish`` commands from the same folder; CommandError if one is running."""
    folder = os.open(target, os.O_RDONLY)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    except BlockingIOError as error:
        raise CommandError(
            f"{target} is being published by another command; try again later"
        ) from error
    finally:
        os.close(folder)


def publish_command(argv: Sequence[str] | None = None) -> int:
    """Run the command ``publish``."""
    parser = Parser(
        prog="norm-plugin publish",
        description="Add the results of an experiment to a folder that stores them as one table\n"
        "of runs, with their curves, statistics and translations.",
        example="norm-plugin publish work/results/toy mystudy",
    )
    parser.add_argument("source", type=Path, metavar="FROM", help="as work/results/multi30k")
    text = "a study, by its name or its folder, or any folder; may equal FROM"
    parser.add_argument("target", type=results_folder, metavar="TO", help=text)
    args = parser.parse_args(argv)
    published = publish(args.source, args.target)
    print(f"{published.runs} runs: {args.target / RUNS}")
    if published.failures:
        print(f"{published.failures} without a result")
    for what, keys in (
        ("replaced an older run", published.replaced),
        ("kept a newer run", published.kept),
    ):
        for experiment, norm, seed in keys:
            print(f"{what}: {experiment}, {norm}, seed {seed}")
    return 0
