"""Keep the words of a text verbatim where the model rewrites only a part of it.

Token ids lack capitals, spaces and words outside the vocabulary. A template therefore keeps the written text
with the positions of its gaps, and only the tokens of the gaps are decoded.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace

from mm_ldlm.data.corpus.tokenizer import TextTokenizer

CONTEXT = 3
"""Number of tokens on each side that determine spaces: "nurse ' s" has three"""


@dataclass(frozen=True)
class Template:
    """A text with gaps.

    Attributes:
        kept: text before, between and after the gaps; one more than there are gaps.
        gaps: first token position of each gap, and the one after its last.
        own_spacing: whether only the text's own spaces stand at a gap; otherwise a space is inserted where two words
            would touch.
    """

    kept: tuple[str, ...]
    gaps: tuple[tuple[int, int], ...]
    own_spacing: bool

    def regapped(self, canvas: Sequence[int], tokens: Sequence[int]) -> "Template":
        """Return the template with its gaps at their places in `tokens`, where they may have any number of tokens.

        `canvas` are the ids of the text with masks in the gaps. Where the written tokens repeat those between two gaps,
        the first occurrence counts as the given one.
        """
        gaps, place = list[tuple[int, int]](), self.gaps[0][0]
        for (_, stop), (start, _) in itertools.pairwise((*self.gaps, (len(canvas), 0))):
            after, end = [*canvas[stop:start]], len(tokens) - (start - stop)
            if start < len(canvas):
                end = next(at for at in range(place, end + 1) if [*tokens[at : at + len(after)]] == after)
            gaps.append((place, end))
            place = end + len(after)
        return replace(self, gaps=tuple(gaps))

    def filled(self, tokens: Sequence[int], tokenizer: TextTokenizer) -> str:
        """Return the text whose gaps contain the words of `tokens`, the ids of the entire text.

        A token that continues the word before its gap, or that is punctuation, is attached to that word.
        """
        out = self.kept[0]
        for (start, stop), after in zip(self.gaps, self.kept[1:], strict=True):
            before, words, following = _decoded(tokens, start, stop, tokenizer)
            if before and not before[-1].isspace():
                out = out.rstrip()
            elif out and not (self.own_spacing or out[-1].isspace()):
                out += " "
            touches = bool(after) and not after[0].isspace() and not self.own_spacing
            out += words + (" " if touches and following[:1].isspace() else "") + after
        return out


def with_masks(text: str, mask: str, tokenizer: TextTokenizer) -> tuple[Template, list[int]]:
    """Convert a text with `mask` at the positions to fill to a template and its ids, [MASK] at each of the gaps.

    Masks with nothing but spaces between them are one gap.
    """
    pieces = text.split(mask)
    # a space before a gap belongs to the word that will fill it
    ids = tokenizer.encode([*(piece.rstrip() for piece in pieces[:-1]), pieces[-1]])
    kept, gaps, canvas = [pieces[0]], list[tuple[int, int]](), list(ids[0])
    for piece, piece_ids in zip(pieces[1:], ids[1:], strict=True):
        if gaps and not kept[-1].strip():
            kept[-1], gaps[-1] = piece, (gaps[-1][0], len(canvas) + 1)
        else:
            kept.append(piece)
            gaps.append((len(canvas), len(canvas) + 1))
        canvas += [tokenizer.mask_id, *piece_ids]
    return Template(tuple(kept), tuple(gaps), own_spacing=True), canvas


def rewritten(text: str, canvas: Sequence[int], tokenizer: TextTokenizer) -> Template:
    """The template of a text some of whose tokens are masked in `canvas`, the ids of the entire text."""
    words: list[tuple[int, int, int]] = []  # first token, first character, and the character after the last
    for place, (start, stop) in enumerate(tokenizer.spans(text)):
        if words and start < words[-1][2]:  # one character has several tokens, which are a gap together
            words[-1] = (*words[-1][:2], stop)
        else:
            words.append((place, start, stop))
    kept, gaps, end = list[str](), list[tuple[int, int]](), 0
    for (place, start, stop), (behind, *_) in itertools.pairwise([*words, (len(canvas), 0, 0)]):
        if tokenizer.mask_id not in canvas[place:behind]:
            continue
        start += len(text[start:stop]) - len(text[start:stop].lstrip())
        if gaps and gaps[-1][1] == place:
            gaps[-1] = (gaps[-1][0], behind)
        else:
            kept.append(text[end:start])
            gaps.append((place, behind))
        end = stop
    return Template((*kept, text[end:]), tuple(gaps), own_spacing=False)


def _decoded(tokens: Sequence[int], start: int, stop: int, tokenizer: TextTokenizer) -> tuple[str, str, str]:
    """Decode some tokens before a gap, the gap start:stop, and some after it, with the spaces that stand between them.

    A space next to a token depends on the neighbours of the token, so the parts are cut out of one text.
    """
    context = tokenizer.decode(tokens[max(0, start - CONTEXT) : stop + CONTEXT])
    first = _place_after(context, tokenizer.decode(tokens[max(0, start - CONTEXT) : start]))
    last = _place_after(context, tokenizer.decode(tokens[max(0, start - CONTEXT) : stop]))
    words = context[first:last]
    before = context[:first] + words[: len(words) - len(words.lstrip())]
    return before, words.strip(), context[last:]


def _place_after(text: str, beginning: str) -> int:
    """Return the position in `text` after as many characters other than spaces as `beginning` has."""
    missing = sum(not character.isspace() for character in beginning)
    for place, character in enumerate(text):
        if missing == 0:
            return place
        missing -= not character.isspace()
    return len(text)
