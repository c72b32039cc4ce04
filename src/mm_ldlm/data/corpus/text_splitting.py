"""Splitting of texts with too many tokens into pieces, at word boundaries where possible."""

from __future__ import annotations

from mm_ldlm.data.corpus.tokenizer import TextTokenizer


def split_text(text: str, tokenizer: TextTokenizer, *, max_length: int) -> list[tuple[str, int]]:
    """Split a text into (piece, length in tokens), in order; joined by spaces, the pieces give the words of the text.

    Each piece is tokenised by itself. A piece that is still longer than `max_length` could not be split (a single
    character with more tokens); the caller refuses it.
    """
    return _cut(" ".join(text.split()), tokenizer, max_length)


def _cut(text: str, tokenizer: TextTokenizer, max_length: int) -> list[tuple[str, int]]:
    encoding = tokenizer.base.encode(text, add_special_tokens=False)
    spans = [span for span in encoding.offsets]
    if len(spans) <= max_length:
        return [(text, len(spans))]
    pieces: list[tuple[str, int]] = []
    start = 0  # first token of the piece
    while start < len(spans):
        stop = min(start + max_length, len(spans))
        if stop < len(spans):
            stop = _word_start(text, spans, start, stop)
        first = spans[start][0]
        last = spans[stop][0] if stop < len(spans) else len(text)
        piece = text[first:last].strip()
        if not piece or len(piece) == len(text):  # one character has several tokens
            return [*pieces, (text[first:].strip(), len(spans) - start)]
        pieces += _split_in_halves(piece, tokenizer, max_length)
        start = stop
    return pieces


def _split_in_halves(piece: str, tokenizer: TextTokenizer, max_length: int) -> list[tuple[str, int]]:
    """Split a piece in halves while it has too many tokens: alone it may have more than inside the text."""
    length = len(tokenizer.base.encode(piece, add_special_tokens=False).ids)
    if length <= max_length or len(piece) < 2:
        return [(piece, length)]
    words = piece.split(" ")
    if len(words) > 1:
        halves = [" ".join(words[: len(words) // 2]), " ".join(words[len(words) // 2 :])]
    else:
        halves = [piece[: len(piece) // 2], piece[len(piece) // 2 :]]
    return [part for half in halves for part in _split_in_halves(half, tokenizer, max_length)]


def _word_start(text: str, spans: list[tuple[int, int]], start: int, stop: int) -> int:
    """Return the last token in (start, stop] that begins a word, or `stop` where there is none."""
    for token in range(stop, start, -1):
        at = spans[token][0]
        if at > spans[start][0] and (text[at - 1 : at].isspace() or text[at : at + 1].isspace()):
            return token
    return stop
