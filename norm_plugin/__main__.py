"""``python -m norm_plugin VERB`` runs ``norm-plugin VERB``; without a verb it prints the folder."""

from norm_plugin.cli import run

if __name__ == "__main__":
    run(default=("path",))
