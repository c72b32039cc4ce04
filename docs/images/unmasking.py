"""Draw docs/images/unmasking.svg: sentences become embeddings, and a trained model writes them back, token by token.

Usage, after `make run`: python docs/images/unmasking.py [RUN] [OUTPUT]

The committed picture is of 500 steps of 128 of 8,000 sentences (`--env=l2t`), without a search.
"""

import html
import sys
from pathlib import Path

import numpy as np
import torch

from mm_ldlm import MMLDLM
from mm_ldlm.diffusion.random import RowGenerator
from mm_ldlm.sampling.registry import text_sampler

SENTENCES = (
    "The actor who lives near the harbor drives a taxi.",
    "The dancer's car is more expensive than our camera.",
    "The lazy owl slept in the garden.",
)
WIDTH, HEIGHT, MARGIN, BARS = 880, 268, 24, 96
SECONDS, FIRST, STEP = 7.0, 1.6, 0.36
"""Length of a scene, beginning of its unmasking, and time between two tokens"""
CHARACTER, GAP = 9.1, 6
STYLE = """
text { font: 15px ui-monospace, SFMono-Regular, Menlo, Consolas, monospace; fill: #1b1f24 }
.note { font: 12.5px system-ui, -apple-system, Segoe UI, sans-serif; fill: #656d76 }
.card { fill: #ffffff; stroke: #d0d7de }
.mask { fill: #d8dee4 } .word { fill: #ddf4ff; stroke: #54aeff }
.plus { fill: #0969da } .minus { fill: #d4572b }
@media (prefers-color-scheme: dark) {
  text { fill: #e6edf3 } .note { fill: #9198a1 } .card { fill: #0d1117; stroke: #3d444d }
  .mask { fill: #3d444d } .word { fill: #12304d; stroke: #388bfd } .plus { fill: #4493f8 } .minus { fill: #f0883e }
}
@media (prefers-reduced-motion: reduce) { * { animation: none !important } .scene + .scene { opacity: 0 } }
"""


class Film:
    """Elements of the picture, and the times at which they appear and vanish."""

    def __init__(self, scenes: int) -> None:
        self.total, self.rules, self.parts = scenes * SECONDS, list[str](), list[str]()

    def visible(self, start: float, end: float) -> str:
        """Return the attribute of an element that is visible from `start` to `end`, in seconds of the film."""
        name = f"f{len(self.rules)}"
        a, b = (100 * time / self.total for time in (start, end))
        fade = 100 * 0.25 / self.total
        before = f"0%, {a:.2f}% {{ opacity: 0 }} {a + fade:.2f}%" if start > 0 else "0%"
        after = "100% { opacity: 1 }"
        if end < self.total:
            after = f"{b - fade:.2f}% {{ opacity: 1 }} {b:.2f}%, 100% {{ opacity: 0 }}"
        self.rules.append(f"@keyframes {name} {{ {before} {{ opacity: 1 }} {after} }}")
        return f'style="animation: {name} {self.total:g}s linear infinite"'


def written(model: MMLDLM, sentence: str) -> tuple[np.ndarray, list[str], list[int], float]:
    """Embed a sentence and write it back: its embedding, the tokens, the step of each, and the cosine of the result."""
    raw_1d = model.encode([sentence])
    latents_1d = model.standardised(raw_1d)
    (length,) = model.writer.lengths("argmax", latents_1d, rows=1, seed=0)
    canvas_1L = torch.full((1, int(length)), model.shape.mask_id)
    sampler = text_sampler("confidence", steps=int(length), temperature=0.0)
    with model.parts.model.evaluating():
        made = model.parts.model.write(
            canvas_1L, canvas_1L >= 0, latents_Bd=latents_1d, sampler=sampler,
            generator=RowGenerator(0, torch.arange(1)),
        )  # fmt: skip
    ids = made.tokens[0].tolist()
    again_1d = model.encode(model.tokenizer.decode_batch([ids]))
    cosine = float((raw_1d * again_1d).sum() / np.linalg.norm(raw_1d) / np.linalg.norm(again_1d))
    return raw_1d[0], [model.tokenizer.token(id) for id in ids], made.steps[0].tolist(), cosine


def scene(film: Film, number: int, sentence: str, model: MMLDLM) -> None:
    """Draw one sentence: above the text, in the middle the embedding, below the tokens as they are unmasked."""
    vector_d, tokens, steps, cosine = written(model, sentence)
    start, end = number * SECONDS, (number + 1) * SECONDS
    put = film.parts.append
    put(f'<g class="scene" {film.visible(start, end)}>')
    put(f'<text class="note" x="{MARGIN}" y="34">a sentence</text>')
    put(f'<text x="{MARGIN}" y="58">{html.escape(sentence)}</text>')
    put(f'<text class="note" x="{MARGIN}" y="92">↓ encoder: {len(vector_d)} numbers, the first {BARS} of them</text>')
    scale, step = 26 / np.abs(vector_d[:BARS]).max(), (WIDTH - 2 * MARGIN) / BARS
    for place, value in enumerate(vector_d[:BARS] * scale):
        x, y = MARGIN + place * step, 128 - max(value, 0)
        side = "plus" if value > 0 else "minus"
        put(f'<rect class="{side}" x="{x:.1f}" y="{y:.1f}" width="{step - 2:.1f}" height="{abs(value):.1f}"/>')
    note = "↓ the model, which reads only these numbers, unmasks the most certain token first"
    put(f'<text class="note" x="{MARGIN}" y="182">{note}</text>')
    x = float(MARGIN)
    for token, when in zip(tokens, steps, strict=True):
        width, at = max(len(token), 2) * CHARACTER + 14, start + FIRST + STEP * when
        box = f'x="{x:.1f}" y="198" width="{width:.1f}" height="28" rx="5"'
        put(f'<rect class="mask" {box}/><g {film.visible(at, end)}><rect class="word" {box}/>')
        put(f'<text x="{x + width / 2:.1f}" y="217" text-anchor="middle">{html.escape(token)}</text></g>')
        x += width + GAP
    put(f"<g {film.visible(start + FIRST + STEP * (len(tokens) + 1), end)}>")
    note = f"embedded again: cosine {cosine:.3f} to the first embedding"
    put(f'<text class="note" x="{MARGIN}" y="249">{note}</text></g></g>')


def main(run: str = "data", output: str = "docs/images/unmasking.svg") -> None:
    model, film = MMLDLM.from_run(run), Film(len(SENTENCES))
    for number, sentence in enumerate(SENTENCES):
        scene(film, number, sentence, model)
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img">'
    style = f"<style>{STYLE}{' '.join(film.rules)}</style>"
    card = f'<rect class="card" x="1" y="1" width="{WIDTH - 2}" height="{HEIGHT - 2}" rx="10"/>'
    Path(output).write_text("\n".join([head, style, card, *film.parts, "</svg>"]) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
