"""Stands in for Python: a server of forked.py runs argv in a process that it forks.

``python -S -E warm_python.py ARGV`` is like ``python ARGV``, without the seconds that importing
torch and fairseq takes.
"""

import json
import os
import socket
import sys


def ask(argv):
    """The exit status of ``argv``, which takes over stdout and stderr."""
    with socket.socket(socket.AF_UNIX) as server:
        server.connect("\0" + os.environ["FORK_SERVER"])
        request = {"argv": argv, "folder": os.getcwd(), "environment": dict(os.environ)}
        socket.send_fds(server, [json.dumps(request).encode() + b"\n"], [1, 2])
        return int(server.recv(16) or 1)


if __name__ == "__main__":
    sys.exit(ask(sys.argv[1:]))
