"""``--norm-record``: statistics of norms and layers while a model trains, and their file.

``make_recorder(trainer)`` returns the recorder of a run, and ``read_records(path)`` its records.
:mod:`~norm_plugin.models.recording.measures` has the formulas.
"""

from norm_plugin.models.recording.file import RecordFile, read_records
from norm_plugin.models.recording.measures import LEVELS, real_rows
from norm_plugin.models.recording.recorder import Recorder, make_recorder

__all__ = ["LEVELS", "RecordFile", "Recorder", "make_recorder", "read_records", "real_rows"]
