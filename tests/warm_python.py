"""Stands in for Python: a server of forked.py runs the words in a process that it forks.

``python -S -E warm_python.py WORDS`` is like ``python WORDS``, without the seconds that importing
torch and fairseq takes.
"""

import json
import os
import socket
import sys


def ask(words):
    """The exit status of ``words``, which take over stdout and stderr."""
    with socket.socket(socket.AF_UNIX) as server:
        server.connect("\0" + os.environ["FORK_SERVER"])
        asked = {"words": words, "folder": os.getcwd(), "environment": dict(os.environ)}
        socket.send_fds(server, [json.dumps(asked).encode() + b"\n"], [1, 2])
        return int(server.recv(16) or 1)


if __name__ == "__main__":
    sys.exit(ask(sys.argv[1:]))
