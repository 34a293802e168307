"""The optimizer ``adam_matrix_decay``: fairseq's Adam, with weight decay for matrices only.

fairseq's ``adam`` decays every parameter, the gains and biases of norms included. GPT-2's public
reproductions (karpathy/nanoGPT, ``model.py``) decay only the parameters of two or more dimensions,
so that a comparison of norms does not depend on the decay of their gains.
"""

from __future__ import annotations

from collections.abc import Iterable

from fairseq.optim import register_optimizer
from fairseq.optim.adam import FairseqAdam, FairseqAdamConfig
from torch import Tensor


@register_optimizer("adam_matrix_decay", dataclass=FairseqAdamConfig)
class MatrixDecayAdam(FairseqAdam):
    """fairseq's Adam, with a ``--weight-decay`` that excludes biases and gains.

    Args:
        cfg: the configuration of fairseq's ``adam``.
        params: the parameters of the model; those of one dimension or none are not decayed.
    """

    def __init__(self, cfg: FairseqAdamConfig, params: Iterable[Tensor]) -> None:
        params = list(params)
        matrices = [each for each in params if each.dim() >= 2]
        vectors = [each for each in params if each.dim() < 2]
        super().__init__(cfg, [{"params": matrices}, {"params": vectors, "weight_decay": 0.0}])

    @property
    def supports_flat_params(self) -> bool:
        """Return False: in one flat vector, matrices and vectors cannot be distinguished."""
        return False
