"""The model ``norm_text_classifier``: the encoder of ``norm_transformer``, one label per sentence.

fairseq's task and criterion ``sentence_prediction`` train it. A sentence is represented by the mean
of the encoder's output over its words:

    p(label | sentence) = softmax(W m + b),  m = mean_t h_t

where h_t is the output of the last layer at word t, end of sentence included. The AdaNorm paper (Xu
et al. 2019), whose sizes ``norm_text_classifier_rt`` has, does not say how it pools, nor its number
of heads, nor the width of its feed-forward network.
"""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from fairseq import hub_utils
from fairseq.models import FairseqEncoderModel, register_model
from fairseq.models.transformer import TransformerModelBase
from fairseq.models.transformer import transformer_legacy as stock
from fairseq.modules import FairseqDropout
from torch import Tensor, nn

from norm_plugin.models.architectures import register, set_missing, set_size
from norm_plugin.models.config import NormConfig
from norm_plugin.models.norm_model import NormModel
from norm_plugin.models.stacks import NormTransformerEncoder

MODEL = "norm_text_classifier"
MAX_POSITIONS = 512  # words per sentence, as in fairseq's task


def mean_over_words(x: Tensor, padding_mask: Tensor) -> Tensor:
    """Return the mean, (B, C), of x, (T, B, C), over positions outside the mask, (B, T)."""
    padding = padding_mask.t().unsqueeze(-1)
    return x.masked_fill(padding, 0).sum(0) / (~padding).sum(0)


class ClassificationHead(nn.Module):
    """A linear map from the mean over the words, after dropout: ``dim`` channels to labels."""

    def __init__(self, dim: int, classes: int, dropout: float) -> None:
        super().__init__()
        self.dropout = FairseqDropout(dropout, module_name=type(self).__name__)
        self.out_proj = nn.Linear(dim, classes)
        nn.init.xavier_uniform_(self.out_proj.weight)
        nn.init.zeros_(self.out_proj.bias)

    def forward(self, x: Tensor, padding_mask: Tensor) -> Tensor:
        """Return logits, (B, classes). x: (T, B, C); padding_mask: (B, T)."""
        logits: Tensor = self.out_proj(self.dropout(mean_over_words(x, padding_mask)))
        return logits


@register_model(MODEL)
class NormTextClassifier(NormModel, FairseqEncoderModel):
    """An encoder with classification heads, as the task ``sentence_prediction`` requires."""

    sides: ClassVar[tuple[str, ...]] = ("encoder",)
    tasks = ("sentence_prediction",)

    def __init__(self, cfg: NormConfig, encoder: NormTransformerEncoder) -> None:
        super().__init__(encoder)
        self.cfg = cfg
        self.classification_heads = nn.ModuleDict()

    @classmethod
    def build_planned(cls, cfg: NormConfig, task: Any) -> NormTextClassifier:
        dictionary = task.source_dictionary
        embed_tokens = TransformerModelBase.build_embedding(
            cfg, dictionary, cfg.encoder.embed_dim, cfg.encoder.embed_path
        )
        return cls(cfg, NormTransformerEncoder(cfg, dictionary, embed_tokens))

    def register_classification_head(self, name: str, num_classes: int) -> None:
        """Add a head; the task calls this after it has built the model."""
        head = ClassificationHead(self.cfg.encoder.embed_dim, num_classes, self.cfg.dropout)
        self.classification_heads[name] = head

    def maps_after_encoder(self) -> list[tuple[nn.Module, str]]:
        return [(head, "out_proj") for head in self.classification_heads.values()]

    def forward(
        self,
        src_tokens: Tensor,
        src_lengths: Tensor | None = None,
        features_only: bool = True,
        classification_head_name: str | None = None,
    ) -> tuple[Tensor, Any]:
        """Return the logits of a head, (B, classes), or without a head the features, (B, T, C).

        Args:
            src_tokens: (B, T).
            src_lengths: (B,); not used, because the padding determines it.
            features_only: not used, because this model predicts no words.
            classification_head_name: the head; None: return features.
        """
        encoded = super().forward(src_tokens, src_lengths)
        x = encoded["encoder_out"][0]
        if classification_head_name is None:
            return x.transpose(0, 1), encoded
        head = self.classification_heads[classification_head_name]
        return head(x, src_tokens.eq(self.encoder.padding_idx)), encoded

    @classmethod
    def from_pretrained(
        cls,
        model_name_or_path: str,
        checkpoint_file: str = "checkpoint_best.pt",
        data_name_or_path: str = ".",
        **kwargs: Any,
    ) -> TextClassifierHub:
        """Load a model as in fairseq; the returned object classifies sentences."""
        loaded = hub_utils.from_pretrained(
            model_name_or_path, checkpoint_file, data_name_or_path, archive_map={}, **kwargs
        )
        return TextClassifierHub(loaded["args"], loaded["task"], loaded["models"][0])


class TextClassifierHub(nn.Module):
    """A trained classifier of sentences that are tokenized as its training text."""

    def __init__(self, cfg: Any, task: Any, model: NormTextClassifier) -> None:
        super().__init__()
        self.cfg, self.task, self.model = cfg, task, model

    def predict(self, sentence: str, second: str | None = None) -> dict[str, float]:
        """Return the probability of each label of a sentence, or of a pair of sentences.

        Raises:
            ValueError: a sentence is empty.
        """
        labels, cfg = self.task.label_dictionary, self.task.cfg
        parts = [self._tokens(sentence, cfg.init_token)]
        if second is not None:
            parts.append(self._tokens(second, cfg.separator_token))
        tokens = torch.cat(parts).unsqueeze(0).to(next(self.model.parameters()).device)
        head = cfg.classification_head_name
        self.model.eval()
        with torch.inference_mode():
            logits, _ = self.model(tokens, classification_head_name=head)
        probabilities = logits[0].float().softmax(-1).tolist()
        return {
            labels[number + labels.nspecial]: value for number, value in enumerate(probabilities)
        }

    def _tokens(self, sentence: str, before: int | None) -> Tensor:
        """Return the tokens of a sentence, (T,), after the token ``before``, as in fairseq's task.

        Raises:
            ValueError: the sentence is empty.
        """
        if not sentence.strip():
            raise ValueError("the sentence is empty; give at least one word")
        dictionary = self.task.source_dictionary
        tokens: Tensor = dictionary.encode_line(sentence, add_if_not_exist=False).long()
        return tokens if before is None else torch.cat([tokens.new_tensor([before]), tokens])


def base_architecture(args: Any) -> None:
    """Set the encoder of fairseq's base Transformer: 6 layers, 512 channels, FFN 2048, 8 heads."""
    args.max_positions = getattr(args, "max_positions", MAX_POSITIONS)
    args.max_source_positions = getattr(args, "max_source_positions", args.max_positions)
    stock.base_architecture(args)


def rt_architecture(args: Any) -> None:
    """Set the classifier of the AdaNorm paper on RT and SST5.

    It has 4 layers, 128 channels, pre-norm and a dropout of 0.2. The paper does not give the rest:
    FFN 256 and 4 heads are those of Transformer-Tiny (Wu et al. 2021), which has the same width.
    """
    set_size(args, "encoder", embed_dim=128, ffn_embed_dim=256, layers=4, attention_heads=4)
    set_missing(args, encoder_normalize_before=True, dropout=0.2)
    base_architecture(args)


register(MODEL, {MODEL: base_architecture, f"{MODEL}_rt": rt_architecture})
