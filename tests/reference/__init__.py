"""The slow transcription of every norm by its name, and the options that each is tested with.

Norms over one position are in ``references_position.py``, norms over the positions of a batch
in ``references_batch.py``; what they share is in ``references_base.py``.
"""

from __future__ import annotations

from norm_plugin.norms import NORM_TYPES
from reference.batch import BATCH_REFERENCES, BATCH_VARIANTS
from reference.position import POSITION_REFERENCES, POSITION_VARIANTS

REFERENCES = {**POSITION_REFERENCES, **BATCH_REFERENCES}
VARIANTS = {**POSITION_VARIANTS, **BATCH_VARIANTS}
CASES = [(name, options) for name in NORM_TYPES for options in VARIANTS.get(name, [{}])]
