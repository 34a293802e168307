"""``norm-plugin check-user-dir DIR``: check the norms and the placements of a user dir."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from norm_plugin.checks import norms, placements
from norm_plugin.checks.norms import BrokenContractError
from norm_plugin.io.command_line import CommandError
from norm_plugin.io.user_dirs import RAISED, import_folder
from norm_plugin.norms import NORM_TYPES, norm_spec
from norm_plugin.placements import PLACEMENTS


def failure(check: Callable[[], None]) -> str | None:
    """Return why a check fails, or None if it passes."""
    try:
        check()
    except BrokenContractError as error:
        return str(error)
    except RAISED as error:
        return f"{type(error).__name__}: {error}".replace("\n", " ")
    return None


def run_checks(user_dir: Path) -> Iterator[tuple[str, bool]]:
    """Run all checks of all norms and placements; yield a line for each, and whether it passed.

    Raises:
        CommandError: the folder cannot be imported, or registers neither norm nor placement.
    """
    folder = import_folder(user_dir)
    specs = [spec for spec in map(norm_spec, NORM_TYPES) if _lies_in(spec.cls, folder)]
    own = {name: cls for name, cls in PLACEMENTS.items() if _lies_in(cls, folder)}
    if not (specs or own):
        raise CommandError(
            f"{user_dir} registers no norm and no placement; import the file with @register_norm "
            "or @register_placement in its __init__.py"
        )
    checks = {
        f"{spec.name}: {name}": partial(check, spec)
        for spec in specs
        for name, check in norms.CHECKS.items()
    } | {
        f"placement {placement}: {name}": partial(check, cls)
        for placement, cls in own.items()
        for name, check in placements.CHECKS.items()
    }
    for checked, check in checks.items():
        why = failure(check)
        yield (f"ok   {checked}", True) if why is None else (f"FAIL {checked}: {why}", False)


def _lies_in(cls: type, folder: Path) -> bool:
    return folder in Path(inspect.getfile(cls)).resolve().parents
