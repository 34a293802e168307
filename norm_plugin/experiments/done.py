"""What of a plan is done already, and what is left, as commands."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

from norm_plugin.experiments.plan import Plan, plan_root
from norm_plugin.experiments.stages import Stage, data_stages, run_stages
from norm_plugin.experiments.stamps import Stamps, digest_of_files, next_key


def has_content(path: Path) -> bool:
    """Whether a file exists and is not empty."""
    return path.is_file() and path.stat().st_size > 0


def user_dir_key(plan: Plan) -> str:
    """Of the files of the user's own ``--user-dir`` that the run rests on."""
    return json.dumps(plan.sources, sort_keys=True) if plan.sources else ""


def manifest_key(plan: Plan) -> str:
    """Of the prepared data."""
    manifest = plan.data / "manifest.json"
    return digest_of_files([manifest], plan.data) if manifest.is_file() else ""


def stages_and_keys(plan: Plan) -> list[tuple[Stage, str]]:
    """The stages after the data's, each with the key under which it counts as done."""
    key = user_dir_key(plan) + manifest_key(plan)
    found = []
    for stage in run_stages(plan):
        key = next_key(key, stage.words)
        found.append((stage, key))
    return found


def is_finished(plan: Plan) -> bool:
    """Whether every stage was done with these settings and this data."""
    stamps = Stamps(plan.folder / "stages")
    return all(
        stamps.key_of(stage.name) == key and stage.product and has_content(stage.product)
        for stage, key in stages_and_keys(plan)
    )


def diverged(plan: Plan) -> str | None:
    """Why the training diverged with these settings and this data; None where it did not."""
    (train, key), *_ = stages_and_keys(plan)
    return Stamps(plan.folder / "stages").diverged(train.name, key)


def print_plan(plan: Plan) -> None:
    """The commands of the stages that are not done, ready to be pasted into a shell."""
    print(shlex.join(["cd", str(plan_root())]))
    print(shlex.join(["mkdir", "-p", str(plan.folder)]))
    stamps = Stamps(plan.folder / "stages")
    for stage in data_stages(plan):
        print(f"# {plan.name}: {stage.name}\n{shlex.join(stage.command)}")
    for stage, key in stages_and_keys(plan):
        assert stage.product is not None
        if stamps.key_of(stage.name) == key and has_content(stage.product):
            print(f"# {plan.name}: {stage.name} was done before")
            continue
        print(f"# {plan.name}: {stage.name}")
        if stage.before:
            print(shlex.join(stage.before))
        end = "" if stage.output is None else f" >{shlex.quote(str(stage.output))}"
        print(f"{shlex.join(stage.command)}{end}")
