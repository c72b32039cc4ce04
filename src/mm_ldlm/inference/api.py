"""MMLDLM: the Python interface of a trained model.

Latents in arguments and results are *raw*: the encoder's vectors, as stores and `.npy` files contain them. Internally
they are standardised.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from numbers import Real
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt
import torch

from mm_ldlm.corpus.tokenizer import TextTokenizer
from mm_ldlm.errors import SamplingError
from mm_ldlm.inference import editing, inputs
from mm_ldlm.inference.batching import default_batch_tokens
from mm_ldlm.inference.choices import latent_config, text_config
from mm_ldlm.inference.classifying import classify_latents, classify_tokens, refuse_second, second_texts
from mm_ldlm.inference.edge import Edge, Encoder, Latents, TooLong
from mm_ldlm.inference.images import ImageWriter
from mm_ldlm.inference.latents import LatentWriter
from mm_ldlm.inference.loading import Parts, load_run
from mm_ldlm.inference.results import Classes, Embeddings, Interpolations, Neighbours, Scores, Texts
from mm_ldlm.inference.scoring import score_tokens
from mm_ldlm.inference.writing import Writer, Written
from mm_ldlm.models.base import DataShape
from mm_ldlm.objectives.capabilities import USES, Capabilities, Use
from mm_ldlm.objectives.generation import GenerativeModel
from mm_ldlm.sampling.config import JointOrder, SearchConfig, refuse_samplers
from mm_ldlm.sampling.lengths import Length, how_many_lengths, refuse_long


class MMLDLM:
    """Trained model that embeds, inverts, generates, infills, edits, interpolates, scores and classifies texts.

    `MMLDLM.from_run(path)` loads it from a run folder; `capabilities` lists the supported uses. Samplers are chosen by
    kind or by their configuration. The `seed` and the position of a text in the request determine its sample, for any
    batching. Methods that re-embed texts, or receive texts in place of latents, need the encoder.

    Args:
        model: the trained model with the conventions of its objective, on its device.
        capabilities: what the run can do.
        tokenizer: the tokenizer of the run.
        normaliser: the normaliser of the latents; None for a run without latents.
        encoder: the encoder that made the latents, or None.
        batch_tokens: number of tokens of one batch including pads; None chooses it by the size of the vocabulary.
        load_encoder: loads the encoder when it is first needed, if `encoder` is None.
        image_normaliser: the normaliser of the images; None for a run without images.
    """

    def __init__(
        self,
        model: GenerativeModel,
        capabilities: Capabilities,
        tokenizer: TextTokenizer,
        normaliser: Any | None = None,
        encoder: Encoder | None = None,
        *,
        batch_tokens: int | None = None,
        load_encoder: Callable[[], Encoder] | None = None,
        image_normaliser: Any | None = None,
    ) -> None:
        self.model, self.capabilities, self.tokenizer, self.normaliser = model, capabilities, tokenizer, normaliser
        self.parts: Parts | None = None
        self.image_normaliser = image_normaliser
        batch_tokens = batch_tokens or default_batch_tokens(tokenizer.vocab_size)
        self._writer = Writer(model, batch_tokens=batch_tokens)
        self._latents = LatentWriter(model, batch_tokens=batch_tokens)
        self._edge = Edge(
            model.shape, model.device, tokenizer, normaliser, encoder=encoder, load_encoder=load_encoder
        )  # fmt: skip

    @classmethod
    def from_run(
        cls,
        path: str | Path,
        *,
        encoder: Encoder | None = None,
        checkpoint: str | int = "latest",
        use_ema: bool = True,
        device: str | torch.device | None = None,
        batch_tokens: int | None = None,
    ) -> MMLDLM:
        """Load a trained model from a run folder.

        Args:
            path: a run folder, one of its checkpoints, or a folder of runs, of which the newest is used.
            encoder: the encoder; None loads the encoder named in the run's config.json when it is first needed.
            checkpoint: "latest", "best", a step, or the name of a checkpoint folder ("step-00001000").
            use_ema: use the averaged weights (EMA) instead of the last ones.
            device: the device; None is the first GPU if there is one, otherwise the CPU.

        Raises:
            CheckpointError: the folder has no complete checkpoint, or files that a model needs are missing.
        """
        parts = load_run(path, checkpoint=checkpoint, use_ema=use_ema, device=device)
        made = cls(
            parts.model, parts.capabilities, parts.tokenizer, parts.normaliser, encoder,
            batch_tokens=batch_tokens, load_encoder=parts.load_encoder, image_normaliser=parts.image_normaliser,
        )  # fmt: skip
        made.parts = parts
        return made

    def __repr__(self) -> str:
        """Name the run, the step, the number of parameters and the uses in one line."""
        run = f"{self.parts.checkpoint.parent.parent.name}, step {self.parts.step:,}, " if self.parts else ""
        count = sum(parameter.numel() for parameter in self.model.model.parameters())
        uses = ", ".join(use for use in USES if use in self.capabilities)
        return f"MMLDLM({run}{count:,} parameters, {self.capabilities.trained_as}; can {uses or 'nothing'})"

    # --- properties ---------------------------------------------------------------------------------------------------

    @property
    def shape(self) -> DataShape:
        """Vocabulary size, maximum text length, and dimension of a latent (None without latents)."""
        return self.model.shape

    @property
    def device(self) -> torch.device:
        return self.model.device

    @property
    def dim(self) -> int:
        """Dimension d of a latent.

        Raises:
            SamplingError: the run has no latents.
        """
        return self._edge.dim

    @property
    def max_length(self) -> int:
        """Number of tokens of the longest text that the model reads at once."""
        return self.shape.max_length

    @property
    def batch_tokens(self) -> int:
        """Number of tokens of one batch, including pads."""
        return self._writer.batch_tokens

    @property
    def encoder(self) -> Encoder:
        """Encoder that made the latents.

        Raises:
            SamplingError: there is no encoder, or the dimension of its vectors differs from that of the latents.
        """
        return self._edge.encoder

    @property
    def images(self) -> ImageWriter:
        """Images from captions, captions of images, and both together.

        Raises:
            SamplingError: the run has no images.
        """
        if self.image_normaliser is None:
            raise SamplingError(
                f"this run has no images: it was trained with {self.capabilities.trained_as}. Train an objective that "
                "reads images (kedro run --env=digits)."
            )
        return ImageWriter(
            self.model, self.capabilities, self.tokenizer, self.image_normaliser, batch_tokens=self.batch_tokens
        )

    # --- the uses -----------------------------------------------------------------------------------------------------

    def invert(
        self,
        targets: Latents | Sequence[str] | str | Path,
        *,
        sampler: Any = None,
        steps: int | None = None,
        length: Length = "argmax",
        search: SearchConfig | None = None,
        reembed: bool = False,
        seed: int = 0,
    ) -> Texts:
        """Invert embeddings: write a text for each latent.

        Args:
            targets: raw latents (n, d), the path of a `.npy` file of them, or texts, which the encoder embeds first.
            sampler: a kind or the configuration of a sampler. A kind alone uses 4 steps at temperature 0; None uses the
                default sampler of the model. `steps` overrides the number of steps.
            length: 'argmax' or 'sample' of the length head given the latent; 'top-n' (as in 'top-3') writes a text of
                each of the n most probable lengths and keeps the most probable one; or a number of tokens.
            search: re-embed candidates and keep the nearest (needs the encoder); see `sampling.config.SearchConfig`.
            reembed: report the cosine of each text to its target also without a search, at one encoder call per text.
        """
        self.capabilities.require("l2t")
        seed = inputs.check_integer(seed, name="seed")
        config = self._text_sampler(sampler, steps)
        length = self._length(length, "l2t", sampler=config)
        sources, raw_nd = self._edge.targets(targets)
        latents_nd = self._edge.standardised(raw_nd)
        several = how_many_lengths(length)
        if search is not None and search.enabled:
            lengths = self._writer.lengths(length, latents_nd, rows=len(raw_nd), seed=seed)
            starts = self._writer.starting_canvases(latents_nd, first=lengths, config=search)
            written = self._writer.search(
                starts,
                latents_nd=latents_nd,
                cosines=self._edge.cosines(raw_nd),
                sampler=config,
                config=search,
                seed=seed,
            )
        elif several > 1:
            written = self._writer.write_likeliest_length(
                lengths=several, latents_nd=latents_nd, rows=len(raw_nd), sampler=config, seed=seed
            )
        else:
            lengths = self._writer.lengths(length, latents_nd, rows=len(raw_nd), seed=seed)
            written = self._writer.write(self._masks(lengths), latents_nd=latents_nd, sampler=config, seed=seed)
        return self._texts(written, sources, raw_nd, reembed=reembed)

    def embed(
        self,
        texts: Sequence[str] | str,
        *,
        sampler: Any = "ddim",
        steps: int | None = None,
        draws: int | None = None,
        too_long: TooLong = "refuse",
        seed: int = 0,
    ) -> Embeddings:
        """Embed texts by the model instead of the encoder: the mean of `draws` samples of the latent.

        `sampler="one_step"` is the regression baseline with one model call. `too_long="truncate"` truncates long texts,
        as encoders do.
        """
        self.capabilities.require("t2l")
        inputs.check_choice(too_long, get_args(TooLong), name="too_long")
        listed = inputs.check_texts(texts)
        ids = self._edge.ids(listed, too_long=too_long)
        return self.embed_tokens(ids, listed, sampler=sampler, steps=steps, draws=draws, seed=seed)

    def embed_tokens(
        self,
        ids: Sequence[Sequence[int]],
        texts: Sequence[str],
        *,
        sampler: Any = "ddim",
        steps: int | None = None,
        draws: int | None = None,
        seed: int = 0,
    ) -> Embeddings:
        """Embed tokenised texts (each of 1..max_length ids), as stores contain them; see `embed`."""
        self.capabilities.require("t2l")
        inputs.check_tokens(ids, texts, shape=self.shape)
        seed = inputs.check_integer(seed, name="seed")
        drawn = self._latents.given_texts(ids, config=latent_config(sampler, steps, draws), seed=seed)
        draws_Knd = np.stack([self._edge.raw(draw_nd) for draw_nd in drawn.draws])
        return Embeddings(tuple(texts), self._edge.raw(drawn.draws.mean(dim=0)), draws_Knd, drawn.model_calls)

    def generate(
        self,
        n: int,
        *,
        order: Literal["together", "latent_first", "text_first"] = "text_first",
        sampler: Any = None,
        latent_sampler: Any = "ddim",
        steps: int | None = None,
        length: Length = "sample",
        seed: int = 0,
    ) -> Texts:
        """Generate `n` texts from noise, with their latents if the run generates latents.

        `order` is 'text_first' (then the latent given the text), 'latent_first' (then the text given the latent) or
        'together' (ancestral steps in the text and as many DDIM steps in the latent, without guidance). A run that
        generates no latents has no order. `sampler` is a kind or a configuration; a kind alone uses the model's default
        steps and temperature for generation, and in the order 'together' the steps of the latent sampler. `steps`
        overrides the steps of both samplers. Lengths are drawn from the marginal distribution, or given the latent if
        it is drawn first.
        """
        self.capabilities.require("unconditional")
        n = inputs.check_integer(n, name="n", minimum=1)
        seed = inputs.check_integer(seed, name="seed")
        inputs.check_choice(order, get_args(JointOrder), name="order")
        latent = latent_config(latent_sampler, None, None)
        if how_many_lengths(inputs.check_length(length)) > 1:
            raise SamplingError(f"length '{length}' ranks texts instead of drawing them; use 'sample' or 'argmax'.")
        if not self.capabilities.joint_orders:
            text = self._text_sampler(sampler, steps, conditional=False)
            length = self._length(length, "unconditional", sampler=text)
            lengths = self._writer.lengths(length, None, rows=n, seed=seed)
            written = self._writer.write(self._masks(lengths), latents_nd=None, sampler=text, seed=seed)
            return self._texts(written, [None] * n, None, reembed=False)
        self.capabilities.require_order(order)
        latent = latent_config(latent, steps, None)
        if order == "together" and (sampler is None or isinstance(sampler, str)):
            text = self._text_sampler(sampler or "ancestral", latent.steps, conditional=False)
        else:
            text = self._text_sampler(sampler, steps, conditional=False)
        try:
            refuse_samplers(order, text, latent)
        except ValueError as error:
            raise SamplingError(str(error)) from None
        length = self._length(length, "unconditional", sampler=text, order=order)
        written, latents_nd = self._latents.generate(n, order, self._writer, text, latent, length, seed)
        return self._texts(written, [None] * n, self._edge.raw(latents_nd), reembed=False)

    def infill(
        self,
        texts: Sequence[str] | str,
        *,
        latents: Latents | None = None,
        sampler: Any = None,
        steps: int | None = None,
        mask: str = "[MASK]",
        seed: int = 0,
    ) -> Texts:
        """Infill texts: replace every `mask` by one token, given a latent or unconditionally.

        Raises:
            SamplingError: a text has no `mask`, is empty, or is too long.
        """
        self.capabilities.require("infill" if latents is None else "infill_given_latent")
        seed = inputs.check_integer(seed, name="seed")
        listed = inputs.check_texts(texts)
        canvases = [editing.canvas_of(text, mask=mask, tokenizer=self.tokenizer) for text in listed]
        inputs.check_lengths([len(canvas) for canvas in canvases], listed, max_length=self.max_length)
        inputs.warn_of_unknown(canvases, listed, unk_id=self.tokenizer.unk_id)
        raw_nd = self._edge.given(latents, rows=len(listed))
        latents_nd = None if raw_nd is None else self._edge.standardised(raw_nd)
        config = self._text_sampler(sampler, steps)
        written = self._writer.write(canvases, latents_nd=latents_nd, sampler=config, seed=seed)
        return self._texts(written, listed, raw_nd, reembed=False)

    def edit(
        self,
        sources: Sequence[str] | str,
        *,
        targets: Latents | Sequence[str] | str,
        strength: float = 0.5,
        which: Literal["least_likely", "random"] = "least_likely",
        sampler: Any = None,
        steps: int | None = None,
        reembed: bool = False,
        seed: int = 0,
    ) -> Texts:
        """Edit texts: rewrite a fraction `strength` of the tokens of each source, given a target latent.

        `which` chooses the tokens: those that are least likely given the target latent (four more model calls), or
        random ones. The number of tokens does not change; strength 0 returns the source, 1 keeps only its length.
        """
        self.capabilities.require("edit")
        seed = inputs.check_integer(seed, name="seed")
        listed = inputs.check_texts(sources, what="sources")
        if not isinstance(strength, Real) or not 0 <= strength <= 1:
            raise SamplingError(f"strength must lie between 0 and 1, found {strength!r}.")
        inputs.check_choice(which, ("least_likely", "random"), name="which")
        _, raw_nd = self._edge.targets(targets)
        if len(raw_nd) == 1:
            raw_nd = np.repeat(raw_nd, len(listed), axis=0)
        if len(raw_nd) != len(listed):
            raise SamplingError(
                f"edit: expected one target, or one for each of {len(listed)} sources, found {len(raw_nd)} targets."
            )
        latents_nd = self._edge.standardised(raw_nd)
        ids = self._edge.ids(listed)
        masked, calls = editing.remask(
            self._writer, ids, latents_nd=latents_nd, strength=strength, which=which, seed=seed
        )
        written = self._writer.write(
            masked, latents_nd=latents_nd, sampler=self._text_sampler(sampler, steps), seed=seed
        )
        written = replace(written, model_calls=written.model_calls + calls)
        return self._texts(written, listed, raw_nd, reembed=reembed)

    def interpolate(
        self,
        a: Latents | Sequence[str] | str,
        b: Latents | Sequence[str] | str,
        *,
        steps: int = 5,
        path: Literal["slerp", "lerp"] = "slerp",
        sampler: Any = None,
        length: Length = "argmax",
        reembed: bool = False,
        seed: int = 0,
    ) -> Interpolations:
        """Write texts at `steps` points from each latent of `a` to that of `b`, including both ends.

        'slerp' interpolates along the great circle (and the norms linearly), 'lerp' along the line between the raw
        vectors.
        """
        self.capabilities.require("interpolate")
        steps = inputs.check_integer(steps, name="interpolate: steps (with the two ends)", minimum=2)
        inputs.check_choice(path, ("slerp", "lerp"), name="path")
        sources_a, raw_a = self._edge.targets(a)
        sources_b, raw_b = self._edge.targets(b)
        if len(raw_a) != len(raw_b):
            raise SamplingError(f"interpolate: expected an end for each of {len(raw_a)} starts, found {len(raw_b)}.")
        fractions = np.linspace(0.0, 1.0, steps)
        between = editing.slerp if path == "slerp" else editing.lerp
        raw = np.stack([between(raw_a, raw_b, fraction) for fraction in fractions], axis=1).reshape(-1, self.dim)
        written = self.invert(raw.astype(np.float32), sampler=sampler, length=length, reembed=reembed, seed=seed)
        ends = [
            source
            for first, last in zip(sources_a, sources_b, strict=True)
            for source in (first, *[None] * (steps - 2), last)
        ]
        return Interpolations(
            np.repeat(np.arange(len(raw_a)), steps),
            np.tile(fractions, len(raw_a)),
            replace(written, sources=tuple(ends)),
        )

    def score(
        self, texts: Sequence[str] | str, *, latents: Latents | None = None, draws: int = 16, seed: int = 0
    ) -> Scores:
        """Compute −log p of each text in nats, given its raw latent or without one: exact, or an upper bound (NELBO).

        The upper bound is −log p(length) plus the NELBO of the tokens, estimated by `draws` low-discrepancy draws for
        each text, with its standard error. `capabilities.likelihood` states whether the value is exact.
        """
        listed = inputs.check_texts(texts)
        return self.score_tokens(self._edge.ids(listed), listed, latents=latents, draws=draws, seed=seed)

    def score_tokens(
        self,
        ids: Sequence[Sequence[int]],
        texts: Sequence[str],
        *,
        latents: Latents | None = None,
        draws: int = 16,
        seed: int = 0,
    ) -> Scores:
        """Score tokenised texts (each of 1..max_length ids); see `score`."""
        draws = inputs.check_integer(draws, name="draws", minimum=1)
        seed = inputs.check_integer(seed, name="seed")
        inputs.check_tokens(ids, texts, shape=self.shape)
        self.capabilities.require("score" if latents is None else "score_given_latent")
        raw_nd = self._edge.given(latents, rows=len(ids))
        latents_nd = None if raw_nd is None else self._edge.standardised(raw_nd)
        return score_tokens(
            self._writer, ids, texts, latents_nd=latents_nd, likelihood=self.capabilities.likelihood, draws=draws,
            seed=seed,
        )  # fmt: skip

    def classify(
        self,
        items: Latents | Sequence[str] | str | Path,
        *,
        second: Sequence[str] | str | None = None,
        too_long: TooLong = "refuse",
    ) -> Classes:
        """Assign each item to a class; `capabilities.classifies` states what an item is.

        `items` are texts; for a classifier of latents also raw latents or a `.npy` file, and the encoder embeds texts
        first. `second` is the second text of each pair, for a run that compares pairs.
        """
        self.capabilities.require("classify")
        refuse_second(self.capabilities.classifies, given=second is not None)
        if self.capabilities.classifies == "latents":
            sources, raw_nd = self._edge.targets(items)
            return self.classify_latents(raw_nd, sources)
        listed = inputs.check_texts(items)  # type: ignore[arg-type]
        ids = self._edge.ids(listed, too_long=too_long)
        others = None if second is None else self._edge.ids(second_texts(second, count=len(ids)), too_long=too_long)
        return self.classify_tokens(ids, listed, second=others)

    def classify_tokens(
        self, ids: Sequence[Sequence[int]], texts: Sequence[str], *, second: Sequence[Sequence[int]] | None = None
    ) -> Classes:
        """Classify tokenised texts (each of 1..max_length ids), or pairs with the second texts; see `classify`."""
        self.capabilities.require("classify")
        inputs.check_tokens(ids, texts, shape=self.shape)
        found = classify_tokens(self.model, ids, second=second, batch_tokens=self.batch_tokens)
        return Classes(tuple(texts), self.model.classes, found)

    def classify_latents(self, latents: Latents, sources: Sequence[str | None] | None = None) -> Classes:
        """Classify raw latents (n, d); see `classify`."""
        self.capabilities.require("classify")
        raw_nd = inputs.check_latents(latents, dim=self.dim)
        found = classify_latents(self.model, self._edge.standardised(raw_nd))
        return Classes(tuple(sources or [None] * len(raw_nd)), self.model.classes, found)

    def neighbours(self, latents: Latents, store: Any, *, k: int = 5) -> Neighbours:
        """Find the k rows of `store` nearest to each raw latent by cosine.

        `store` is a `latents.store.LatentStore`, or an (m, d) array, whose row numbers then serve as ids.
        """
        k = inputs.check_integer(k, name="k", minimum=1)
        return editing.neighbours(inputs.check_latents(latents, dim=self.dim), store, k=k)

    def encode(self, texts: Sequence[str] | str) -> npt.NDArray[np.float32]:
        """Embed texts by the encoder: raw latents (n, d)."""
        return np.asarray(self.encoder.encode(inputs.check_texts(texts)), dtype=np.float32)

    # --- pieces -------------------------------------------------------------------------------------------------------

    def _text_sampler(self, sampler: Any, steps: int | None, *, conditional: bool = True) -> Any:
        return text_config(sampler, steps, default=self.model.default_sampler(conditional=conditional))

    def _length(self, length: Length, use: Use, *, sampler: Any, order: str | None = None) -> Length:
        """Check a length before texts are made for it: the run can choose it, or the sampler can write it.

        A text that is written together with a latent, or that the latent is drawn from, fits the model's window.
        """
        length = inputs.check_length(length)
        reason = self.capabilities.refuse_length(length, use, order=order or "")
        reason = reason or refuse_long(
            length, max_length=self.max_length, sampler=sampler, process=self.capabilities.process
        )
        if reason is None and order is not None and (order != "latent_first" or self.model.latents_need_lengths):
            reason = refuse_long(length, max_length=self.max_length, sampler=None, process=None)
        if reason is not None:
            raise SamplingError(reason)
        return length

    def _masks(self, lengths: Sequence[int]) -> list[list[int]]:
        return [[self.shape.mask_id] * length for length in lengths]

    def _texts(
        self,
        written: Written,
        sources: Sequence[str | None],
        raw_nd: npt.NDArray[np.float32] | None,
        *,
        reembed: bool,
    ) -> Texts:
        cosines, encoder_calls = written.cosines, written.encoder_calls
        if reembed and cosines is None and raw_nd is not None:
            cosines = np.array(
                self._edge.cosines(raw_nd)([list(row) for row in written.tokens], list(range(len(raw_nd))))
            )
            encoder_calls = encoder_calls + 1
        return Texts(
            texts=tuple(self.tokenizer.decode_batch(written.tokens)),
            tokens=written.tokens,
            log_probs=written.log_probs,
            model_calls=written.model_calls,
            encoder_calls=encoder_calls,
            sources=tuple(sources),
            cosines=cosines,
            latents=raw_nd,
        )
