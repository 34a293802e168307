"""The optimizers ``adam_foreach``, ``adam_matrix_decay`` and ``adam_matrix_decay_foreach``.

``adam_foreach`` is fairseq's ``adam`` for a GPU. fairseq updates one parameter after the other with
eight operations each; of the 3,603 kernels that an update of a base Transformer launches, 2,058 are
of this loop and 258 of the norm of the gradients. ``torch._foreach_*`` does each of these
operations for all parameters at once, in fairseq's order, so that the weights stay the same to the
last bit. The states of both can be exchanged: a run of one resumes with the other. On a CPU it is
slower than ``adam``, which finds a parameter in the cache for the next operation.

``adam_matrix_decay`` is ``adam`` with weight decay for matrices only, and
``adam_matrix_decay_foreach`` so is ``adam_foreach``. fairseq's ``adam`` decays every parameter, the
gains and biases of norms included. GPT-2's public reproductions (karpathy/nanoGPT, ``model.py``)
decay only the parameters of two or more dimensions, so that a comparison of norms does not depend
on the decay of their gains.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import Any

import torch
from fairseq.optim import FairseqOptimizer, register_optimizer
from fairseq.optim.adam import Adam, FairseqAdam, FairseqAdamConfig
from torch import Tensor

MOMENTS = ("exp_avg", "exp_avg_sq")
HALF = (torch.float16, torch.bfloat16)


class ForeachAdam(Adam):
    """fairseq's ``Adam``, for all parameters of a group at once; its states are the same."""

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Make one update; return the loss of ``closure``, if given."""
        loss = None if closure is None else closure()
        for group in self.param_groups:
            # one call takes tensors of one device and dtype, and one step size
            alike: defaultdict[tuple[Any, ...], list[Tensor]] = defaultdict(list)
            for p in group["params"]:
                if p.grad is not None:
                    step = self._state_of(p)["step"]
                    alike[p.device, p.dtype, p.grad.dtype, step].append(p)
            for (*_, step), parameters in alike.items():
                self._update(group, parameters, step)
        return loss

    def _state_of(self, p: Tensor) -> dict[str, Any]:
        """Return the state of ``p``, on its device and at least in single precision."""
        state: dict[str, Any] = self.state[p]
        dtype = torch.float32 if p.dtype in HALF else p.dtype
        if not state:
            state["step"] = 0
            for name in MOMENTS:
                state[name] = torch.zeros_like(p, dtype=dtype)
        for name in MOMENTS:  # those of a checkpoint may be elsewhere, or in half precision
            if state[name].device != p.device or state[name].dtype != dtype:
                state[name] = state[name].to(p.device, dtype)
        state["step"] += 1
        return state

    def _update(self, group: dict[str, Any], parameters: list[Tensor], step: int) -> None:
        """Update parameters of one device and dtype, whose update has the number ``step``."""
        (beta1, beta2), lr, decay = group["betas"], group["lr"], group["weight_decay"]
        weights = _widened(parameters)
        grads = _widened([p.grad for p in parameters if p.grad is not None])
        means, squares = ([self.state[p][name] for p in parameters] for name in MOMENTS)
        torch._foreach_mul_(means, beta1)
        torch._foreach_add_(means, grads, alpha=1 - beta1)
        torch._foreach_mul_(squares, beta2)
        torch._foreach_addcmul_(squares, grads, grads, value=1 - beta2)
        denominators = torch._foreach_sqrt(squares)
        torch._foreach_add_(denominators, group["eps"])
        if decay != 0:
            torch._foreach_add_(weights, weights, alpha=-decay * lr)
        step_size = lr * math.sqrt(1 - beta2**step) / (1 - beta1**step)
        torch._foreach_addcdiv_(weights, means, denominators, value=-step_size)
        if weights is not parameters:
            torch._foreach_copy_(parameters, weights)


def _widened(tensors: list[Tensor]) -> list[Tensor]:
    """Return copies in single precision of tensors in half precision, or the list itself."""
    if tensors[0].dtype not in HALF:
        return tensors
    copies = [torch.empty_like(each, dtype=torch.float32) for each in tensors]
    torch._foreach_copy_(copies, tensors)
    return copies


@register_optimizer("adam_foreach", dataclass=FairseqAdamConfig)
class ForeachFairseqAdam(FairseqAdam):
    """fairseq's Adam with the same weights in a tenth of the kernel launches.

    The norm of the gradients is computed at once, too. On a CPU it is fairseq's to the last bit. On
    a GPU its sums are added in another order, as by apex, which fairseq uses where it is installed:
    a clipped update can differ from fairseq's in the last bits, one that is not clipped does not.

    Args:
        cfg: the configuration of fairseq's ``adam``.
        params: the parameters of the model, or groups of them.

    Raises:
        ValueError: ``--fp16-adam-stats``, for which fairseq has a kernel of its own.
    """

    def __init__(self, cfg: FairseqAdamConfig, params: Iterable[Tensor | dict[str, Any]]) -> None:
        FairseqOptimizer.__init__(self, cfg)
        if cfg.fp16_adam_stats:
            raise ValueError("--fp16-adam-stats is not available here; give --optimizer adam")
        self._optimizer = ForeachAdam(params, **self.optimizer_config)

    def clip_grad_norm(
        self, max_norm: float, aggregate_norm_fn: Callable[[Tensor], Tensor] | None = None
    ) -> Tensor:
        """Return the norm of all gradients, and scale them down to a norm of ``max_norm`` above 0.

        Args:
            max_norm: the largest norm; 0 to leave the gradients as they are.
            aggregate_norm_fn: combines the norms of several processes.
        """
        grads = [p.grad for p in self.params if p.grad is not None]
        if len(grads) < 2:
            return super().clip_grad_norm(max_norm, aggregate_norm_fn)
        # over gradients of one dtype a single launch; of several, one each
        norms = torch._foreach_norm(grads, 2, dtype=torch.float32)
        norm = torch.norm(torch.stack(norms))
        if aggregate_norm_fn is not None:
            norm = aggregate_norm_fn(norm)
        if max_norm > 0:
            torch._foreach_mul_(grads, (max_norm / (norm + 1e-6)).clamp_(max=1))
        return norm


class MatrixDecay(FairseqAdam):
    """A fairseq Adam with a ``--weight-decay`` that excludes biases and gains.

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


@register_optimizer("adam_matrix_decay", dataclass=FairseqAdamConfig)
class MatrixDecayAdam(MatrixDecay):
    """``adam`` with decay of matrices only."""


@register_optimizer("adam_matrix_decay_foreach", dataclass=FairseqAdamConfig)
class MatrixDecayForeachAdam(MatrixDecay, ForeachFairseqAdam):
    """``adam_foreach`` with decay of matrices only."""


# fairseq resumes only with an optimizer whose class has the name of the one that was stored
ForeachFairseqAdam.__name__ = FairseqAdam.__name__
MatrixDecayForeachAdam.__name__ = MatrixDecayAdam.__name__
