#!/usr/bin/env python3
"""Parse with the transition-based network of Chen and Manning 2014, with any norm.

    python examples/parsing.py --data DIR --norm-type adanorm --seed 1

DIR holds a treebank in CoNLL-U: *train*.conllu, *dev*.conllu, *test*.conllu, gzipped or not. It is
a UD treebank, or the Penn Treebank after its conversion to dependencies.

From the AdaNorm paper (Xu et al. 2019): 512 hidden units, batches of 1,024, dropout 0.2, Adam with
0.001, 20 epochs, the norm before the activation of the hidden layer, C = 1, and the choice of the
epoch (appendix A.4). From Chen and Manning: three layers, which are embeddings, hidden and output,
features, embeddings of 50. Ours: ReLU, gold UPOS tags, random embeddings, words seen twice or more.

The score is UAS, the share of words with the right head, of the epoch with the best UAS on dev.
Words tagged PUNCT do not count, as in Chen and Manning. UAS with them is printed too. Trees that
are not projective are not used for training, since no moves build them. They count in dev and test.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from arc_standard import ARCS, NOTHING, WORDS, Move, State, oracle
from divergence import check_finite
from norm_plugin.io.command_line import at_least
from norm_plugin.norms import Norm, add_norm_arguments, build_norm, norm_options
from treebank import Sentence, numbered, read_part, uas

EMBEDDING, HIDDEN, BATCH, DROPOUT, LEARNING_RATE = 50, 512, 1024, 0.2, 0.001
PAPER = {"adanorm": {"scale": 1.0}}  # its C, which --norm-scale overrides


class Parser(nn.Module):
    """Scores the moves of a state from its words, tags and labels, and finds heads with them."""

    def __init__(
        self, trees: Sequence[Sentence], moves: Iterable[Move], new_norm: Callable[[int], Norm]
    ) -> None:
        super().__init__()
        counts = Counter(word for tree in trees for word in tree.words)
        self.words = numbered(word for word, count in counts.items() if count > 1)
        self.tags = numbered(tag for tree in trees for tag in tree.tags)
        self.labels = numbered(label for tree in trees for label in tree.labels)
        self.moves = sorted(set(moves))
        sizes = (self.words, self.tags, self.labels)
        self.embeddings = nn.ModuleList(nn.Embedding(len(names), EMBEDDING) for names in sizes)
        self.hidden = nn.Linear((WORDS + WORDS + ARCS) * EMBEDDING, HIDDEN)
        self.norm, self.dropout = new_norm(HIDDEN), nn.Dropout(DROPOUT)
        self.output = nn.Linear(HIDDEN, len(self.moves))

    def forward(self, features: Tensor) -> Tensor:
        """Return the scores of the moves, (N, moves), for features, (N, 48)."""
        parts = features.split([WORDS, WORDS, ARCS], dim=1)
        x = torch.cat([embed(part).flatten(1) for embed, part in zip(self.embeddings, parts)], 1)
        return self.output(self.dropout(F.relu(self.norm(self.hidden(x)))))

    def features(self, state: State, tree: Sentence) -> list[int]:
        """Return the numbers of 18 words, their 18 tags, and 12 labels of arcs."""
        places = state.features()
        parts: list[tuple[dict[str, int], Any, list[int]]] = [
            *((self.words, tree.words, places), (self.tags, tree.tags, places)),
            (self.labels, state.labels, places[-ARCS:]),
        ]
        return [
            0 if word == NOTHING else numbers.get(values[word], 1)
            for numbers, values, words in parts
            for word in words
        ]

    @torch.no_grad()
    def parse(self, trees: Sequence[Sentence]) -> list[dict[int, int]]:
        """Return the heads of each sentence; only words and tags of ``trees`` are read."""
        self.eval()
        states = [State(len(tree.words) - 1) for tree in trees]
        while going := [(state, tree) for state, tree in zip(states, trees) if not state.done]:
            scores = self(torch.tensor([self.features(*pair) for pair in going]))
            for (state, _), order in zip(going, scores.argsort(descending=True).tolist()):
                state.apply(next(self.moves[i] for i in order if state.allows(self.moves[i][0])))
        return [state.heads for state in states]


def examples(parser: Parser, gold: Iterable[tuple[Sentence, list[Move]]]) -> list[Tensor]:
    """Return features (N, 48) and the right moves (N,) of every state on the way to the trees."""
    numbers = {move: i for i, move in enumerate(parser.moves)}
    features, targets = [], []
    for tree, moves in gold:
        state = State(len(tree.words) - 1)
        for move in moves:
            features.append(parser.features(state, tree))
            targets.append(numbers[move])
            state.apply(move)
    return [torch.tensor(features), torch.tensor(targets)]


def main(argv: list[str] | None = None) -> dict[str, float]:
    """Run the command; return the scores."""
    style = argparse.RawDescriptionHelpFormatter
    flags = argparse.ArgumentParser(description=__doc__, formatter_class=style)
    flags.add_argument("--data", type=Path, required=True, metavar="DIR")
    flags.add_argument("--seed", type=int, default=1, help="seed of weights, dropout and order")
    flags.add_argument("--epochs", type=at_least(1), default=20, help="default: %(default)s")
    add_norm_arguments(flags)
    args = flags.parse_args(argv)
    new_norm = partial(build_norm, args.norm_type, **norm_options(args, PAPER))
    train, dev, test = (read_part(args.data, part) for part in ("train", "dev", "test"))
    gold = [(tree, moves) for tree in train if (moves := oracle(tree))]
    if not gold:
        raise ValueError(f"{args.data} has no projective tree, so there is nothing to train on")
    torch.manual_seed(args.seed)
    parser = Parser(train, [move for _, moves in gold for move in moves], new_norm)
    features, targets = examples(parser, gold)
    print(f"{len(gold):,} of {len(train):,} trees are projective: {len(targets):,} moves")
    optimizer = torch.optim.Adam(parser.parameters(), lr=LEARNING_RATE)
    best = {"dev UAS": -1.0}
    for epoch in range(1, args.epochs + 1):
        parser.train()
        for batch in torch.randperm(len(targets)).split(BATCH):
            loss = F.cross_entropy(parser(features[batch]), targets[batch])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        check_finite(f"epoch {epoch}", loss.item(), parser)
        dev_uas = uas(parser.parse(dev), dev, False)
        print(f"epoch {epoch}: loss {loss.item():.3f}, dev UAS {dev_uas:.2f}")
        if dev_uas > best["dev UAS"]:
            heads = parser.parse(test)
            best = {"dev UAS": dev_uas, "test UAS": uas(heads, test, False)}
            best["test UAS with punctuation"] = uas(heads, test, True)
    shown = ", ".join(f"{name} {score:.2f}" for name, score in best.items())
    print(f"{args.norm_type}, seed {args.seed}: {shown}")
    return best


if __name__ == "__main__":
    try:
        main()
    except (OSError, ValueError) as error:
        sys.exit(f"error: {error}")
