"""``python -m papers.theory``: measure the claims of the papers, see command.py."""

from norm_plugin.io.command_line import run_command
from papers.theory.command import main

run_command(main)
