"""Norms with statistics over the positions of a batch, and their running statistics."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, ClassVar, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn

from norm_plugin.norms.base.averaged_models import keep_counts_of
from norm_plugin.norms.base.contract import AffineNorm, InferenceAffine, valid_positions
from norm_plugin.norms.base.loss_scale import (
    observe_scalers,
    observed_loss_scale,
    trains_in_float16,
)
from norm_plugin.norms.base.means import (
    is_finite,
    masked_means,
    update_running_average,
    zero_padding,
)
from norm_plugin.norms.base.optimizer_steps import count_steps_of
from norm_plugin.norms.base.recomputation import Forwards
from norm_plugin.norms.base.workers import (
    Sync,
    WorkerGroup,
    sum_over_workers,
    worker_count,
)

Computed = TypeVar("Computed")

HALF = (torch.float16, torch.bfloat16)
MOST_UPDATES = 10**12
"""More updates than any training run has."""


class BatchStatisticsNorm(AffineNorm):
    """A norm that takes statistics over the positions of a batch, and keeps running statistics.

    In training, padded positions are 0 before gamma and beta, and no mean includes them, unless the
    file of a norm says otherwise.

    Each training forward updates the running statistics once. A recomputed forward does not, nor
    does a batch without a real position. Running statistics are the floating-point buffers. They
    are kept in float32 or wider: ``model.half()`` does not convert them.

    The norm counts optimizer updates. Under fairseq the trainer reports them through
    :meth:`set_num_updates`. Elsewhere each step of a ``torch.optim.Optimizer`` that holds one of
    the norm's own parameters counts as one, however many forwards precede it; steps inside that
    step and the steps of another optimizer, with the norm's other parameter, do not count again.
    Until the first such step, and if there is none (frozen parameters, an optimizer of another
    kind, a compiled step, FSDP's flat parameters), every training forward counts as one. The count
    is the integer buffer ``num_updates``, which is part of the checkpoint.

    Attributes:
        forward_updated_buffers: names of the buffers that training forwards update, except
            ``num_updates``. :meth:`start_cumulative_average` makes them a mean over batches. If a
            class names none, its statistics cannot become such a mean.
        running_buffers: maps a batch statistic, ``mean``, ``variance`` or ``square`` (the mean
            square), to the name of the buffer with its running form, for recording.
        mixes_after_warmup: False if a training forward after the warm-up normalizes with
            statistics of earlier batches only, so that its output at one position depends on no
            other position of the batch.
        counts_forwards: every training forward counts as an update, whatever a trainer or an
            optimizer does.
        ghost_batch_tokens: N, the statistics are those of groups of N tokens; None: of the whole
            batch. See :func:`set_ghost_batch_tokens`.
        averaged_forwards: forwards since :meth:`start_cumulative_average` whose statistics are
            usable: of a position, and finite; None: it was not called.
        loss_scale: the factor by which the loss is multiplied before its backward pass, as in
            mixed precision. None: that of the ``torch.amp.GradScaler`` that multiplied it, or 1;
            any other code that multiplies it must set this, see :func:`set_loss_scale`.
            Statistics of gradients are kept in units of the unscaled loss.
        accumulation: the number of backward passes per update, if each loss is divided by it, see
            :func:`set_accumulation`; None: unknown, and taken as 1.
        loss_is_summed: whether the loss is a sum over positions, as is that of fairseq, whose
            models and trainer say so here; False: it is a mean.
        group_count: the number of groups of the running forward, see ``ghost_batch_tokens``.

    Args:
        dim: number of channels.
        warmup_updates: updates during which the batch's own statistics normalize.
        sync: ``on`` takes statistics over the positions of all workers, forward and backward,
            so that all workers hold the same running statistics; :func:`set_process_group`
            chooses the workers.
    """

    batch_statistics: ClassVar[bool] = True
    mixes_after_warmup: ClassVar[bool] = True
    counts_forwards: ClassVar[bool] = False
    forward_updated_buffers: ClassVar[tuple[str, ...]] = ()
    running_buffers: ClassVar[Mapping[str, str]] = {}
    num_updates: Tensor

    def __init__(self, dim: int, *, warmup_updates: int = 0, sync: str = "off") -> None:
        super().__init__(dim)
        if warmup_updates < 0:
            raise ValueError(f"warmup_updates is {warmup_updates}; it must be 0 or more")
        self.warmup_updates = warmup_updates
        self.sync: Sync = sync == "on"
        self.ghost_batch_tokens: int | None = None
        self.loss_scale: float | Tensor | None = None
        self.accumulation: int | None = None
        self.loss_is_summed = False
        self.group_count = 1
        self.register_buffer("num_updates", torch.zeros((), dtype=torch.int64))
        self._begin_counting()
        count_steps_of(self)
        keep_counts_of(BatchStatisticsNorm)

    def _begin_counting(self) -> None:
        """Set what the norm knows of its training beside its parameters and buffers: nothing."""
        # The same count as a Python number: reading a tensor would wait for the GPU. It is valid
        # for that buffer in that version; a changed or another buffer is read again.
        self._count_read: tuple[Tensor | None, int, int] = (None, 0, 0)
        self._trainer_counts = self._optimizer_counts = False
        self._reported: int | None = None  # by a trainer; the buffer does not hold it yet
        self._forwards_counted = 0  # by this object; not needed after an optimizer's step
        self._was_frozen = False  # in the forward before
        self._stepped: set[str] = set()  # parameters that optimizers stepped in this update
        self._forwards = Forwards()
        self._is_recomputed = False  # the running forward, by activation checkpointing
        self.averaged_forwards: int | None = None
        self._saw_positions: bool | Tensor = False  # since the last mean over workers

    def reset_parameters(self) -> None:
        """Begin anew: see :meth:`Norm.reset_parameters`; the count of updates too is 0."""
        super().reset_parameters()
        self._begin_counting()

    def __getstate__(self) -> dict[str, Any]:
        """Return the state of a norm to be copied or pickled."""
        self._write_count()
        return vars(self).copy()

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Restore a copied or unpickled norm, whose buffers have new version counters."""
        super().__setstate__(state)
        self._count_read = (None, 0, 0)
        count_steps_of(self)

    def _load_from_state_dict(
        self, state_dict: dict[str, Any], prefix: str, *args: Any, **kwargs: Any
    ) -> None:
        """Load the norm's entries as torch does; raise RuntimeError for impossible values.

        Otherwise a damaged or edited checkpoint would silently give NaN, or a norm whose warm-up
        never ends.
        """
        for name, _ in self.named_buffers(recurse=False):
            value = state_dict.get(f"{prefix}{name}")
            if isinstance(value, Tensor) and not value.is_meta:
                self._check_loaded(f"{prefix}{name}", name, value)
        self._write_count()
        if f"{prefix}num_updates" in state_dict:
            self._forwards_counted, self._stepped = 0, set()  # they are not in the loaded count
        super()._load_from_state_dict(state_dict, prefix, *args, **kwargs)
        for name, buffer in self.named_buffers(recurse=False):
            if buffer.dtype in HALF:  # loaded by assign=True, from a state in half precision
                self._buffers[name] = buffer.float()

    def _save_to_state_dict(self, *args: Any, **kwargs: Any) -> None:
        self._write_count()
        super()._save_to_state_dict(*args, **kwargs)

    def train(self, mode: bool = True) -> BatchStatisticsNorm:
        """Set whether the norm trains, as for any module."""
        if not mode:
            self._write_count()  # a compiled inference reads the buffer
        return super().train(mode)

    def _replicate_for_data_parallel(self) -> Any:
        """Return a replica for ``torch.nn.DataParallel``, as torch does.

        Raises:
            RuntimeError: the norm trains. Replicas are called in threads, which would take the
                padding mask and the statistics of each other's forward.
        """
        if self.training:
            raise RuntimeError(
                f"{type(self).__name__} does not train under torch.nn.DataParallel, whose threads "
                "would mix the statistics of their batches: train by DistributedDataParallel "
                "(start the program by torchrun), on one GPU (CUDA_VISIBLE_DEVICES=0), or with a "
                "norm over channels, such as 'layernorm' or 'rmsnorm'"
            )
        return super()._replicate_for_data_parallel()

    def _check_loaded(self, key: str, name: str, value: Tensor) -> None:
        advice = "the checkpoint is damaged or its training diverged; load another one"
        if not value.isfinite().all():
            raise RuntimeError(f"{key} has values that are NaN or infinite; {advice}")
        squares = {self.running_buffers.get(kind) for kind in ("variance", "square")}
        if (name in squares or not value.is_floating_point()) and (value < 0).any():
            raise RuntimeError(f"{key} has the value {value.min():g}, below 0; {advice}")
        if name == "num_updates" and (value > MOST_UPDATES).any():
            raise RuntimeError(
                f"{key} is {value.max():g}; it must be {MOST_UPDATES:g} or less, since no training "
                f"has more updates; {advice}"
            )

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the norm as any module; ``torch.compile`` leaves training, with hooks, to Python.

        A graph would be compiled anew for each norm, as hooks and norms keep a state in Python.
        """
        if self.training and torch.compiler.is_compiling():
            from norm_plugin.norms.base.outside_graph import run_uncompiled

            return run_uncompiled(partial(super().__call__, *args, **kwargs))
        return super().__call__(*args, **kwargs)

    def forward(
        self, x: Tensor, padding_mask: Tensor | None = None, batch_first: bool = False
    ) -> Tensor:
        """Normalize ``x`` and update the running statistics: see :meth:`Norm.forward`.

        Raises:
            TypeError: ``x`` is a DTensor in training.
        """
        if self.training and type(x).__name__ == "DTensor":
            raise TypeError(
                f"{type(self).__name__} has no statistics over the positions of a DTensor: leave "
                "this norm out of the plan of parallelize_module, so that it gets plain tensors, "
                "or choose a norm over channels, such as 'layernorm' or 'rmsnorm'"
            )
        if self.training and self.ghost_batch_tokens is not None:
            return self._forward_in_groups(x, padding_mask, batch_first, self.ghost_batch_tokens)
        return self._forward_batch(x, padding_mask, batch_first)

    def _forward_batch(
        self, x: Tensor, padding_mask: Tensor | None = None, batch_first: bool = False
    ) -> Tensor:
        if not self.training:
            return super().forward(x, padding_mask, batch_first)
        # Not by nn.Module's own setter, which costs a GPU's host as much as a launch
        vars(self)["_is_recomputed"] = again = self._forwards.begin(x, self.call)
        if again:
            return self._forward_again(x, padding_mask, batch_first)
        self._forwards.current.fused = self.fused
        if self.averaged_forwards is not None and self._is_usable(x, padding_mask, batch_first):
            self.averaged_forwards += 1
        y = super().forward(x, padding_mask, batch_first)
        self._count_forward()
        if self._saw_positions is not True:
            # With one worker nothing is averaged, so a batch of padding alone does not matter
            mask = None if worker_count() == 1 else padding_mask
            some = x.numel() > 0 if mask is None else ~mask.bool().all()
            self._saw_positions = self._saw_positions | some
        return y

    def _forward_again(self, x: Tensor, padding_mask: Tensor | None, batch_first: bool) -> Tensor:
        """Repeat a forward by the form that computed it first, with what that form has stored."""
        chosen, self.fused = self.fused, self._forwards.current.fused
        try:
            return super().forward(x, padding_mask, batch_first)
        finally:
            self.fused = chosen

    def _forward_in_groups(
        self, x: Tensor, padding_mask: Tensor | None, batch_first: bool, tokens: int
    ) -> Tensor:
        """Normalize the real positions in floor(n / N) groups of about equal size, at least one."""
        valid = None if padding_mask is None else valid_positions(x, padding_mask, batch_first)
        if valid is not None and not valid.any():
            return self._forward_batch(x, padding_mask, batch_first)
        by_time = x.dim() == 3 and not batch_first
        if by_time:  # each group holds the tokens of a few sentences, not the first ones of all
            x, valid = x.transpose(0, 1), None if valid is None else valid.t()
        rows = x.reshape(-1, x.size(-1)) if valid is None else x[valid]
        groups = rows.tensor_split(max(len(rows) // tokens, 1))
        # Activation checkpointing recomputes each group: keep as many batches as without groups
        self._forwards.capacity = max(self._forwards.capacity, Forwards.KEPT * len(groups))
        self.group_count = len(groups)
        try:
            normalized = torch.cat([self._forward_batch(group) for group in groups])
        finally:
            self.group_count = 1
        if valid is None:
            y = normalized.view(x.shape)
        else:
            y = self.bias.to(x.dtype).expand_as(x).clone()
            y[valid] = normalized
        return y.transpose(0, 1) if by_time else y

    def statistics_input(self, x: Tensor) -> Tensor:
        """Return the tensor whose batch statistics are taken. x: (..., C); returns (..., C)."""
        return x

    def start_cumulative_average(self) -> None:
        """Make the running statistics the plain mean over the training forwards from now on.

        The buffers that forwards update restart from 0, and the k-th forward has weight 1/k. The
        first forward normalizes as in a warm-up, the others as after it. None of them counts as
        an update.

        Raises:
            ValueError: the class does not declare ``forward_updated_buffers``.
        """
        if not self.forward_updated_buffers:
            raise ValueError(
                f"{type(self).__name__} cannot average its running statistics: it declares no "
                "forward_updated_buffers; name the buffers that training forwards update there"
            )
        for name in self.forward_updated_buffers:
            self.get_buffer(name).zero_()
        self.averaged_forwards = 0

    def _is_usable(self, x: Tensor, padding_mask: Tensor | None, batch_first: bool) -> bool:
        """Return whether the batch, if synchronized of all workers, has positions and is finite.

        Any other batch changes no statistic, so it must not have a weight in their mean.
        """
        valid = None if padding_mask is None else valid_positions(x, padding_mask, batch_first)
        wide = zero_padding(x.detach().float() if x.dtype in HALF else x.detach(), valid)
        square = self.statistics_input(wide).square()
        (mean,), count = masked_means([square], valid, self.sync)
        return bool((count > 0) & is_finite(mean))

    def effective_momentum(self, weight: float) -> float:
        """Return the weight of the current batch in a running statistic, in [0, 1].

        It is ``weight``, given by an option of the norm, or 1/k in a plain mean.
        """
        return 1 / self.averaged_forwards if self.averaged_forwards else weight

    def share_of_batch(self, weight: float) -> float | None:
        """Return :meth:`effective_momentum`; None in a recomputed forward: it updates nothing."""
        return None if self._is_recomputed else self.effective_momentum(weight)

    def update_running_statistic(
        self, buffer: Tensor, value: Tensor, weight: float, count: Tensor
    ) -> None:
        """Update a running statistic, buffer <- (1 - w) buffer + w value, in place.

        The buffer does not change in a forward that activation checkpointing recomputes, for an
        empty batch, or for a value that is not finite.

        Args:
            value: the statistic of the batch, in the shape of ``buffer``.
            weight: w; a plain mean uses 1/k instead, see :meth:`start_cumulative_average`.
            count: (), the number of real positions.
        """
        share = self.share_of_batch(weight)
        if share is not None:
            update_running_average(buffer, value, share, count)

    def average_over_workers(self) -> None:
        """Replace the running statistics by their mean over workers; all workers must call this.

        The mean is over the workers that saw a position since the last call. If no worker did,
        the statistics do not change.
        """
        saw = torch.as_tensor(self._saw_positions, device=self.weight.device)
        self._saw_positions = False
        for name, buffer in self.named_buffers(recurse=False):
            if buffer.is_floating_point():
                counts = (saw & self.holds_values(name)).to(buffer.dtype)
                workers = sum_over_workers(counts)
                total = sum_over_workers(torch.where(counts > 0, buffer, 0.0))
                buffer.copy_(torch.where(workers > 0, total / workers.clamp(min=1), buffer))
        for name, buffer in self.named_buffers(recurse=False):
            if name != "num_updates" and not buffer.is_floating_point():
                dist.all_reduce(buffer, dist.ReduceOp.MAX)

    def holds_values(self, buffer: str) -> Tensor:
        """Return where buffer ``buffer`` holds a value of some batch, bool, broadcastable to it."""
        return torch.ones((), dtype=torch.bool, device=self.weight.device)

    def compute_once_per_forward(self, compute: Callable[[], Computed]) -> Computed:
        """Return ``compute()``, called once for each training forward.

        A forward that activation checkpointing recomputes gets the value of the first one, since it
        must use the same statistics and update none.
        """
        if not self._is_recomputed:
            self._forwards.current.value = compute()
        computed: Computed = self._forwards.current.value
        return computed

    def loss_scale_later(self) -> Callable[[], float | Tensor]:
        """Return a function that gives the loss scale when the backward pass calls it.

        Call this in a training forward. The loss scale is ``loss_scale``, or if that is None the
        scale of the ``torch.amp.GradScaler`` that multiplied the loss, or else 1, divided by
        ``accumulation``. A warning is given if the forward computes in float16, which needs a loss
        scale, and none is known.
        """
        observe_scalers()
        lacks_scale = self.loss_scale is None and trains_in_float16(self.weight)
        return partial(self._loss_scale_now, lacks_scale)

    def _loss_scale_now(self, lacks_scale: bool) -> float | Tensor:
        scale = observed_loss_scale() if self.loss_scale is None else self.loss_scale
        if scale is None and lacks_scale:
            warnings.warn(
                f"{type(self).__name__} trains in float16, and no torch.amp.GradScaler multiplied "
                "the loss. If something else multiplies it, statistics of gradients and penalties "
                "are wrong: call norm_plugin.norms.set_loss_scale(model, factor) before each "
                "backward pass; if nothing does, call set_loss_scale(model, 1.0) once",
                stacklevel=2,
            )
        scale = 1.0 if scale is None else scale
        if self.accumulation is not None:
            scale = scale / self.accumulation
        return scale.to(self.weight.device) if isinstance(scale, Tensor) else scale

    @property
    def updates_counted(self) -> int:
        """``num_updates`` as a number; reading it waits for the device only if it changed.

        It is what a trainer has reported, else the buffer, whose last reading is kept with the
        version of the tensor.
        """
        if self._reported is not None:
            return self._reported
        buffer, version, count = self._count_read
        if self.num_updates.is_meta:
            return count
        now = -1 if self.num_updates.is_inference() else self.num_updates._version
        if buffer is not self.num_updates or version != now or now < 0:
            if _has_no_values(self.num_updates):
                return count
            count = int(self.num_updates.item())
            self._count_read = (self.num_updates, now, count)
        return count

    @property
    def in_warmup(self) -> bool:
        """Whether the statistics of the batch itself normalize it."""
        if self.averaged_forwards is not None:
            return self.averaged_forwards <= 1
        return self.warmup_updates > 0 and self.updates_counted < self.warmup_updates

    def channel_map(
        self, square: Tensor, eps: float, mean: float | Tensor = 0.0
    ) -> InferenceAffine:
        """Return the map gamma * (x - mean) / sqrt(square + eps) + beta. square, mean: (C,)."""
        gain = self.weight.detach().double() / (square.double() + eps).sqrt()
        return InferenceAffine(gain, self.bias.detach().double() - gain * mean)

    def set_num_updates(self, num_updates: int) -> None:
        """Set the number of updates done so far; fairseq calls this before each forward.

        The buffer gets the number when it is saved or copied: to write it would be a kernel per
        norm and update.
        """
        if not self.counts_forwards and num_updates != self._reported:
            # Not by nn.Module's own setter, which costs a GPU's host as much as a launch
            vars(self).update(_trainer_counts=True, _reported=num_updates)

    def _write_count(self) -> None:
        reported, self._reported = self._reported, None
        if reported is not None:
            self._count(reported)

    def _count_forward(self) -> None:
        """Count one training forward as an update, unless a trainer or an optimizer counts them."""
        counted = self._trainer_counts or self._optimizer_counts
        if not counted and self.averaged_forwards is None:
            frozen = not any(own.requires_grad for own in self.parameters())
            if self._was_frozen and not frozen:  # what an optimizer counts now begins here
                self._forwards_counted = 0
            self._was_frozen = frozen
            self._forwards_counted += 1
            self._count(self.updates_counted + 1)

    @property
    def counts_steps(self) -> bool:
        """Whether the steps of optimizers count."""
        others = self.counts_forwards or self._trainer_counts
        return not others and self.averaged_forwards is None

    def count_step(self, parameters: set[str]) -> None:
        """Count one step of optimizers that hold ``parameters``, names of this norm's own ones.

        The parameters may be in several optimizers. A step of those that have not been stepped
        since the last update began is part of that update; any other step begins a new one. The
        first step replaces the forwards that were counted before it, since the norm was unfrozen.
        """
        if not self.counts_steps:
            return
        if self._stepped and self._stepped.isdisjoint(parameters):
            self._stepped = self._stepped | parameters
            return
        self._stepped = parameters
        self._count(self.updates_counted - self._forwards_counted + 1)
        self._optimizer_counts, self._forwards_counted = True, 0

    def _count(self, num_updates: int) -> None:
        if num_updates != self.updates_counted and not _has_no_values(self.num_updates):
            self.num_updates.fill_(num_updates)
            known = 0 if self.num_updates.is_inference() else self.num_updates._version
            self._count_read = (self.num_updates, known, num_updates)

    def register_buffer(self, name: str, tensor: Tensor | None, persistent: bool = True) -> None:
        """Add a buffer as torch does, in float32 if it is in half precision.

        Under a default dtype of half precision, as where ``from_pretrained`` of transformers builds
        a model, so is every new tensor.
        """
        if tensor is not None and tensor.dtype in HALF:
            tensor = tensor.float()
        super().register_buffer(name, tensor, persistent)

    def _apply(self, fn: Callable[..., Any], *args: Any, **kwargs: Any) -> BatchStatisticsNorm:
        self._write_count()
        before = {name: buffer for name, buffer in self._buffers.items() if buffer is not None}
        super()._apply(fn, *args, **kwargs)
        for name, old in before.items():
            new = self._buffers[name]
            if new is not None and new.dtype in HALF:
                self._buffers[name] = old.to(new.device)
        return self


def _has_no_values(tensor: Tensor) -> bool:
    """Return whether ``tensor`` is a FakeTensor, or becomes one in the next operation."""
    mode = torch._C._get_dispatch_mode(torch._C._TorchDispatchModeKey.FAKE)
    return mode is not None or type(tensor).__name__ == "FakeTensor"


def average_running_statistics(module: nn.Module) -> None:
    """Average running statistics that are not synchronized over the workers.

    All workers must call this before validation and saving, so that neither depends on which
    worker does it. A worker that had no data since the last call does not count. Counts of
    updates, equal on all workers, do not change. With one worker nothing is done.
    """
    if worker_count() == 1:
        return
    for norm in module.modules():
        if isinstance(norm, BatchStatisticsNorm) and not norm.sync:
            norm.average_over_workers()


def set_ghost_batch_tokens(module: nn.Module, tokens: int) -> None:
    """Let every norm in ``module`` take its batch statistics over groups of ``tokens`` tokens.

    The real positions of a batch, sentence by sentence, are cut into groups. Each is normalized as
    a batch of its own, one after the other: with its own statistics, and with one update of the
    running statistics. This corresponds to a run with ``--max-tokens N`` and as many batches per
    update (``--update-freq``), which is how the PowerNorm paper varies the batch of the statistics
    (Figure 5); here the sentences of a batch stay together, whatever N is. The statistics are no
    longer synchronized, since workers have different numbers of groups.
    """
    for norm in module.modules():
        if isinstance(norm, BatchStatisticsNorm):
            norm.ghost_batch_tokens, norm.sync = tokens, False


def set_loss_scale(module: nn.Module, scale: float | Tensor | None) -> None:
    """Tell every norm in ``module`` the factor by which the loss is multiplied.

    Call it before each backward pass of a loss that is multiplied by anything but a
    ``torch.amp.GradScaler`` and the division of :func:`set_accumulation`.

    Args:
        scale: the factor, a number or (); None: that of the GradScaler that multiplies the loss.
    """
    for norm in module.modules():
        if isinstance(norm, BatchStatisticsNorm):
            norm.loss_scale = scale


def set_accumulation(module: nn.Module, backward_passes: int) -> None:
    """Tell every norm in ``module`` that each update accumulates the gradients of several losses.

    A penalty on statistics must have the same factor as the loss. Call this once, before training.

    Args:
        backward_passes: the number N of backward passes per update if each loss is divided by N,
            as ``accelerate`` and the ``Trainer`` of transformers do; 1 if losses are not divided.

    Raises:
        ValueError: the number is below 1.
    """
    if backward_passes < 1:
        raise ValueError(f"backward_passes is {backward_passes}; it must be 1 or more")
    for norm in module.modules():
        if isinstance(norm, BatchStatisticsNorm):
            norm.accumulation = backward_passes


def set_process_group(module: nn.Module, group: dist.ProcessGroup) -> None:
    """Let every norm in ``module`` that synchronizes do so over the workers of ``group`` alone.

    As ``process_group`` of ``nn.SyncBatchNorm``: for several trainings, pipelines or model-parallel
    parts in one job. Every worker of the group must call the norms equally often.
    """
    for norm in module.modules():
        if isinstance(norm, BatchStatisticsNorm) and norm.sync:
            norm.sync = WorkerGroup(group)
