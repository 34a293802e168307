"""Inputs that are no plain tensors: subclasses, FakeTensor, DTensor."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed.tensor import DTensor, distribute_module
from torch.distributed.tensor.parallel import SequenceParallel, parallelize_module

from batches import state_of
from norm_plugin.kernels.fused_forms import _FORMS, Fused
from norm_plugin.norms import NORM_TYPES, build_norm, norm_spec

DIM = 8
every_norm = pytest.mark.parametrize("name", NORM_TYPES)
FORMS = [*((name, False) for name in NORM_TYPES), ("rmsnorm", True), ("powernorm", True)]
"""Every norm in plain torch, and two fused: no form decides which tensors kernels take."""
every_form = pytest.mark.parametrize(("name", "fused"), FORMS)
in_both_modes = pytest.mark.parametrize("training", [True, False])


def new_norm(name, fused, training=True):
    norm = build_norm(name, DIM).train(training)
    if fused:
        norm.fused = Fused(_FORMS[type(norm)], "cpu")
    return norm


class Marked(torch.Tensor):
    """A tensor of a user."""


@every_form
@in_both_modes
def test_a_subclass_of_tensor_comes_back_as_one(name, fused, training):
    norm, plain = (new_norm(name, form, training) for form in (fused, False))
    values = torch.randn(5, 3, DIM)
    x, x_plain = values.as_subclass(Marked).requires_grad_(), values.clone().requires_grad_()
    for _ in range(2):
        y, expected = norm(x), plain(x_plain)
        assert type(y) is Marked and torch.equal(y.as_subclass(torch.Tensor), expected)
        y.square().sum().backward()
        expected.square().sum().backward()
    assert torch.equal(x.grad.as_subclass(torch.Tensor), x_plain.grad)
    for key, value in state_of(plain).items():
        buffer = norm.get_buffer(key)
        assert type(buffer) is torch.Tensor and torch.equal(buffer, value), key


@every_form
@in_both_modes
def test_a_tensor_on_meta_has_a_shape(name, fused, training):
    norm = new_norm(name, fused, training).to("meta")
    x = torch.randn(5, 3, DIM, device="meta", requires_grad=True)
    y = norm(x)
    y.sum().backward()
    assert (y.shape, x.grad.shape) == (x.shape, x.shape)


@pytest.mark.parametrize(
    ("name", "fused", "real"),
    [
        *((*form, False) for form in FORMS),
        *((*form, True) for form in FORMS if norm_spec(form[0]).batch_statistics),
    ],
)
@in_both_modes
def test_a_fake_tensor_has_a_shape_and_counts_nothing(name, fused, real, training):
    norm = new_norm(name, fused, training)
    before = state_of(norm)
    with FakeTensorMode(allow_non_fake_inputs=real):
        if not real:
            norm = new_norm(name, fused, training)
        for _ in range(2):
            x = torch.randn(5, 3, DIM, requires_grad=True)
            y = norm(x)
            y.sum().backward()
            assert (y.shape, x.grad.shape) == (x.shape, x.shape)
    if real:
        assert all(torch.equal(value, before[key]) for key, value in state_of(norm).items())
        norm(torch.randn(5, 3, DIM))
        assert norm.updates_counted == training


@pytest.fixture(scope="module")
def mesh():
    """A mesh of this process alone."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield dist.device_mesh.init_device_mesh("cpu", (1,))
    dist.destroy_process_group()


@every_form
def test_sequence_parallelism(name, fused, mesh):
    norm, plain = new_norm(name, fused), new_norm(name, False)
    model = parallelize_module(nn.Sequential(norm), mesh, {"0": SequenceParallel()})
    x = torch.randn(3, 5, DIM)
    if norm_spec(name).batch_statistics:
        with pytest.raises(TypeError, match="has no statistics over the positions of a DTensor"):
            model(x)
        return
    y, expected = model(x), plain(x)
    assert isinstance(y, DTensor) and torch.equal(y.to_local(), expected)


@every_norm
def test_distributed_parameters_get_their_initial_values(name, mesh):
    norm = distribute_module(build_norm(name, DIM), mesh)
    with torch.no_grad():
        for tensor in (*norm.parameters(), *norm.buffers()):
            tensor.fill_(-13)
    norm.reset_parameters()
    for (key, value), expected in zip(norm.named_parameters(), build_norm(name, DIM).parameters()):
        assert isinstance(value, DTensor) and torch.equal(value.full_tensor(), expected), key
