"""``--norm-record``: what it says is true, it changes nothing, and its file survives a kill."""

from __future__ import annotations

import gzip
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from in_process import WITH_STATISTICS, SquaredSum, everywhere, train_here
from norm_plugin.models.recording import Recorder, RecordFile, make_recorder, read_records
from norm_plugin.norms import Norm, norm_spec
from norm_plugin.norms.base.recomputation import is_recomputing
from norm_plugin.norms.base.statistics import BatchStatisticsNorm

QUIET = ("--no-save", "--disable-validation")
EPS = 1e-5
LEVELS = [0, 0.05, 0.25, 0.5, 0.75, 0.95, 1]
ROUNDING = 2e-3
"""Records are made in float32, whose sums cancel here and there, and keep five digits."""


def recorded(folder):
    return read_records(folder / "norm_record.jsonl.gz")


class Watch:
    """What each norm was given in each update, copied by hooks of the test's own."""

    def __init__(self, model):
        self.model, self.norms, self.calls = model, {}, {}
        for path, module in model.named_modules():
            if isinstance(module, Norm):
                self.norms[path], self.calls[path] = module, []
                module.register_forward_pre_hook(partial(self.before, path))
                module.register_forward_hook(partial(self.after, path))

    def before(self, path, norm, inputs):
        if norm.training and not is_recomputing():
            x, mask, batch_first = inputs
            state = {key: value.clone() for key, value in norm.state_dict().items()}
            call = SimpleNamespace(x=x.detach().clone(), mask=mask, first=batch_first, state=state)
            self.calls[path].append(call)

    def after(self, path, norm, inputs, y):
        if y.requires_grad and y is not inputs[0]:
            call = self.calls[path][-1]
            y.register_hook(lambda grad: setattr(call, "grad", grad.clone()))


def rows(tensor, call):
    """The real positions, (n, C), in float64."""
    real = ~call.mask if call.first else ~call.mask.t()
    return tensor[real].double().numpy()


def rms(values):
    return np.sqrt(np.mean(values**2))


def expected(watch, path, call, tokens):
    """The record of a norm, written a second time, in numpy and float64."""
    norm, x = watch.norms[path], rows(call.x, call)
    statistical = isinstance(norm, BatchStatisticsNorm)
    u = norm.statistics_input(torch.from_numpy(x)).numpy() if statistical else x
    mu, var, psi2 = u.mean(0), u.var(0), (u**2).mean(0)
    eps, channels = getattr(norm, "eps", EPS), x.shape[1]
    statistics = {"positions": len(x)}
    for key, value in (("mean", mu), ("variance", var), ("square", psi2)):
        statistics[f"batch_{key}"] = np.quantile(value, LEVELS)
        if statistical and key in norm.running_buffers:
            running = call.state[norm.running_buffers[key]].double().numpy()
            statistics[f"running_{key}"] = np.quantile(running, LEVELS)
            statistics[f"distance_{key}"] = np.linalg.norm(value - running) / channels
    gamma = 1.0
    if "weight" in call.state and call.state["weight"].numel() == channels:
        gamma = call.state["weight"].double().numpy()
        statistics["gamma_over_psi"] = np.quantile(gamma / np.sqrt(psi2 + eps), LEVELS)
    if not hasattr(call, "grad"):
        return statistics
    grad = rows(call.grad, call) / tokens
    g, sigma, psi = gamma * grad, np.sqrt(var + eps), np.sqrt(psi2 + eps)
    mean_term = g.mean(0) / sigma
    variance_term = (g * (u - mu) / sigma).mean(0) / sigma
    square_term = (g * u / psi).mean(0) / psi
    statistics["g_mu"] = np.linalg.norm(mean_term) / channels
    statistics["g_sigma2"] = np.linalg.norm(variance_term) / channels
    statistics["g_psi2"] = np.linalg.norm(square_term) / channels
    return statistics


def check(record, wanted):
    assert set(record) == set(wanted)
    for key, value in wanted.items():
        scale = max(np.abs(value).max() if np.ndim(value) else abs(value), 1e-7)
        assert np.allclose(record[key], value, rtol=ROUNDING, atol=ROUNDING * scale), key


@pytest.mark.parametrize(
    ("name", "placement", "kernels"),
    [
        *((name, "post", "auto") for name in (*WITH_STATISTICS, "layernorm", "adanorm", "none")),
        *((name, "pre", "off") for name in ("adanorm", "powernorm")),
    ],
)
def test_a_record_says_what_a_transcription_finds(
    name, placement, kernels, toy, tmp_path, monkeypatch
):
    """Plain norms hand their input a gradient on several ways, fused ones on one."""
    watches = []
    flags = ["--norm-type", name, "--norm-type-decoder", name, "--norm-placement", placement]
    if norm_spec(name).has_option("warmup_updates"):
        flags += ["--norm-warmup-updates", 2]  # the last update comes after it
    flags += [*QUIET, "--norm-kernels", kernels, "--max-update", 4, "--norm-record", 3]
    flags += ["--layernorm-embedding"]
    train_here(
        monkeypatch, toy, tmp_path, *flags, prepare=lambda model: watches.append(Watch(model))
    )
    (watch,), (header, *records) = watches, recorded(tmp_path)
    assert [record["update"] for record in records] == [1, 4]
    assert set(header["sites"]) == set(watch.norms)
    for record in records:
        call = watch.calls["decoder.layers.0.final_layer_norm"][record["update"] - 1]
        tokens = int((~call.mask).sum())  # the loss is a sum over target positions
        assert set(record["sites"]) == set(watch.norms)
        for path, statistics in record["sites"].items():
            call = watch.calls[path][record["update"] - 1]
            check(statistics, expected(watch, path, call, tokens))


@pytest.mark.parametrize("name", ["powernorm", "none"])
def test_recording_changes_no_weight_with_or_without_checkpointing(
    name, toy, tmp_path, monkeypatch
):
    flags = (*everywhere(name), *QUIET, "--max-update", 3, "--update-freq", 2)
    weights = {}
    for more in ((), ("--checkpoint-activations",)):
        for record in ((), ("--norm-record", 2)):
            folder = tmp_path / f"checkpointed{len(more)}"
            trainer = train_here(monkeypatch, toy, folder, *flags, *more, *record)
            weights[more, record] = trainer.get_model().state_dict()
        without, recorded_ones = weights[more, ()], weights[more, ("--norm-record", 2)]
        assert all(torch.equal(recorded_ones[key], value) for key, value in without.items())
    plain, checkpointed = (recorded(tmp_path / f"checkpointed{count}")[1:] for count in (0, 1))
    for record, other in zip(plain, checkpointed, strict=True):
        for part in ("sites", "layers"):
            assert list(record[part]) == list(other[part])
            for path, measures in record[part].items():
                check(other[part][path], measures)
    assert [record["update"] for record in recorded(folder)[1:]] == [1, 3]


def test_layers_have_hidden_states_and_gradients(toy, tmp_path, monkeypatch):
    seen = {}

    def prepare(model):
        layer = model.decoder.layers[0]
        seen["fc2"] = layer.fc2.weight
        layer.final_layer_norm.register_forward_pre_hook(see_mask)
        layer.register_forward_hook(see_hidden)

    def see_mask(_, inputs):
        seen["real"] = ~inputs[1].t()

    def see_hidden(_, __, output):
        seen["hidden"] = output[0].detach()[seen["real"]].double().numpy()
        output[0].register_hook(see_gradient)

    def see_gradient(grad):
        seen["grad"] = grad[seen["real"]].double().numpy()

    flags = ("--norm-placement", "pre", *QUIET, "--max-update", 1, "--norm-record", 1)
    train_here(monkeypatch, toy, tmp_path, *flags, prepare=prepare)
    tokens = int(seen["real"].sum())
    layer = recorded(tmp_path)[1]["layers"]["decoder.layers.0"]
    assert layer["hidden_rms"] == pytest.approx(rms(seen["hidden"]), rel=ROUNDING)
    norm = np.linalg.norm(seen["grad"]) / tokens
    assert layer["hidden_gradient_norm"] == pytest.approx(norm, rel=ROUNDING)
    # of the one batch of the update; the trainer has divided it by the tokens, and clips nothing
    norm = seen["fc2"].grad.norm().item()
    assert layer["fc2.weight_gradient_norm"] == pytest.approx(norm, rel=ROUNDING)


def test_a_resumed_run_goes_on_in_the_same_file(toy, tmp_path, monkeypatch):
    """Killed after update 6 while it wrote, and resumed from its checkpoint of update 4."""
    flags = (*everywhere("powernorm"), "--save-interval-updates", 4, "--norm-record", 1)
    flags += ("--disable-validation", "--update-epoch-batch-itr", "True")
    train_here(monkeypatch, toy, tmp_path / "run", *flags, "--max-update", 6)
    file = tmp_path / "run" / "norm_record.jsonl.gz"
    file.write_bytes(file.read_bytes()[:-20])
    assert [line["update"] for line in read_records(file)[1:]] == [1, 2, 3, 4, 5]
    (halfway,) = (tmp_path / "run").glob("checkpoint_*_4.pt")
    halfway.rename(tmp_path / "run" / "checkpoint_last.pt")
    train_here(monkeypatch, toy, tmp_path / "run", *flags, "--max-update", 8)
    train_here(monkeypatch, toy, tmp_path / "through", *flags, "--max-update", 8)
    assert recorded(tmp_path / "run") == recorded(tmp_path / "through")
    assert [line["update"] for line in read_records(file)[1:]] == [1, 2, 3, 4, 5, 6, 7, 8]


@pytest.fixture
def recorder(build, tmp_path):
    """One of the encoder's norms in every update, and a call that makes an update."""
    model = build("--norm-placement", "pre", "--norm-record", "1", "--norm-record-sites", "encoder")
    return Recorder(model, model.cfg.plan, RecordFile(tmp_path / "record", {"every": 1}))


def one_update(recorder, batch, after, scale=1.0):
    counts = iter([0, after])
    criterion = SquaredSum()
    with recorder.recording(criterion, lambda: next(counts), scale):
        (criterion(recorder.model, batch)[0] * scale).backward()


def test_an_update_that_was_left_out_is_not_recorded(recorder, batch, tmp_path):
    one_update(recorder, batch, after=0)
    assert not (tmp_path / "record").exists()
    one_update(recorder, batch, after=1)
    (_, record) = read_records(tmp_path / "record")
    assert set(record["sites"]) == {path for path in recorder.norms if path.startswith("encoder")}
    assert len(record["sites"]) == 2 * 2 + 1


def test_the_scale_of_the_loss_is_taken_out(recorder, batch, tmp_path):
    one_update(recorder, batch, after=1)
    one_update(recorder, batch, after=1, scale=64.0)
    _, plain, scaled = read_records(tmp_path / "record")
    assert plain == scaled  # a power of two changes no digit


def test_a_forward_in_evaluation_is_not_recorded(recorder, batch, tmp_path):
    """A task that generates its batch does so within an update; a frozen part stays in eval."""
    one_update(recorder, batch, after=1)

    class Generating(SquaredSum):
        def forward(self, model, sample):
            model.eval()(**{**sample, "src_tokens": sample["src_tokens"].flip(0)})
            model.train()
            return super().forward(model, sample)

    counts, criterion = iter([0, 1]), Generating()
    with recorder.recording(criterion, lambda: next(counts), 1.0):
        criterion(recorder.model, batch)[0].backward()
    _, plain, generating = read_records(tmp_path / "record")
    assert plain == generating
    recorder.model.encoder.layers[0].eval()
    one_update(recorder, batch, after=1)
    *_, frozen = read_records(tmp_path / "record")
    assert set(plain["sites"]) - set(frozen["sites"]) == {
        f"encoder.layers.0.{name}_layer_norm" for name in ("self_attn", "final")
    }


def test_after_an_update_no_hook_is_left(recorder, batch):
    modules = list(recorder.model.modules())

    def hooks():
        on_weights = [len(p._backward_hooks or ()) for p in recorder.model.parameters()]
        on_modules = [len(m._forward_hooks) + len(m._forward_pre_hooks) for m in modules]
        return on_weights + on_modules

    before = hooks()
    one_update(recorder, batch, after=1)
    assert hooks() == before
    with pytest.raises(FloatingPointError):
        with torch.no_grad():
            recorder.model.encoder.layers[1].fc2.bias[0] = torch.nan
        one_update(recorder, batch, after=1)
    assert hooks() == before


def test_only_the_first_worker_records(build, tmp_path):
    model = build("--norm-record", "1", "--save-dir", str(tmp_path))
    cfg = SimpleNamespace(checkpoint=SimpleNamespace(save_dir=str(tmp_path)))
    for first in (True, False):
        worker = SimpleNamespace(get_model=lambda: model, cfg=cfg, is_data_parallel_master=first)
        assert (make_recorder(worker) is not None) == first


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"a model", "is not a file of --norm-record"),
        (gzip.compress(b"a model"), "is not a file of --norm-record"),
        (gzip.compress(b'{"format": 99}'), "has format 99 of --norm-record"),
    ],
    ids=["plain", "gzip", "format"],  # gzip writes the time into the bytes
)
def test_another_file_is_refused(content, message, tmp_path):
    path = tmp_path / "file"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=message):
        RecordFile(path, {})
    assert path.read_bytes() == content
