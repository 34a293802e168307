"""fairseq's commands around ``norm_transformer_xl``: train, resume, evaluate, score, continue."""

from __future__ import annotations

import pytest
import torch
from composed import configure, train_by_fairseq
from fairseq import tasks

from characters import LETTERS, TINY, TRAINING
from commands import PLUGIN, run
from norm_plugin.checkpoints.average import main as average
from norm_plugin.checkpoints.evaluate_lm import run as evaluate
from norm_plugin.models.recording import read_records
from norm_plugin.models.resuming import TRAINING_STATE
from norm_plugin.models.segments import SEGMENT, TASK
from norm_plugin.models.transformer_xl import NormTransformerXL

LENGTH, ROWS = 6, 8
SIZE = [word for key, value in TINY.items() for word in (f"--{key.replace('_', '-')}", value)]
PRE_POWERNORM = ("--norm-type", "powernorm", "--norm-placement", "pre", "--norm-warmup-updates", 3)


def command(data, save_dir, *flags):
    """The command line of fairseq-train."""
    argv = [data, "--task", TASK, "--tokens-per-sample", LENGTH]
    argv += ["--arch", "norm_transformer_xl_char", *TRAINING, *SIZE, "--mem-len", 8]
    argv += ["--save-dir", save_dir, "--no-epoch-checkpoints"]
    return [*argv, *flags]


def train(data, save_dir, *flags):
    """fairseq-train in this process; returns the last checkpoint."""
    train_by_fairseq(*command(data, save_dir, *flags))
    return torch.load(save_dir / "checkpoint_last.pt", weights_only=True)


def loss_of(path, text, *argv, rows=1):
    """What evaluate-lm says of the test text."""
    flags = ["--path", path, "--task", TASK, "--tokens-per-sample", LENGTH, "--batch-size", rows]
    flags += ["--required-batch-size-multiple", 1, "--gen-subset", "test", "--cpu"]
    return evaluate([str(word) for word in (text, *flags, "--num-workers", 0, *argv)])


def batches_of(split, text, folder, *flags):
    """The dataset of a split, its padding, and its batches in order."""
    cfg = configure(*command(text, folder, *flags))
    task = tasks.setup_task(cfg.task)
    task.build_model(cfg.model)
    task.load_dataset(split)
    dataset = task.dataset(split)
    epoch = task.get_batch_iterator(dataset=dataset).next_epoch_itr(shuffle=False)
    return dataset, task.source_dictionary.pad(), list(epoch)


def test_every_token_but_the_first_is_a_target_and_each_batch_has_its_number(text, tmp_path):
    dataset, pad, batches = batches_of("valid", text, tmp_path)
    assert [batch["net_input"][SEGMENT] for batch in batches] == list(range(len(dataset)))
    blocks = torch.cat([dataset.data[i] for i in range(len(dataset.data))])
    parts = blocks[: ROWS * len(dataset) * LENGTH].view(ROWS, -1)  # the rest fills no batch
    tokens = torch.cat([batch["net_input"]["src_tokens"] for batch in batches], dim=1)
    targets = torch.cat([batch["target"] for batch in batches], dim=1)
    assert torch.equal(tokens, parts)
    ends = blocks[parts.size(1) :: parts.size(1)][:ROWS]
    assert torch.equal(targets, torch.cat([parts[:, 1:], ends[:, None]], dim=1))
    assert sum(batch["ntokens"] for batch in batches) == targets.ne(pad).sum()


def test_the_end_of_the_text_counts_no_target(text, tmp_path):
    dataset, pad, batches = batches_of("test", text, tmp_path, "--batch-size", 1)
    counts = [int(batch["target"].ne(pad).sum()) for batch in batches]
    assert [batch["ntokens"] for batch in batches] == counts
    assert sum(counts) == sum(map(len, (dataset.data[i] for i in range(len(dataset))))) - 1


@pytest.mark.parametrize("norm", [(), PRE_POWERNORM], ids=["post", "pre, powernorm"])
def test_a_resumed_run_ends_bit_equal(norm, text, tmp_path):
    """The run is stopped within an epoch, with accumulated gradients, dropout and validations."""
    flags = (*norm, "--dropout", 0.2, "--update-freq", 2, "--max-update", 8)
    flags += ("--save-interval-updates", 3, "--validate-interval-updates", 2)
    through = train(text, tmp_path / "through", *flags)
    (halfway,) = (tmp_path / "through").glob("checkpoint_1_3.pt")
    state = torch.load(halfway, weights_only=True)["extra_state"]
    assert state["train_iterator"]["iterations_in_epoch"] == 6
    assert state[TRAINING_STATE]["segment"] == 5
    resumed = train(text, tmp_path / "resumed", *flags, "--restore-file", halfway)
    for key, value in through["model"].items():
        assert torch.equal(resumed["model"][key], value), key
    without = torch.load(halfway, weights_only=False)
    del without["extra_state"][TRAINING_STATE]
    torch.save(without, tmp_path / "without.pt")
    other = train(text, tmp_path / "other", *flags, "--restore-file", tmp_path / "without.pt")
    differ = [
        key
        for key, value in through["model"].items()
        if not torch.equal(other["model"][key], value)
    ]
    assert differ  # the test would see a memory that is lost


def test_a_checkpoint_at_the_end_of_an_epoch_has_no_memory(text, tmp_path):
    ended = train(text, tmp_path, "--max-epoch", 1)
    assert TRAINING_STATE not in ended["extra_state"]


@pytest.fixture(scope="module")
def folder(text, tmp_path_factory):
    """Two epochs under pre-norm with records, and checkpoints of the last updates."""
    folder = tmp_path_factory.mktemp("trained")
    every = ("--save-interval-updates", 8, "--norm-record", 8)
    train(text, folder, *PRE_POWERNORM, *every, "--max-epoch", 2, "--checkpoint-activations")
    return folder


def test_validation_and_evaluation_give_the_loss_of_the_equations(text, folder, tmp_path):
    """The evaluation has one row, and other lengths of segment and memory than the training."""
    path = folder / "checkpoint_last.pt"
    overrides = ("--model-overrides", "{'mem_len': 40, 'clamp_len': 20, 'same_length': True}")
    evaluated = loss_of(path, text)
    longer = loss_of(path, text, *overrides)
    assert evaluated.tokens == longer.tokens
    model = NormTransformerXL.from_pretrained(str(folder), path.name, str(text)).models[0]
    task = tasks.setup_task(configure(*command(text, tmp_path, "--batch-size", 1)).task)
    task.load_dataset("test")
    for given, mem_len, clamp, same in ((evaluated, 8, -1, False), (longer, 40, 20, True)):
        decoder = model.decoder
        decoder.mem_len, decoder.clamp_len, decoder.same_length = mem_len, clamp, same
        dataset, total, count = task.dataset("test"), 0.0, 0
        rows = [dataset.data[i] for i in range(len(dataset.data))]
        for number, tokens in enumerate(rows):
            after = rows[number + 1][:1] if number + 1 < len(rows) else tokens[:0]
            target = torch.cat([tokens[1:], after])
            with torch.no_grad():
                logits = model(tokens.unsqueeze(0), segment=number)[0][0, : len(target)]
            log_p = logits.log_softmax(-1)
            total -= log_p.gather(1, target.unsqueeze(1).long()).sum().item()
            count += len(target)
        assert given.tokens == count
        # in float32
        assert given.bits == pytest.approx(total / count / 0.6931471805599453, rel=1e-6)


def test_average_record_continue_and_score(text, folder, tmp_path):
    records = read_records(folder / "norm_record.jsonl.gz")[1:]
    assert records and all("decoder.layers.0.self_attn_layer_norm" in r["sites"] for r in records)
    averaged = tmp_path / "averaged.pt"
    average(["--inputs", str(folder), "--last-updates", "2", "--output", str(averaged)])
    assert TRAINING_STATE not in torch.load(averaged, weights_only=False)["extra_state"]
    assert 1 < loss_of(averaged, text).bits < 8
    folded = loss_of(averaged, text, "--fold-norms")
    plain = loss_of(averaged, text)
    assert folded.bits == pytest.approx(plain.bits, rel=1e-5)  # in float32
    hub = NormTransformerXL.from_pretrained(str(tmp_path), averaged.name, str(text))
    assert set(hub.sample("a b c", beam=2, max_len_b=4).split()) <= {*LETTERS, "<unk>"}
    alone, *_ = hub.score(["c d e f"])
    _, second = hub.score(["a b", "c d e f"])  # no segments of one text
    assert torch.equal(second["positional_scores"], alone["positional_scores"])


def test_fairseq_interactive_continues_a_line(text, folder):
    command = (text, "--user-dir", PLUGIN, "--task", TASK, "--cpu", "--batch-size", 1)
    command += ("--path", folder / "checkpoint_last.pt", "--beam", 1, "--max-len-b", 4)
    result = run("fairseq_cli.interactive", *command, stdin="a b c\n")
    (line,) = [line for line in result.stdout.splitlines() if line.startswith("H-0")]
    words = line.split("\t")[-1].split()
    assert words[:3] == ["a", "b", "c"] and set(words) <= {*LETTERS, "<unk>"}


def test_with_another_number_of_rows_a_run_says_what_to_do(text, folder, tmp_path):
    train(text, tmp_path, "--max-update", 3)
    with pytest.raises(
        ValueError, match=r"segment 3 has 4 rows, .* --batch-size .* --reset-dataloader"
    ):
        train(text, tmp_path, "--max-update", 5, "--batch-size", 4)
    state = train(text, tmp_path, "--max-update", 5, "--batch-size", 4, "--reset-dataloader")
    assert state["optimizer_history"][-1]["num_updates"] == 5
