"""norm_text_classifier: its encoder, its pooling, and fairseq's task and training around it."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from classifier_run import LABELS, train_classifier, write_sentences
from fairseq import models, options
from fairseq.tasks.sentence_prediction import SentencePredictionConfig, SentencePredictionTask
from omegaconf import OmegaConf
from tiny_run import run_state, write_dictionaries

from norm_plugin.models.classifier import (
    NormTextClassifier,
    TextClassifierHub,
    mean_over_words,
)
from norm_plugin.models.resuming import check_resuming

HEAD = "sentence_classification_head"
SMALL = (
    *("--encoder-layers", "2", "--encoder-embed-dim", "16", "--encoder-ffn-embed-dim", "32"),
    *("--encoder-attention-heads", "2", "--dropout", "0"),
)


@pytest.fixture
def classifier(task):
    """A classifier of three labels from the flags of a command line."""

    def from_flags(*flags, seed=1):
        argv = ["DATA", "--arch", "norm_text_classifier_rt", "--task", "sentence_prediction"]
        argv += ["--num-classes", "3", "--lr-scheduler", "inverse_sqrt", *SMALL, *flags]
        args = options.parse_args_and_arch(options.get_training_parser(), argv)
        torch.manual_seed(seed)
        model = models.build_model(args, task)
        model.register_classification_head(HEAD, num_classes=3)
        return model

    return from_flags


@pytest.fixture
def sentences(batch):
    return {name: batch[name] for name in ("src_tokens", "src_lengths")}


def logits(model, sentences):
    return model(**sentences, features_only=True, classification_head_name=HEAD)[0]


def test_its_encoder_is_that_of_the_translation_model(classifier, build, sentences):
    flags = ("--norm-type", "rmsnorm", "--norm-placement", "pre")
    ours = classifier(*flags).eval()
    theirs = build(*SMALL, "--decoder-embed-dim", "16", *flags).eval()
    state = theirs.encoder.state_dict()
    assert list(ours.encoder.state_dict()) == list(state)
    ours.encoder.load_state_dict(state)
    expected = theirs.encoder(**sentences)["encoder_out"][0].transpose(0, 1)
    assert torch.equal(ours(**sentences)[0], expected)


def test_the_mean_is_over_words_alone():
    x = torch.tensor([[1.0, 7.0], [3.0, 9.0], [100.0, 8.0]]).unsqueeze(-1)  # (T, B, 1)
    mask = torch.tensor([[False, False, True], [False, False, False]])
    assert mean_over_words(x, mask).flatten().tolist() == [2.0, 8.0]
    x[2, 0] = float("inf")  # as half precision may give at padding
    assert mean_over_words(x, mask).flatten().tolist() == [2.0, 8.0]


@pytest.mark.parametrize("side", ["left", "right"])
def test_padding_changes_nothing(side, classifier, task):
    model = classifier().double().eval()
    sentence = torch.tensor([[5, 6, 7, 2]])
    padding = torch.full((1, 3), task.source_dictionary.pad())
    parts = [padding, sentence] if side == "left" else [sentence, padding]
    lengths = torch.tensor([4])
    alone = logits(model, {"src_tokens": sentence, "src_lengths": lengths})
    padded = logits(model, {"src_tokens": torch.cat(parts, 1), "src_lengths": lengths})
    torch.testing.assert_close(padded, alone)  # float64: another order of summation


def test_a_sentence_is_read_as_in_training(classifier, task):
    """``init_token`` precedes it, and ``separator_token`` the second one of a pair."""
    cfg = SimpleNamespace(classification_head_name=HEAD, init_token=0, separator_token=2)
    words = task.source_dictionary
    of_task = SimpleNamespace(cfg=cfg, source_dictionary=words, label_dictionary=words)
    model = classifier().eval()
    hub = TextClassifierHub(None, of_task, model)
    w1, w2, end = words.index("w1"), words.index("w2"), words.eos()
    for tokens, given in (([0, w1, w2, end], ["w1 w2"]), ([0, w1, end, 2, w2, end], ["w1", "w2"])):
        expected = logits(model, {"src_tokens": torch.tensor([tokens])})[0].softmax(-1)
        found = torch.tensor(list(hub.predict(*given).values()))
        assert torch.equal(found, expected)
    with pytest.raises(ValueError, match="the sentence is empty"):
        hub.predict("w1", " ")


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return write_sentences(tmp_path_factory.mktemp("labeled"))


def test_fairseqs_task_builds_it_from_yaml(data, sentences):
    """The task writes a key of its own into the model's settings, which is no misspelled one."""
    task = SentencePredictionTask.setup_task(
        SentencePredictionConfig(
            data=str(data), num_classes=2, classification_head_name=HEAD, regression_target=False
        )
    )
    model = {"_name": "norm_text_classifier_rt", "encoder_layers": 2, "norm_type": "rmsnorm"}
    cfg = OmegaConf.create({"lr_scheduler": {"warmup_updates": 4}, "model": model})
    OmegaConf.set_struct(cfg, True)
    built = task.build_model(cfg.model)
    assert logits(built, {"src_tokens": sentences["src_tokens"] % 16}).shape == (4, 2)
    assert built.cfg.encoder.embed_dim == 128 and built.cfg.encoder.normalize_before
    with pytest.raises(ValueError, match="unknown model key enocder_layers"):
        bad = OmegaConf.create({"model": {**model, "enocder_layers": 3}})
        task.build_model(bad.model)


@pytest.fixture(scope="module")
def trained(data, tmp_path_factory):
    """The checkpoints of a classifier that has learned the tiny corpus."""
    return train_classifier(data, tmp_path_factory.mktemp("run"), "--max-epoch", "8")


def test_it_learns_saves_and_loads(data, trained):
    state = torch.load(trained / "checkpoint_best.pt", weights_only=True)
    assert state["extra_state"]["best"] > 90  # percent of the validation set
    hub = NormTextClassifier.from_pretrained(str(trained), data_name_or_path=str(data))
    for first, label in enumerate(LABELS):
        probabilities = hub.predict(f"w{first} w3 w4")
        assert sum(probabilities.values()) == pytest.approx(1)
        assert max(probabilities, key=probabilities.get) == label
    with pytest.raises(ValueError, match="the sentence is empty"):
        hub.predict("  ")
    loaded = hub.model.state_dict()
    assert all(torch.equal(value, state["model"][key]) for key, value in loaded.items())


def test_training_does_not_start_from_a_translation_model(tmp_path):
    data = write_dictionaries(tmp_path / "bin")
    torch.save(run_state(data), tmp_path / "translation.pt")
    argv = ["DATA", "--arch", "norm_text_classifier", "--task", "sentence_prediction"]
    args = options.parse_args_and_arch(options.get_training_parser(), argv)
    stacks = "which has encoder and decoder, but this model has encoder"
    with pytest.raises(ValueError, match=rf"translation\.pt is a norm_transformer, {stacks}: give"):
        check_resuming(str(tmp_path / "translation.pt"), args, True, NormTextClassifier.sides)
