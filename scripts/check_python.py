"""Print what this Python lacks to hold the environment: scripts/setup.sh asks each candidate."""

import os
import sys
import sysconfig

# fairseq-fixed needs 3.11, and hydra 1.3 does not start on 3.14. Older Pythons run this file too.
major, minor = sys.version_info[:2]
if not (3, 11) <= (major, minor) <= (3, 13):
    sys.exit(print(f"is Python {major}.{minor}, not 3.11 to 3.13"))
try:
    import ensurepip  # noqa: F401
    import venv  # noqa: F401
except ImportError:
    print("has no venv module: on Debian and Ubuntu, apt install python3-venv")
if not os.path.isfile(os.path.join(sysconfig.get_paths()["include"], "Python.h")):
    print("has no header files: on Debian and Ubuntu, apt install python3-dev")
