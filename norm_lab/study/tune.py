"""Tune the hyperparameters of each arm of a study, over the same grid for all arms.

    norm-plugin tune STUDY
    norm-plugin sweep STUDY --tuned

The section ``tune`` of the study file has the grid and the tuning seeds. A trial trains one arm at
one point of the grid with one tuning seed. docs/studies.md says how the point of an arm is chosen,
how the grid is extended, and when ``tuned.json``, the result, is refused.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

from norm_lab.config.compose import compose_runs
from norm_lab.config.names import check_is_study
from norm_lab.config.options import Request
from norm_lab.config.spec import RunSpec
from norm_lab.config.studies import StudyFile, Tuning, read_study_file, study_path, tuned_path
from norm_lab.engine.failure import has_result
from norm_lab.engine.grid import run_grid
from norm_lab.engine.overview import NOT_CHECKED, estimate, jobs_of_outline
from norm_lab.engine.stages import TRAIN
from norm_lab.engine.state import DIVERGED, DONE, read_status, state_of
from norm_lab.paths import WORK
from norm_lab.results.folder import RUN_KEY, RUNS
from norm_lab.run.code import code_digest
from norm_lab.run.flags import training_flags
from norm_plugin.io.command_line import CommandError
from norm_plugin.io.files import read_json, write_text

if TYPE_CHECKING:
    import pandas as pd

    from norm_lab.study.tuning import Point

Grid = Mapping[str, tuple[float, ...]]
GROWTH = 4
"""Without a bound, the grid is extended by at most this number of values at each end."""
LIST_KEY = "optimization.lr"
"""A key whose value is a list in fairseq: the learning rate of each epoch."""


@dataclass(frozen=True)
class Arm:
    """An arm of a study.

    Attributes:
        overrides: its overrides, without the seed.
        settings: a digest of the flags of its training, without the seed.
        sources: the digests of the files of a user dir that it depends on.
    """

    overrides: tuple[str, ...] = field(compare=False)
    settings: str
    sources: Mapping[str, str]


def tune_study(request: Request) -> int:
    """Run the command ``tune``; return 1 if a trial has failed, else 0."""
    study, specs = read_tuned_study(request)
    path = tuned_path(study.path)
    if path.exists() and not request.status:
        read_choice(study, specs)
        print(f"{path} already has the tuned values; remove it to tune again")
        return 0
    arms, bound = arms_of(specs), bounds(study)
    grid: Grid = {key: tuple(values) for key, values in study.tune.grid.items()}
    request = with_own_results(request)
    if not request.status:
        print(size_text(study, specs, jobs_of_outline(request, specs)), flush=True)
    if request.dry_run and not request.verbose:
        print(f"trials: {request.results}\n{NOT_CHECKED}")
        return 0
    while True:
        by_seed = product(study.tune.seeds, arms, product(*grid.values()))
        points = [(arm, point, seed) for seed, arm, point in by_seed]
        trials = compose_trials(request, arms, tuple(grid), points)
        if not request.status:
            check_code(trials)
        status = run_grid(request, trials)
        if (
            status
            or request.dry_run
            or not all(state_of(spec).state in (DONE, DIVERGED) for spec in trials)
        ):
            return status
        from norm_lab.study.tuning import choose  # imports pandas

        table = read_trials(trials, tuple(grid), points)
        choice = choose(table, tuple(grid))
        wider = widen(grid, choice.values(), bound)
        if wider == grid:
            break
        print(*edge_lines(grid, wider, choice), f"the grid is now {grid_text(wider)}", sep="\n")
        grid = wider
    if request.status:
        return 0
    write_tuned(study, arms, grid, table, choice, trials)
    for arm, point in choice.items():
        print(f"{arm}: {', '.join(point_overrides(list(grid), point))}")
    print(f"written to {path}")
    return 0


def edge_lines(grid: Grid, wider: Grid, choice: Mapping[str, Point]) -> list[str]:
    """Return a line for each arm whose best value is on an edge that ``wider`` extends."""
    return [
        f"{arm} is best at {key} {value:g}, the {end} of the grid"
        for arm, point in choice.items()
        for key, value in zip(grid, point)
        for end, edge in (("least value", 0), ("greatest value", -1))
        if value == grid[key][edge] != wider[key][edge]
    ]


def grid_text(grid: Grid) -> str:
    """Return a grid in words: ``optimization.lr 0.0005, 0.001, 0.002``."""
    return "; ".join(f"{key} {', '.join(map('{:g}'.format, grid[key]))}" for key in grid)


def largest_grid(grid: Grid, bound: Mapping[str, tuple[float, float]]) -> Grid:
    """Return the grid that results if there is always an arm that is best at each edge."""
    corners = [tuple(values[edge] for values in grid.values()) for edge in (0, -1)]
    wider = widen(grid, corners, bound)
    return grid if wider == grid else largest_grid(wider, bound)


def size_text(study: StudyFile, specs: Sequence[RunSpec], jobs: int) -> str:
    """Return how many trials and runs a study has at most, and how long they take."""
    tuning, arms = study.tune, len(arms_of(specs))
    grid = {key: tuple(values) for key, values in tuning.grid.items()}
    most = largest_grid(grid, bounds(study))
    first, last = (
        arms * len(tuning.seeds) * math.prod(map(len, each.values())) for each in (grid, most)
    )
    return (
        f"at most {last} trials and {len(specs)} runs in all: "
        f"{estimate(specs[0], last + len(specs), jobs)}\n"
        f"tuning: {first} trials of {arms} arms with {len(tuning.seeds)} seeds at "
        f"{grid_text(grid)}; while an arm is best at an edge, one more value there, at most "
        f"{grid_text(most)}"
    )


def read_tuned_study(request: Request) -> tuple[StudyFile, list[RunSpec]]:
    """Return the study file of a command line, and the study's runs without tuned values.

    Raises:
        CommandError: it is no study, has no section ``tune``, or sets a key of its grid.
    """
    check_is_study(request.experiment)
    specs = compose_runs(request)
    study = read_study_file(study_path(request.experiment))
    if not study.tuned:
        raise CommandError(f"{study.path} has no section tune; see docs/studies.md")
    for key in study.tuned:
        if any(each.startswith(f"{key}=") for spec in specs for each in spec.overrides):
            raise CommandError(f"{study.path} sets {key}, which tune varies; drop one of them")
    return study, specs


def bounds(study: StudyFile) -> dict[str, tuple[float, float]]:
    """Return the smallest and the largest value that each key of the grid may take."""
    limits = {key: growth_bound(values) for key, values in study.tune.grid.items()}
    return limits | {key: (low, high) for key, (low, high) in study.tune.bounds.items()}


def growth_bound(values: Sequence[float]) -> tuple[float, float]:
    """Return the limits of a grid that is extended by :data:`GROWTH` values at each end."""
    below, above = growth_factors(values)
    return values[0] * below**GROWTH, values[-1] * above**GROWTH


def growth_factors(values: Sequence[float]) -> tuple[float, float]:
    """Return the factors from the first and the last value to the next ones outside the grid.

    A first value of 0 has no next one, and after 0 values are doubled.
    """
    return values[0] / values[1], values[-1] / values[-2] if values[-2] else 2.0


def arms_of(specs: Iterable[RunSpec]) -> dict[str, Arm]:
    """Return the arms of a study by their labels, ``layernorm-post``."""
    arms: dict[str, Arm] = {}
    for spec in specs:
        own = tuple(override for override in spec.overrides if not override.startswith("seed="))
        without_seed = {**spec.settings, "common": {**spec.settings["common"], "seed": None}}
        flags = json.dumps(training_flags(without_seed)).encode()
        settings = hashlib.sha256(flags).hexdigest()[:16]
        arms.setdefault(spec.label, Arm(own, settings, spec.sources))
    return arms


def with_own_results(request: Request) -> Request:
    """Return the request with ``tuning/`` for the results, apart from those of the study."""
    results = request.results or Path(request.work or WORK, "results")
    return replace(request, results=results / "tuning")


def compose_trials(
    request: Request,
    arms: Mapping[str, Arm],
    keys: Sequence[str],
    points: Sequence[tuple[str, Point, int]],
) -> list[RunSpec]:
    """Return the runs of the trials, in the order of ``points``."""
    runs = tuple(
        (*arms[arm].overrides, *point_overrides(keys, point), f"seed={seed}")
        for arm, point, seed in points
    )
    return compose_runs(replace(request, runs=runs))


def check_code(trials: Iterable[RunSpec]) -> None:
    """Raise CommandError for a trial that another version of the code has trained."""
    code = code_digest()
    for spec in trials:
        record = read_status(spec.folder).stages.get(TRAIN)
        if record is not None and record.code not in ({}, code):
            raise CommandError(
                f"{spec.folder} was trained by another version of norm_plugin, torch or fairseq; "
                "to tune, remove it and those like it, or choose another --work"
            )


def point_overrides(keys: Sequence[str], point: Point) -> list[str]:
    """Return a point of the grid as overrides of hydra."""
    return [
        f"{key}=[{value:.6g}]" if key == LIST_KEY else f"{key}={value:.6g}"
        for key, value in zip(keys, point)
    ]


def read_trials(
    specs: Sequence[RunSpec], keys: Sequence[str], points: Sequence[tuple[str, Point, int]]
) -> pd.DataFrame:
    """Return one row per trial: ``arm``, the keys of the grid, ``seed`` and the outcome.

    The outcome is infinite for a run that diverged.
    """
    import pandas as pd

    from norm_lab.results.table import read_results
    from norm_lab.study.tuning import OUTCOME

    folders = {spec.result.parent for spec in specs if has_result(spec)}
    losses = read_results(*folders).set_index(RUN_KEY)[OUTCOME].to_dict() if folders else {}
    rows = []
    for spec, (arm, point, seed) in zip(specs, points, strict=True):
        key = (spec.experiment, spec.evaluated_label, seed)
        diverged = state_of(spec).state == DIVERGED
        loss = math.inf if diverged else losses[key]
        if math.isnan(loss):
            raise CommandError(f"{spec.result} has no validation loss, which tuning needs")
        rows.append({"arm": arm, **dict(zip(keys, point)), "seed": seed, OUTCOME: float(loss)})
    return pd.DataFrame(rows)


def widen(grid: Grid, chosen: Iterable[Point], bound: Mapping[str, tuple[float, float]]) -> Grid:
    """Return the grid with one more value at each edge that is the best point of an arm.

    The new value continues the two outermost ones geometrically, within the bound.
    """
    wider = dict(grid)
    for key, best in zip(grid, zip(*chosen)):
        values, (low, high) = grid[key], bound[key]
        factor_below, factor_above = growth_factors(values)
        below, above = values[0] * factor_below, values[-1] * factor_above
        grows = values[0] in best and low * (1 - TINY) <= below < values[0]
        start = (_rounded(below),) if grows else ()
        end = (_rounded(above),) if values[-1] in best and above <= high * (1 + TINY) else ()
        wider[key] = (*start, *values, *end)
    return wider


TINY = 1e-6  # a value at the bound may exceed it by rounding


def _rounded(value: float) -> float:
    return float(f"{value:.6g}")


def write_tuned(
    study: StudyFile,
    arms: Mapping[str, Arm],
    grid: Grid,
    trials: pd.DataFrame,
    choice: Mapping[str, Point],
    specs: Sequence[RunSpec],
) -> None:
    """Store the trials and the choice in the folder of the study file."""
    from norm_lab.study.tuning import OUTCOME

    content = {
        "rule": f"the point with the least mean of {OUTCOME} over the seeds",
        "tune": _plain(study.tune),
        "grid": grid,
        "code": code_digest(),
        "data": data_checksums(specs),
        "arms": {
            label: {**asdict(arm), "chosen": dict(zip(grid, choice[label]))}
            for label, arm in arms.items()
        },
        "trials": trials.replace({OUTCOME: {math.inf: None}}).to_dict("records"),
    }
    text = json.dumps(content, indent=1, ensure_ascii=False, allow_nan=False)
    write_text(tuned_path(study.path), f"{text}\n")


def read_choice(study: StudyFile, specs: Sequence[RunSpec]) -> dict[str, dict[str, float]]:
    """Return the tuned values of each arm, by its label.

    Args:
        specs: the study's own runs.

    A study with published runs is repeated at its published values, also at another version.

    Raises:
        CommandError: the study is not tuned, or its code, data or arms have changed.
    """
    path = tuned_path(study.path)
    published = (study.path.parent / RUNS).is_file()
    if not path.exists():
        raise CommandError(f"{study.path} is not tuned; run `norm-plugin tune {study.path}` first")
    tuned = read_json(path)
    arms = arms_of(specs)
    stored = {
        label: Arm(arm["overrides"], arm["settings"], arm["sources"])
        for label, arm in tuned["arms"].items()
    }
    changed = sorted(label for label in {*arms, *stored} if arms.get(label) != stored.get(label))
    reason = ""
    if changed:
        reason = f"other arms or settings ({', '.join(changed)})"
    elif tuned["tune"] != _plain(study.tune):
        reason = "another grid or other tuning seeds"
    elif tuned["code"] != code_digest() and not published:
        reason = "another version of norm_plugin, torch or fairseq"
    elif set(data_checksums(specs)) - set(tuned["data"]):
        reason = "other data"
    if reason:
        raise CommandError(f"{path} is for {reason}; remove it, and tune again")
    return {label: dict(arm["chosen"]) for label, arm in tuned["arms"].items()}


def compose_tuned(request: Request) -> list[RunSpec]:
    """Return the runs of a study, each arm at its tuned values; see :func:`read_choice`."""
    study, specs = read_tuned_study(request)
    choice = read_choice(study, specs)
    runs = []
    for spec in specs:
        chosen = choice[spec.label]
        runs.append((*spec.overrides, *point_overrides(list(chosen), tuple(chosen.values()))))
    return compose_runs(replace(request, runs=tuple(runs)))


def data_checksums(specs: Iterable[RunSpec]) -> list[str]:
    """Return the checksums of the prepared corpora of runs.

    A corpus that each seed splits at random is omitted, since its checksum depends on the seed.
    """
    fixed = (spec for spec in specs if "split_seed" not in spec.preparation.options)
    manifests = {spec.data / "manifest.json" for spec in fixed}
    return sorted({read_json(path)["checksum"] for path in manifests if path.exists()})


def _plain(tuning: Tuning) -> Any:
    """Return the section in types that JSON has, with lists for tuples."""
    return json.loads(json.dumps(asdict(tuning)))
