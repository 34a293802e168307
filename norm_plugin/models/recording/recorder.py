"""The recorder: it measures norms and layers in every N-th update.

It adds hooks to the model before such an update and removes them after it, so other updates cost
nothing. The hooks read the inputs of norms and the gradients that pass, whatever computes the norm,
and change nothing: a run trains the same weights with and without recording.

Only the first worker records, and only the first batch of an update (``--update-freq``). Batch
statistics are those of its own positions, in a synchronized norm too. Gradients are those of the
loss per token (or per whatever the criterion counts as its sample size), without the loss scale of
mixed precision.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from norm_plugin.models.layers import PlannedLayer
from norm_plugin.models.norm_model import NormModel, describe_plan
from norm_plugin.models.plan import Plan
from norm_plugin.models.recording.file import RecordFile
from norm_plugin.models.recording.measures import (
    Measures,
    gradient_parts,
    moments,
    quantiles,
    real_rows,
    root_mean_square,
    statistics_measures,
)
from norm_plugin.norms import Norm
from norm_plugin.norms.base.contract import valid_positions
from norm_plugin.norms.base.recomputation import is_recomputing
from norm_plugin.norms.base.statistics import BatchStatisticsNorm

EPS = 1e-5
"""The eps in the roots for a norm that has no eps of its own."""
DIGITS = 5


class Recorder:
    """Makes the records of a run, as ``plan.record`` says, and appends them to ``file``."""

    def __init__(self, model: NormModel, plan: Plan, file: RecordFile) -> None:
        assert plan.record is not None
        self.model, self.file, self.every = model, file, plan.record.every
        self.norms = recorded_norms(model, plan)
        modules = model.named_modules()
        self.layers = {path: each for path, each in modules if isinstance(each, PlannedLayer)}
        self.active = False
        self._start()

    def _start(self, loss_scale: float | Tensor = 1.0) -> None:
        self.measures: dict[str, dict[str, Measures]] = {"sites": {}, "layers": {}}
        self.hooked: set[str] = set()
        self.loss_scale = loss_scale
        self.unit: float | Tensor | None = None  # gradients are divided by it

    @contextmanager
    def recording(
        self, criterion: nn.Module, updates: Callable[[], int], loss_scale: float | Tensor
    ) -> Iterator[None]:
        """Return a context for the computation of one update, which is recorded if it is due.

        Args:
            criterion: its output begins with the loss and the sample size.
            updates: returns the number of updates done; a skipped update, as after an overflow, is
                not recorded.
            loss_scale: the factor on the loss in the backward pass.
        """
        updates_before = updates()
        if self.active or updates_before % self.every:
            if self.active:  # the trainer repeats the same batch
                self._start(loss_scale)
            yield
            return
        self._start(loss_scale)
        self.active = True
        handles = [*self._attach_hooks(), criterion.register_forward_hook(self._take_sample_size)]
        try:
            yield
        finally:
            self.active = False
            for handle in handles:
                handle.remove()
        if updates() > updates_before:
            self.file.append({"update": updates_before + 1, **as_numbers(self.measures)})

    def _attach_hooks(self) -> Iterator[Any]:
        for path, norm in self.norms.items():
            yield norm.register_forward_pre_hook(partial(self._record_input, path))
            yield norm.register_forward_hook(partial(self._attach_to_output, path))
        for path, layer in self.layers.items():
            yield layer.register_forward_hook(partial(self._record_layer, path))
            for name, weight in layer.named_parameters():
                if weight.requires_grad and weight.dim() > 1:
                    yield weight.register_hook(partial(self._record_weight, path, name))

    def _take_sample_size(self, _: nn.Module, __: Any, output: Sequence[Any]) -> None:
        """Get the sample size of the first batch from the criterion's output: a hook."""
        if self.unit is None:
            self.unit = output[1] * self.loss_scale

    def _is_first_batch(self) -> bool:
        return self.unit is None and not is_recomputing()

    def _record_input(self, path: str, norm: Norm, inputs: tuple[Any, ...]) -> None:
        """Record a norm's state before its forward updates the running statistics: a hook."""
        if not norm.training:  # a frozen part, or a task that generates
            return
        x, valid = positions_of(inputs)
        sites = self.measures["sites"]
        if not self._is_first_batch() or path in sites:
            return
        rows = real_rows(x, valid)
        if len(rows):
            with torch.no_grad():
                sites[path] = forward_measures(norm, rows)

    def _attach_to_output(self, path: str, norm: Norm, inputs: tuple[Any, ...], y: Tensor) -> None:
        """Record a norm after its forward; with checkpointing only a recomputed one has a graph."""
        if not norm.training:
            return
        (x, valid), measures = positions_of(inputs), self.measures["sites"].get(path)
        wanted = self.unit is None or is_recomputing()
        in_graph = x.requires_grad and y.requires_grad and y is not x
        if measures is None or not wanted or path in self.hooked or not in_graph:
            return
        self.hooked.add(path)
        y.register_hook(partial(self._record_gradient, measures, norm, x.detach(), valid))

    def _record_gradient(
        self, measures: Measures, norm: Norm, x: Tensor, valid: Tensor | None, grad: Tensor
    ) -> None:
        """Record the gradient by the output of a norm with the input x, (T, B, C): a hook."""
        with torch.no_grad():
            grads = self._per_token(real_rows(grad, valid))
            gamma = gamma_of(norm)
            g = grads if gamma is None else grads * gamma.to(grads.dtype)
            u = measured(norm, real_rows(x, valid))
            measures.update(gradient_parts(g, u, moments(u), getattr(norm, "eps", EPS)))

    def _record_layer(self, path: str, layer: nn.Module, _: Any, output: Any) -> None:
        hidden = output[0] if isinstance(output, tuple) else output
        layers = self.measures["layers"]
        if not layer.training or not self._is_first_batch() or path in layers:
            return
        stack = self.model.stack(path.split(".")[0])
        mask = stack.padding.mask
        valid = None if mask is None else valid_positions(hidden, mask)
        rows = real_rows(hidden, valid)
        measures = layers[path] = {"hidden_rms": root_mean_square(rows)}
        if hidden.requires_grad:
            hidden.register_hook(partial(self._record_hidden_gradient, measures, valid))

    def _record_hidden_gradient(
        self, measures: Measures, valid: Tensor | None, grad: Tensor
    ) -> None:
        rows = self._per_token(real_rows(grad, valid))
        measures["hidden_gradient_norm"] = torch.linalg.vector_norm(rows)

    def _record_weight(self, path: str, name: str, grad: Tensor) -> None:
        """Record the gradient of a weight by one backward pass, before others are added to it."""
        measures = self.measures["layers"].get(path)
        if measures is not None:
            norm = torch.linalg.vector_norm(self._per_token(grad.detach().float()))
            measures.setdefault(f"{name}_gradient_norm", norm)

    def _per_token(self, grad: Tensor) -> Tensor:
        if self.unit is None:
            raise RuntimeError(
                "--norm-record: a backward pass preceded the call of the criterion, so the "
                "number of tokens is unknown; train this task without --norm-record"
            )
        return grad / self.unit


def make_recorder(trainer: Any) -> Recorder | None:
    """Return the recorder of a fairseq run, or None if this worker records nothing.

    Raises:
        ValueError: the file has the records of another run.
    """
    model = trainer.get_model()
    plan = getattr(getattr(model, "cfg", None), "plan", None)
    if plan is None or plan.record is None or not trainer.is_data_parallel_master:
        return None
    header = {
        "every": plan.record.every,
        "norms": describe_plan(plan),
        "sites": {path: norm.dim for path, norm in recorded_norms(model, plan).items()},
    }
    path = plan.record.path(trainer.cfg.checkpoint.save_dir)
    return Recorder(model, plan, RecordFile(path, header))


def recorded_norms(model: nn.Module, plan: Plan) -> dict[str, Norm]:
    """Return the norms that the plan records, by their paths in the model.

    Norms of queries and keys normalize per head, and are not recorded.
    """
    assert plan.record is not None
    taken = [
        choice.site
        for choice in plan.sites
        if plan.record.includes(choice.site) and not choice.site.in_attention
    ]
    return {
        path: module
        for path, module in model.named_modules()
        if isinstance(module, Norm) and any(site.is_at(path) for site in taken)
    }


def positions_of(inputs: tuple[Any, ...]) -> tuple[Tensor, Tensor | None]:
    """Return x and its real positions, from the inputs of a norm in fairseq's stacks."""
    x, mask, batch_first = inputs
    return x, None if mask is None else valid_positions(x, mask, batch_first)


def measured(norm: Norm, rows: Tensor) -> Tensor:
    """Return the rows, (n, C), of which ``norm`` takes, or would take, batch statistics."""
    return norm.statistics_input(rows) if isinstance(norm, BatchStatisticsNorm) else rows


def forward_measures(norm: Norm, rows: Tensor) -> Measures:
    """Return the measures of a norm's input, (n, C), before the norm's forward."""
    batch = moments(measured(norm, rows))
    running = {}
    if isinstance(norm, BatchStatisticsNorm):
        running = {name: norm.get_buffer(at) for name, at in norm.running_buffers.items()}
    measures = {
        "positions": rows.new_tensor(float(len(rows))),
        **statistics_measures(batch, running),
    }
    gamma = gamma_of(norm)
    if gamma is not None and gamma.numel() == norm.dim:
        psi = (batch.square + getattr(norm, "eps", EPS)).sqrt()
        measures["gamma_over_psi"] = quantiles(gamma.to(rows.dtype) / psi)
    return measures


def gamma_of(norm: Norm) -> Tensor | None:
    """Return the gain per channel, (C,), or None if the norm has no ``weight``."""
    weight: Tensor | None = getattr(norm, "weight", None)
    return None if weight is None else weight + norm.weight_offset


def as_numbers(measures: Mapping[str, Mapping[str, Measures]]) -> dict[str, Any]:
    """Return the measures as rounded numbers and lists, fetched from the device in one copy."""
    tensors = [
        tensor
        for places in measures.values()
        for by_name in places.values()
        for tensor in by_name.values()
    ]
    flat = [tensor.detach().double().reshape(-1) for tensor in tensors]
    values = iter(torch.cat(flat).tolist() if flat else [])

    def rounded(tensor: Tensor) -> float | list[float]:
        numbers = [float(f"{next(values):.{DIGITS}g}") for _ in range(tensor.numel())]
        return numbers if tensor.dim() else numbers[0]

    return {
        part: {
            path: {name: rounded(tensor) for name, tensor in by_name.items()}
            for path, by_name in places.items()
        }
        for part, places in measures.items()
    }
