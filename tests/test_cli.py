"""``norm-plugin VERB`` is the one command line of the package."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys

import pytest
from forked import ROOT, run_forked

from norm_plugin import __version__
from norm_plugin.cli import all_verbs, main
from norm_plugin.io.command_line import CommandError

LINES_OF_A_SCREEN = 55


@pytest.mark.parametrize("verb", all_verbs())
def test_each_verb_explains_itself_under_its_own_name(verb):
    result = run_forked("norm_plugin", verb, "--help")
    assert result.returncode == 0, result.stderr
    assert f"norm-plugin {verb} " in result.stdout
    assert "\nexample:\n  " in result.stdout or not all_verbs()[verb].help
    assert len(result.stdout.splitlines()) <= LINES_OF_A_SCREEN


def test_version_and_help_of_the_command(capsys):
    main(["--version"])
    assert capsys.readouterr().out == f"norm_plugin {__version__}\n"
    main([])
    alone = capsys.readouterr().out
    main(["--help"])
    assert capsys.readouterr().out == alone and alone.startswith("usage: norm-plugin VERB")


def test_the_folder_for_user_dir_is_printed_by_path_and_by_the_package_without_a_verb():
    path = f"{ROOT / 'norm_plugin'}\n"
    assert (run_forked("norm_plugin").stdout, run_forked("norm_plugin", "path").stdout) == (
        path,
    ) * 2


def verbs_in_help(text: str) -> list[str]:
    return re.findall(r"^  ([a-z-]+)  ", text, re.MULTILINE)


def test_the_help_has_every_verb_but_those_that_only_programs_call():
    shown = verbs_in_help(run_forked("norm_plugin", "-h").stdout)
    assert {*all_verbs()} - {*shown} == {"job", "worker"}
    assert shown[0] == "run"


@pytest.mark.parametrize(
    "argv", [["run", "toy"], ["report", "D"], ["average", "--help"], ["run", "multi30k", "--help"]]
)
def test_a_library_that_is_missing_is_one_line_and_help_needs_none(argv):
    """-S hides what is installed. The scripts print the help before the environment exists."""
    command = [sys.executable, "-S", "-E", "-m", "norm_plugin", *argv]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if argv[-1] == "--help":
        assert (result.returncode, result.stderr) == (0, "")
        assert f"norm-plugin {argv[0]} " in result.stdout
    else:
        assert (result.returncode, result.stdout) == (1, "")
        assert re.fullmatch(r"error: \w+ is missing; .* with the extras .*\n", result.stderr)


def test_an_unknown_verb_is_one_line():
    result = run_forked("norm_plugin", "trian", "toy")
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr.startswith("error: unknown command trian; choose from run, sweep, ")
    near = run_forked("norm_plugin", "stdy", "toy")
    assert (near.returncode, near.stderr) == (
        2,
        "error: unknown command stdy; did you mean study?\n",
    )


@pytest.mark.parametrize(
    ("redirection", "code", "error"),
    [
        (">&-", 1, "error: stdout is closed; to discard the output, redirect it: >/dev/null\n"),
        (">/dev/full", 1, "error: cannot write the output: No space left on device\n"),
        (">/dev/null", 0, ""),
    ],
)
def test_output_that_cannot_be_written_is_one_line(redirection, code, error):
    command = ["bash", "-c", f"{shlex.quote(sys.executable)} -m norm_plugin {redirection}"]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (result.returncode, result.stdout, result.stderr) == (code, "", error)


def test_an_argument_that_is_not_utf8_is_refused_in_one_line():
    with pytest.raises(CommandError, match="the argument 'work/.udcff' is not UTF-8"):
        main(["report", "work/\udcff"])
