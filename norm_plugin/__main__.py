"""``python -m norm_plugin VERB`` is ``norm-plugin VERB``; without a verb, the folder."""

from norm_plugin.cli import run

if __name__ == "__main__":
    run()
