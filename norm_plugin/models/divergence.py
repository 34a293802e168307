"""Stop training at the first norm whose input is NaN or infinite, and name that norm."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from norm_plugin.norms import Norm
from norm_plugin.norms.base.contract import valid_positions
from norm_plugin.norms.base.recomputation import is_recomputing


def root_mean_square(
    x: Tensor, padding_mask: Tensor | None = None, batch_first: bool = False
) -> Tensor:
    """Return the root mean square of the valid positions of ``x``, ().

    It is NaN or infinite if and only if one of their values is. x is read once and not copied. The
    arguments are those of a norm. A finite value above 1e19, the root of the largest float32,
    counts as infinite, as it does in every norm that takes a square.
    """
    half = x.dtype in (torch.float16, torch.bfloat16)
    lengths = torch.linalg.vector_norm(x, dim=-1, dtype=torch.float32 if half else None)
    count = lengths.new_full((), lengths.numel())
    if padding_mask is not None:
        # where, not a product: attention gives NaN for a sentence that is all padding
        valid = valid_positions(x, padding_mask, batch_first)
        lengths, count = torch.where(valid, lengths, lengths.new_zeros(())), valid.sum()
    return torch.linalg.vector_norm(lengths) / (count.clamp(min=1) * x.size(-1)).sqrt()


class NanCheck:
    """Measures the input of every norm in training, and checks the values once per forward.

    Reading a value waits for the GPU, so the values of all sites are read together, and only in
    every 100th update, from the first, and where fairseq repeats an update whose gradient is not
    finite. The hooks that measure exist only then.

    Args:
        model: until its first ``set_num_updates``, every training forward is checked.
    """

    EVERY = 100

    def __init__(self, model: nn.Module) -> None:
        self.measured: list[tuple[str, Norm, Tensor]] = []  # site, norm, root mean square ()
        self.last: dict[str, float] = {}
        self.last_update = self.updates_done = 0
        self.handles = self.attach(model)

    def attach(self, model: nn.Module) -> list[RemovableHandle]:
        """Check every training forward of ``model`` until the returned hooks are removed."""
        before = [
            module.register_forward_pre_hook(partial(self.measure, name))
            for name, module in model.named_modules()
            if isinstance(module, Norm)
        ]
        return [*before, model.register_forward_hook(self._after_forward)]

    def set_num_updates(self, model: nn.Module, num_updates: int) -> None:
        """Attach the hooks for the next update, or remove them; ``num_updates`` are done.

        Raises:
            FloatingPointError: as :meth:`check`. A task that calls the encoder and the decoder by
                themselves, as ``translation_moe``, ends no forward of the model.
        """
        self.check(self.updates_done + 1)
        self.updates_done = num_updates
        if num_updates % self.EVERY:
            for handle in self.handles:
                handle.remove()
            self.handles = []
        elif not self.handles:
            self.handles = self.attach(model)

    def _after_forward(self, model: Any, inputs: Any, output: Any) -> None:
        self.check(getattr(model, "updates_done", 0) + 1)

    def measure(self, site: str, norm: Norm, inputs: tuple[Any, ...]) -> None:
        """Measure a norm's input: a hook. inputs: x and, in fairseq's stacks, mask and layout."""
        if norm.training and not is_recomputing():
            self.measured.append((site, norm, root_mean_square(inputs[0].detach(), *inputs[1:])))

    def check(self, update: int) -> None:
        """Raise FloatingPointError if a value recorded since the last check is not finite.

        Args:
            update: the number of the current optimizer update.
        """
        if not self.measured:
            return
        sites, norms, tensors = zip(*self.measured)
        self.measured = []
        values = torch.stack([rms.float() for rms in tensors]).tolist()
        for site, norm, value in zip(sites, norms, values):
            if not math.isfinite(value):
                raise FloatingPointError(self._report(site, norm, update))
        self.last, self.last_update = dict(zip(sites, values)), update

    def _report(self, site: str, norm: Norm, update: int) -> str:
        lines = [
            f"{site} ({type(norm).__name__}): its input has a NaN or an infinity in update {update}"
        ]
        if site in self.last:
            lines.append(
                f"the last finite one, in update {self.last_update}, had a root mean square of "
                f"{self.last[site]:.4g}"
            )
        for name, buffer in norm.named_buffers():
            if buffer.is_floating_point() and buffer.numel():
                low, high = buffer.min().item(), buffer.max().item()
                lines.append(f"its last finite {name} is within {low:.4g} and {high:.4g}")
        lines.append(
            "try a lower learning rate, a longer warm-up or --clip-norm; to train on regardless, "
            "set --norm-nan-check off"
        )
        return "; ".join(lines)
