"""A block with each norm through torch.compile and torch.export, which must equal eager."""

from __future__ import annotations

import copy

import pytest
import torch
from reference import CASES
from torch import nn

from norm_plugin.norms import NORM_TYPES, norm_spec, replace_norms
from norm_plugin.norms.base.statistics import BatchStatisticsNorm
from residual_blocks import DIM, batch_of, block_of

# float64, two branches: sums of at most 12 terms in another order round by 1e-16 each
CLOSE = {"rtol": 1e-12, "atol": 1e-12}
WITH_BATCH_STATISTICS = [name for name in NORM_TYPES if norm_spec(name).batch_statistics]
builds_cpp = pytest.mark.skipif(
    torch.backends.cpu.get_cpu_capability() == "DEFAULT",
    reason="torch.compile writes C++ that does not compile under ATEN_CPU_CAPABILITY=default",
)
FIRST, LAST = dict(reversed(CASES)), dict(CASES)
"""For each norm the first and the last of the options that it is tested with."""
with_first = pytest.mark.parametrize(("name", "options"), FIRST.items(), ids=str)


@pytest.fixture(autouse=True)
def nothing_compiled_before():
    torch._dynamo.reset()


def whole(model, backend="aot_eager"):
    """``model`` as one graph: a graph break is an error."""
    return torch.compile(model, fullgraph=True, backend=backend)


def trained(block):
    """``block`` in inference, with the statistics of two batches."""
    for seed in (0, 1):
        block(*batch_of(seed))
    return block.eval()


@pytest.mark.parametrize("name", ["adanorm", "batchnorm"])
def test_inference_is_one_graph(name):
    block = trained(block_of(name, **LAST[name]))
    batch = batch_of(2)
    with torch.no_grad():
        torch.testing.assert_close(whole(block)(*batch), block(*batch), **CLOSE)


@pytest.mark.parametrize(("name", "options"), LAST.items(), ids=str)
def test_export_of_any_length_needs_nothing_of_ours(name, options):
    block = trained(block_of(name, **options))
    time = torch.export.Dim("time", min=2, max=64)
    program = torch.export.export(
        block, batch_of(2), dynamic_shapes={"x": {0: time}, "padding_mask": {1: time}}
    )
    called = {str(node.target) for node in program.graph.nodes if node.op == "call_function"}
    assert not any("norm_plugin" in target for target in called)
    longer = batch_of(3, time=9)
    torch.testing.assert_close(program.module()(*longer), block(*longer), **CLOSE)


def train(model, batches):
    """y, dL/dx and all gradients of each batch, whose loss is scaled as in half precision."""
    results = []
    for step, (x, mask) in enumerate(batches):
        scale = 2.0 ** (step // 4)
        for norm in model.modules():
            if isinstance(norm, BatchStatisticsNorm):
                norm.loss_scale = scale
        x = x.clone().requires_grad_()
        model.zero_grad()
        y = model(x, mask)
        (scale * y.square().sum()).backward()
        results += [y.detach(), x.grad, *(parameter.grad for parameter in model.parameters())]
    return results


def assert_alike(ours, theirs, model, eager):
    for actual, expected in zip(ours, theirs, strict=True):
        torch.testing.assert_close(actual, expected, **CLOSE)
    for (key, actual), expected in zip(model.named_buffers(), eager.buffers(), strict=True):
        torch.testing.assert_close(
            actual, expected, **CLOSE, msg=lambda text, key=key: f"{key}: {text}"
        )


def compiled(name, block):
    """``block`` in training: one graph, but where it breaks around a norm of the batch."""
    whole_graph = not norm_spec(name).batch_statistics
    return torch.compile(block, fullgraph=whole_graph, backend="aot_eager")


@with_first
def test_training_equals_eager(name, options):
    """For more steps than a warm-up has, or torch would compile anew for each count of updates."""
    eager = block_of(name, **options)
    model = copy.deepcopy(eager)
    batches = [batch_of(seed) for seed in range(12)]
    assert_alike(train(compiled(name, model), batches), train(eager, batches), model, eager)


@pytest.mark.parametrize("name", WITH_BATCH_STATISTICS[:1])
def test_a_norm_of_the_batch_breaks_the_graph_of_training(name):
    with pytest.raises(torch._dynamo.exc.Unsupported, match="torch.compiler.disable"):
        whole(block_of(name))(*batch_of(0))


class MaskedBlocks(nn.Module):
    """A chain of more norms than torch compiles one function anew, which gets the padding."""

    def __init__(self):
        super().__init__()
        norms = torch._dynamo.config.recompile_limit + 2
        self.norms = nn.ModuleList(nn.LayerNorm(DIM, dtype=torch.float64) for _ in range(norms))

    def forward(self, x, padding_mask):
        for norm in self.norms:
            x = x + norm(x).tanh()
        return x


@pytest.mark.parametrize("name", WITH_BATCH_STATISTICS[:1])
def test_many_norms_with_a_mask_compile_once(name):
    eager = MaskedBlocks()
    replace_norms(eager, name, mask="padding_mask", batch_first=False)
    model = copy.deepcopy(eager)
    batches = [batch_of(seed) for seed in range(3)]
    torch._dynamo.utils.counters.clear()
    with torch._dynamo.config.patch(fail_on_recompile_limit_hit=True):
        results = train(torch.compile(model, backend="aot_eager"), batches)
    assert_alike(results, train(eager, batches), model, eager)
    (reason,) = torch._dynamo.utils.counters["graph_break"]
    assert "torch.compiler.disable" in reason


@builds_cpp
def test_the_compiler_that_torch_takes_by_default():
    """It writes over memory that its graph needs no more."""
    name = WITH_BATCH_STATISTICS[0]
    eager = block_of(name, **FIRST[name])
    model = copy.deepcopy(eager)
    batches = [batch_of(seed) for seed in range(3)]
    assert_alike(train(torch.compile(model), batches), train(eager, batches), model, eager)
