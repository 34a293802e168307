"""The autograd function of fused norms, in Python and as a node in C++: what autograd promises."""

import gc
import weakref

import pytest
import torch
from torch.utils.checkpoint import checkpoint

from norm_plugin.kernels import choice, set_kernels
from norm_plugin.kernels.cpu import loading
from norm_plugin.kernels.fused import columns, function, pointwise, rows
from norm_plugin.kernels.passes import RowRule
from norm_plugin.norms import build_norm

DIM = 8
NORMS = ("rmsnorm", "derf", "batchnorm", "powernorm")


def use(which, monkeypatch):
    """Compute fused norms by the node in C++, or by the function in Python."""
    native = loading.load()[0]
    if native is None:
        pytest.skip("the C++ extension is not built")
    chosen = native.fused_norm if which == "C++" else function.FusedNorm.apply
    for module in (columns, pointwise, rows):
        monkeypatch.setattr(module, "fused_norm", chosen)


@pytest.fixture(params=["C++", "Python"])
def fused_norm(request, monkeypatch):
    """Compute fused norms by one of the two."""
    use(request.param, monkeypatch)


def trained(name, x, steps=3):
    """Return the norm, and y and the gradients of each step; x: (T, B, C), of any layout."""
    torch.manual_seed(1)
    norm = build_norm(name, DIM).train().to(x.dtype)
    set_kernels(norm, "cpu")
    results = []
    for _ in range(steps):
        leaf = x.clone(memory_format=torch.preserve_format).requires_grad_()
        y = norm(leaf)
        y.square().sum().backward()
        results += [y.detach(), leaf.grad, *(each.grad for each in norm.parameters())]
        norm.zero_grad()
    return norm, results


@pytest.mark.parametrize("name", NORMS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_node_computes_what_the_function_does(name, dtype, monkeypatch):
    torch.manual_seed(0)
    x = torch.randn(6, DIM, 5).transpose(1, 2).to(dtype)
    found = {}
    for which in ("C++", "Python"):
        use(which, monkeypatch)
        norm, found[which] = trained(name, x)
        found[which] += list(norm.buffers())
    for node, python in zip(found["C++"], found["Python"], strict=True):
        assert torch.equal(node, python) and node.dtype == python.dtype


def forward(name="rmsnorm", requires_grad=True):
    norm = build_norm(name, DIM).train()
    set_kernels(norm, "cpu")
    x = torch.randn(4, 3, DIM, requires_grad=requires_grad)
    return norm, x, norm(x * 1)


def test_a_second_backward_pass_needs_the_graph(fused_norm):
    _, x, y = forward()
    first = torch.autograd.grad(y.sum(), x, retain_graph=True)[0]
    assert torch.equal(torch.autograd.grad(y.sum(), x)[0], first)
    with pytest.raises(RuntimeError, match="backward through the graph a second time"):
        torch.autograd.grad(y.sum(), x)


def test_gradients_of_several_outputs_at_once_are_refused(fused_norm):
    _, x, y = forward()
    dy = torch.ones(2, *y.shape)
    with pytest.raises(RuntimeError, match="no gradients of several outputs at once"):
        torch.autograd.grad(y, x, dy, is_grads_batched=True)


def test_an_input_of_another_layout_is_copied_once(fused_norm):
    norm, _, _ = forward()
    x = torch.randn(3, 4, DIM).transpose(0, 1).requires_grad_()
    saved = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: saved.append(t) or t, lambda t: t):
        norm(x).sum().backward()
    assert all(each.is_contiguous() for each in saved if each.dim() == 3)
    assert torch.equal(x.grad, torch.autograd.grad(norm(x.contiguous()).sum(), x)[0])


def test_an_input_that_was_changed_is_an_error(fused_norm):
    norm, x, _ = forward()
    middle = x * 1
    y = norm(middle)
    middle.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


class Dropped(torch.autograd.Function):
    """Pass its input on, and no gradient back."""

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, dy):
        return None


def test_no_gradient_of_y_is_zero(fused_norm):
    norm, x, y = forward()
    Dropped.apply(y).sum().backward()
    assert torch.equal(norm.weight.grad, torch.zeros(DIM)) and torch.equal(x.grad, 0 * x)


def test_no_graph_without_a_gradient(fused_norm):
    norm, x, y = forward(requires_grad=False)
    assert y.requires_grad  # the parameters'
    with torch.no_grad():
        assert norm(x).grad_fn is None
    assert norm.requires_grad_(False)(x).grad_fn is None


def test_a_part_of_a_tensor_may_be_recomputed(fused_norm):
    """Without gradients, as in the first forward, such a view has no place in a graph."""

    def derivatives(recompute):
        norm = build_norm("powernorm", DIM)
        leaf = torch.ones(5, 3, 2 * DIM, requires_grad=True)

        def of_part(z):
            return norm(z.chunk(2, dim=-1)[0])

        z = leaf.cumsum(0)
        y = checkpoint(of_part, z, use_reentrant=True) if recompute else of_part(z)
        y.square().sum().backward()
        return leaf.grad, norm.nu

    assert all(map(torch.equal, derivatives(True), derivatives(False)))


@pytest.mark.parametrize("name", NORMS)
def test_a_norm_that_keeps_its_output_is_freed(name, fused_norm):
    norm, _, norm.kept = forward(name)
    norm.kept.sum().backward()
    gone = weakref.ref(norm)
    del norm
    gc.collect()
    assert gone() is None


@pytest.mark.parametrize("name", NORMS)
def test_an_error_of_a_pass_is_that_of_the_call(name, fused_norm, monkeypatch):
    def fail(*_):
        raise ValueError("the pass fails")

    _, _, y = forward(name)
    for passes in (rows.RowNorm, pointwise.Pointwise, columns.ByBatch, columns.ByRunning):
        monkeypatch.setattr(passes, "backward", fail)
        monkeypatch.setattr(passes, "forward", fail)
    with pytest.raises(ValueError, match="the pass fails"):
        y.sum().backward()
    with pytest.raises(ValueError, match="the pass fails"):
        forward(name)


def test_without_the_extension_it_is_the_function(monkeypatch):
    norm, _, y = forward()
    assert y.grad_fn.name() == "FusedNorm"
    monkeypatch.setattr(loading, "load", lambda: (None, "not built"))
    passes = rows.RowNorm(choice.BACKENDS["cpu"], RowRule(norm.eps))
    monkeypatch.setattr(passes, "forward", lambda x, *_: x.clone())
    y = function.fused_norm(passes, torch.ones(2, DIM, requires_grad=True), None, None)
    assert y.grad_fn.name() == "FusedNormBackward"


def test_a_recomputed_forward_stops_when_it_has_what_it_needs(fused_norm):
    """Activation checkpointing raises an error of its own in a hook, and catches it outside."""
    norm, x, _ = forward()
    after = []
    y = checkpoint(lambda x: (norm(x), after.append(1))[0], x, use_reentrant=False)
    y.sum().backward()
    assert len(after) == 1
