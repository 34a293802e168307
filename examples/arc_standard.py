"""The arc-standard transition system (Nivre 2004), and the features of Chen and Manning 2014.

There is a stack, which starts with the root, and a buffer of words. SHIFT moves the next word to
the stack. LEFT makes the top of the stack the head of the word below it, and RIGHT makes the word
below the head of the top. The dependent leaves the stack.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from treebank import Sentence

SHIFT, LEFT, RIGHT = "shift", "left", "right"
Move = tuple[str, str]
"""The kind of move, and the label of its arc; a shift has none."""
NOTHING = -1
"""The word of an empty slot, such as the third word of a stack of two."""
WORDS, ARCS = 18, 12
"""The features of a state are 18 words, of which the last 12 have a head."""


@dataclass
class State:
    """A partly parsed sentence of words 1 to n."""

    size: int
    stack: list[int] = field(default_factory=lambda: [0])
    next: int = 1
    heads: dict[int, int] = field(default_factory=dict)
    labels: dict[int, str] = field(default_factory=dict)
    children: dict[int, list[int]] = field(default_factory=dict)

    @property
    def done(self) -> bool:
        """Whether every word has its head."""
        return len(self.heads) == self.size

    def allows(self, kind: str) -> bool:
        """Return whether this kind of move is possible; the root takes its last word at the end."""
        if kind == SHIFT:
            return self.next <= self.size
        if kind == LEFT:
            return len(self.stack) > 2
        return len(self.stack) > 2 or (len(self.stack) == 2 and self.next > self.size)

    def apply(self, move: Move) -> None:
        """Apply ``move``, which must be possible."""
        kind, label = move
        if kind == SHIFT:
            self.stack.append(self.next)
            self.next += 1
            return
        dependent = self.stack.pop(-1 if kind == RIGHT else -2)
        head = self.stack[-1]
        self.heads[dependent], self.labels[dependent] = head, label
        self.children[head] = sorted([*self.children.get(head, []), dependent])

    def features(self) -> list[int]:
        """Return the 18 words of Chen and Manning 2014, section 3.1; the last 12 are dependents."""
        s1, s2, s3 = [*reversed(self.stack[-3:]), *[NOTHING] * 3][:3]
        ahead = range(self.next, self.next + 3)
        words = [s1, s2, s3, *(word if word <= self.size else NOTHING for word in ahead)]
        for word in (s1, s2):
            left1, left2 = self._side(word, -1)
            right1, right2 = self._side(word, 1)
            words += [left1, right1, left2, right2, self._side(left1, -1)[0]]
            words += [self._side(right1, 1)[0]]
        return words

    def _side(self, word: int, side: int) -> tuple[int, int]:
        """Return the two outermost children of ``word`` to its left (-1) or right (1)."""
        children = [child for child in self.children.get(word, []) if (child - word) * side > 0]
        first, second = [*children[::-side], NOTHING, NOTHING][:2]
        return first, second


def oracle(sentence: Sentence) -> list[Move] | None:
    """Return the moves that build the tree; None for a tree that is not projective.

    A tree in which several words have the root as their head has no moves, either.
    """
    state, moves = State(len(sentence.words) - 1), []
    waiting = [sentence.heads.count(word) for word in range(len(sentence.words))]
    while not state.done:
        top, below = [*reversed(state.stack), NOTHING][:2]
        if below > 0 and sentence.heads[below] == top:
            move = (LEFT, sentence.labels[below])
        elif top > 0 and sentence.heads[top] == below and not waiting[top] and state.allows(RIGHT):
            move = (RIGHT, sentence.labels[top])
        elif state.allows(SHIFT):
            move = (SHIFT, "")
        else:
            return None
        if move[0] != SHIFT:
            waiting[top if move[0] == LEFT else below] -= 1
        state.apply(move)
        moves.append(move)
    return moves
