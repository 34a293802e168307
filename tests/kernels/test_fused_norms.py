"""Each fused form against its plain form: values, every gradient, statistics, layouts, errors."""

from __future__ import annotations

import pytest
import torch
from reference import CASES, WITH_MOMENTS
from torch.autograd import forward_ad
from torch.nn.utils.parametrize import register_parametrization
from torch.utils.checkpoint import checkpoint

from norm_plugin.kernels import has_fused_form, set_kernels
from norm_plugin.norms import build_norm, norm_spec, set_loss_scale

# The steps are the same code at each level of vector instructions: the long run, past every warm-up
# and window, is at the one that all machines have.
RUNS = [("plain", torch.float64, 25), ("avx2", torch.float32, 6), ("avx512", torch.float32, 6)]
DIM = 36  # which the options of every case divide, and no vector of the CPU does
FUSED = [
    (name, options)
    for name, options in CASES
    if has_fused_form(norm_spec(name).cls) and "blend_updates" not in options
]
# Both forms sum over up to 280 positions, in unlike orders. A sum of n terms rounds n times, by
# eps/2 of its size at most, and the errors, of either sign, gather as sqrt(n): 17 * 6e-8 in float32
# for each of the two forms. Statistics forget old errors as they move. float64 (1e-16) guards the
# formulas; it leaves room for psi and nu, which do not forget in all options.
TOLERANCE = {torch.float64: 1e-12, torch.float32: 2e-6}
every_fused = pytest.mark.parametrize(("name", "options"), FUSED, ids=str)
every_norm = pytest.mark.parametrize(("name", "options"), dict(reversed(FUSED)).items(), ids=str)
"""Each fused norm with the first of its options."""


def close(ours, theirs, what, dtype, terms=1):
    """terms: how many numbers of size 1, of either sign, each entry is the sum of."""
    tolerance = TOLERANCE[dtype]
    # Sums of n such terms are of size sqrt(n) on their way, and round accordingly, even where
    # the total is near 0: the gradient of one number is the sum over 10,080 of them
    largest = theirs.abs().max().item() if theirs.numel() else 0.0
    size = max(terms**0.5, largest)
    torch.testing.assert_close(
        ours.double(),
        theirs.double(),
        rtol=tolerance,
        atol=tolerance * size,
        msg=lambda m: f"{what}: {m}",
    )


def train_both(plain, fused, batches, dtype):
    """Compare everything that each step gives, also with a scaled loss and a repeated forward."""
    for step, (x, mask, g) in enumerate(batches):
        scale = 2.0 ** (step % 3)
        x_plain, x_fused = x.clone().requires_grad_(), x.clone().requires_grad_()
        for norm in (plain, fused):
            norm.zero_grad()
            set_loss_scale(norm, scale)
        y = plain(x_plain, mask)
        if step % 2:
            fused_y = checkpoint(fused, x_fused, mask, use_reentrant=False)
        else:
            fused_y = fused(x_fused, mask)
        y.backward(scale * g)
        fused_y.backward(scale * g)
        close(fused_y, y, f"y at step {step}", dtype)
        close(x_fused.grad, x_plain.grad, f"dx at step {step}", dtype)
        for (key, ours), theirs in zip(fused.named_parameters(), plain.parameters()):
            terms = x.numel() // ours.numel()
            close(ours.grad, theirs.grad, f"d{key} at step {step}", dtype, terms)
        for (key, ours), theirs in zip(fused.named_buffers(), plain.buffers()):
            close(ours, theirs, f"{key} after step {step}", dtype)


@every_fused
@pytest.mark.parametrize(("level", "dtype", "steps"), RUNS)
def test_values_gradients_and_statistics(name, options, level, dtype, steps, pair, draw, native):
    if not native.machine_has(level):
        pytest.skip(f"this machine has no {level}")
    native.use_level(level)
    plain, fused = pair(name, options, DIM, dtype)
    train_both(plain, fused, [draw(step, DIM, dtype) for step in range(steps)], dtype)
    plain.eval()
    fused.eval()
    x, mask, _ = draw(steps, DIM, dtype)
    with torch.no_grad():
        close(fused(x, mask), plain(x, mask), "y in inference", dtype)


@every_norm
def test_the_output_may_be_changed_in_place(name, options, pair, draw):
    """As fairseq's attention does with normalized queries, and ``nn.ReLU(inplace=True)``."""
    gradients = []
    for norm in pair(name, options, DIM):
        x, mask, g = draw(0, DIM)
        y = norm(x.requires_grad_(), mask)
        y *= 0.5
        y.backward(g)
        gradients.append(x.grad)
    close(*gradients, "dx", torch.float64)


class Halved(torch.nn.Module):
    def forward(self, parameter):
        return parameter / 2


@every_norm
def test_parameters_may_be_computed_from_others(name, options, pair, draw):
    """As torch's parametrizations and pruning do, which leave no parameter of that name."""
    results = []
    for norm in pair(name, options, DIM):
        for parameter in [key for key, _ in norm.named_parameters()]:
            register_parametrization(norm, parameter, Halved())
        x, mask, g = draw(0, DIM)
        y = norm(x.requires_grad_(), mask)
        y.backward(g)
        results.append([y.detach(), x.grad, *(p.grad for p in norm.parameters())])
    for plain, fused in zip(*results):
        close(fused, plain, "y or a gradient", torch.float64, terms=x.numel())


@pytest.mark.parametrize(
    ("name", "options"), [each for each in FUSED if norm_spec(each[0]).batch_statistics], ids=str
)
def test_an_overflow_updates_what_it_updates_in_the_plain_form(name, options, pair, draw):
    plain, fused = pair(name, options, DIM)
    for step, overflows in enumerate(("", "x", "", "g")):
        x, mask, g = draw(step + 4, DIM)
        if overflows:
            (x if overflows == "x" else g)[0, 0, 5] = torch.inf
        for norm in (plain, fused):
            norm(x.clone().requires_grad_(), mask).backward(g)
        for (key, ours), theirs in zip(fused.named_buffers(), plain.buffers()):
            assert ours.isfinite().all(), key
            close(ours, theirs, f"{key} after step {step}", torch.float64)


@every_fused
def test_inference_where_one_thing_learns(name, options, pair, draw):
    plain, fused = pair(name, options, DIM)
    x, mask, g = draw(0, DIM)
    plain(x, mask)
    fused.load_state_dict(plain.state_dict())
    for learning in ("x", *dict(plain.named_parameters())):
        gradients = []
        for norm in (plain.eval(), fused.eval()):
            leaves = {"x": x.clone(), **dict(norm.named_parameters())}
            for key, leaf in leaves.items():
                leaf.requires_grad_(key == learning)
            y = norm(leaves["x"], mask)
            assert y.requires_grad, learning
            gradients += torch.autograd.grad(y, leaves[learning], g)
        close(gradients[1], gradients[0], learning, torch.float64)


@every_fused
def test_x_without_gradient_moves_what_it_moves_in_the_plain_form(name, options, pair, draw):
    plain, fused = pair(name, options, DIM)
    batches = [draw(step, DIM) for step in (0, 1, 2, 4, 5, 6)]  # in a warm-up and after it
    for step, (x, mask, g) in enumerate(batches):
        for norm in (plain, fused):
            norm.zero_grad()
            y = norm(x.clone().requires_grad_(step % 2 == 0), mask)
            assert y.requires_grad == (step % 2 == 0 or any(True for _ in norm.parameters()))
            if y.requires_grad:
                y.backward(g)
        for (key, ours), theirs in zip(fused.named_parameters(), plain.parameters()):
            close(ours.grad, theirs.grad, f"d{key} at step {step}", torch.float64)
        for (key, ours), theirs in zip(fused.named_buffers(), plain.buffers()):
            close(ours, theirs, f"{key} after step {step}", torch.float64)


@every_norm
def test_inference_mode(name, options, pair, draw):
    """A norm in training updates its statistics without a graph, in torch's inference mode."""
    plain, fused = pair(name, options, DIM)
    with torch.inference_mode():
        for step, training in enumerate((True, True, False)):
            x, mask, _ = draw(step, DIM)
            y = plain.train(training)(x, mask)
            close(fused.train(training)(x, mask), y, f"y at step {step}", torch.float64)
        for (key, ours), theirs in zip(fused.named_buffers(), plain.buffers()):
            close(ours, theirs, key, torch.float64)


@every_norm
@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning")  # checks of shapes, made once
def test_a_trace_computes_what_the_norm_does(name, options, pair, draw):
    _, fused = pair(name, options, DIM)
    x, mask, _ = draw(0, DIM)
    fused(x, mask)
    fused.eval()
    traced = torch.jit.trace(fused, (x, mask))
    other, other_mask, _ = draw(1, DIM)
    with torch.no_grad():
        close(traced(other, other_mask), fused(other, other_mask), "y", torch.float64)


@every_norm
@pytest.mark.parametrize("layout", ["transposed", "strided", "expanded"])
def test_layout_does_not_matter(name, options, layout, pair, draw):
    x, mask, g = draw(0, DIM)
    strange = {
        "transposed": lambda v: v.transpose(0, 1).contiguous().transpose(0, 1),
        "strided": lambda v: torch.stack([v, v.new_full(v.shape, float("nan"))], 3)[..., 0],
        "expanded": lambda v: v[:1].expand_as(v),
    }[layout]
    plain, fused = pair(name, options, DIM)
    assert not strange(x).is_contiguous()
    x_plain = strange(x).contiguous().requires_grad_()
    x_fused = strange(x).detach().requires_grad_()
    y, fused_y = plain(x_plain, mask), fused(x_fused, mask)
    y.backward(strange(g).contiguous())
    fused_y.backward(strange(g))
    close(fused_y, y, "y", torch.float64)
    close(x_fused.grad, x_plain.grad, "dx", torch.float64)
    with torch.no_grad():
        close(
            fused.eval()(x_fused, mask),
            plain.eval()(x_plain, mask),
            "y in inference",
            torch.float64,
        )


@every_norm
@pytest.mark.parametrize("shape", [(0, 4, DIM), (3, 0, DIM)])
def test_nothing_in_is_nothing_out(name, options, shape, pair):
    _, fused = pair(name, options, DIM)
    before = {key: value.clone() for key, value in fused.named_buffers()}
    x = torch.zeros(shape, dtype=torch.float64, requires_grad=True)
    y = fused(x, torch.zeros(shape[1], shape[0], dtype=torch.bool))
    y.sum().backward()
    assert y.shape == shape and x.grad.shape == shape
    for parameter in fused.parameters():
        assert torch.equal(parameter.grad, torch.zeros_like(parameter))
    for key, value in fused.named_buffers():
        assert key == "num_updates" or torch.equal(value, before[key]), key


@every_norm
def test_a_second_derivative_is_refused(name, options, pair, draw):
    _, fused = pair(name, options, DIM)
    x, mask, _ = draw(0, DIM)
    y = fused(x.requires_grad_(), mask)
    with pytest.raises(RuntimeError, match="no second derivative.*NORM_KERNELS=off"):
        torch.autograd.grad(y.sum(), x, create_graph=True)


@every_norm
def test_a_forward_reads_no_saved_tensor_back(name, options, pair, draw):
    """Activation checkpointing without re-entry would recompute the forward within itself."""
    _, fused = pair(name, options, DIM)
    x, mask, _ = draw(0, DIM)

    def unpack(tensor):
        pytest.fail("the forward reads a tensor that it has saved for the backward pass")

    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: tensor, unpack):
        fused(x.requires_grad_(), mask)


@every_norm
def test_the_backward_pass_keeps_the_input_and_little_else(name, options, pair, draw):
    _, fused = pair(name, options, DIM)
    x, mask, _ = draw(0, DIM)
    saved = []
    pack = lambda tensor: saved.append(tensor) or tensor  # noqa: E731
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        fused(x.requires_grad_(), mask)
    storages = {
        tensor.untyped_storage().data_ptr() for tensor in saved if tensor.numel() >= x.numel()
    }
    assert storages == {x.untyped_storage().data_ptr()}


@every_norm
def test_threads_and_runs_agree_to_the_bit(name, options, pair, draw):
    """Blocks of rows are of one size and their sums are added in order, whoever does them."""
    rows = 2000  # enough for torch to take a second thread
    torch.manual_seed(0)
    x, g = torch.randn(2, rows, DIM).unbind()
    results = []
    before = torch.get_num_threads()
    try:
        for threads in (1, 2, 2):
            torch.set_num_threads(threads)
            _, fused = pair(name, options, DIM, torch.float32)
            z = x.clone().requires_grad_()
            y = fused(z)
            y.backward(g)
            results.append([y, z.grad, *(p.grad for p in fused.parameters()), *fused.buffers()])
    finally:
        torch.set_num_threads(before)
    for other in results[1:]:
        assert all(map(torch.equal, results[0], other))


@pytest.mark.parametrize("name", WITH_MOMENTS)
def test_a_mean_far_from_zero_costs_no_digits(name, pair):
    options = {"layer_scale_groups": 0} if norm_spec(name).has_option("layer_scale_groups") else {}
    _, fused = pair(name, options, DIM, torch.float32)
    torch.manual_seed(0)
    x = torch.randn(300, DIM) + 1000.0
    momentum = fused.momentum
    fused(x)
    variance = (fused.running_var - (1 - momentum)) / momentum
    # float32 holds these inputs to 6e-5 of their deviation; sums of raw squares would hold none
    wanted = x.double().var(dim=0, unbiased=False)
    torch.testing.assert_close(variance.double(), wanted, rtol=1e-3, atol=0)


def test_set_kernels_reaches_every_norm_of_a_module():
    model = torch.nn.Sequential(
        build_norm("adanorm", 4), torch.nn.ModuleList([build_norm("dyt", 4)])
    )
    set_kernels(model, "off")
    assert model[0].fused is None and model[1][0].fused is None
    set_kernels(model, "cpu")
    assert model[0].fused.choice == "cpu" and model[1][0].fused.choice == "cpu"


@every_norm
def test_derivatives_without_a_graph_are_those_of_the_plain_form(name, options):
    """Forward-mode derivatives, and those of torch.func, in evaluation."""
    plain, fused = (build_norm(name, DIM, **options).eval() for _ in range(2))
    set_kernels(plain, "off")
    set_kernels(fused, "cpu")
    x, v = torch.randn(2, 3, 5, DIM)
    with torch.no_grad(), forward_ad.dual_level():
        dual = forward_ad.make_dual(x, v)
        theirs, ours = (forward_ad.unpack_dual(norm(dual)) for norm in (plain, fused))
    assert theirs.tangent is not None
    torch.testing.assert_close(tuple(ours), tuple(theirs))
    gradients = [
        torch.func.vmap(torch.func.grad(lambda row, norm=norm: norm(row).square().sum()))(x)
        for norm in (plain, fused)
    ]
    torch.testing.assert_close(*gradients)
