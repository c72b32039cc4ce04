"""MMLDLM: the Python interface of a trained model.

Latents in arguments and results are *raw*: the encoder's vectors, as stores and `.npy` files contain them. Internally
they are standardised.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NoReturn, get_args

import numpy as np
import numpy.typing as npt
import torch

from mm_ldlm.core.errors import SamplingError
from mm_ldlm.core.kinds import Registry
from mm_ldlm.core.messages import show
from mm_ldlm.data.corpus.tokenizer import TextTokenizer
from mm_ldlm.inference import editing, embedding, inputs, inverting, memory, scoring
from mm_ldlm.inference.batching import default_batch_tokens
from mm_ldlm.inference.edge import Encoder, Latents, TooLong
from mm_ldlm.inference.engine import Engine
from mm_ldlm.inference.loading import Parts, load_run
from mm_ldlm.inference.results import Embeddings, Interpolations, Neighbours, Scores, Texts
from mm_ldlm.models.base import DataShape
from mm_ldlm.objectives.capabilities import USES, Capabilities
from mm_ldlm.objectives.generation import GenerativeModel
from mm_ldlm.sampling.config import Keep, SearchConfig
from mm_ldlm.sampling.lengths import Length

REQUESTS = Registry(what="request", core={}, group="requests")
"""Methods and properties that families and other packages add to `MMLDLM`: functions whose first argument is the model,
and properties."""


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
        batch_tokens: number of tokens of one batch including pads; None chooses it by the device and the size of the
            vocabulary. A CPU computes a batch on each core (docs/configuration.md, OMP_NUM_THREADS).
        load_encoder: loads the encoder when it is first needed, if `encoder` is None.
        no_encoder: the reason why there is neither, for messages.
        normalisers: the normalisers of other data by name, such as "image_normaliser".
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
        no_encoder: str | None = None,
        normalisers: Mapping[str, Any] | None = None,
    ) -> None:
        self.model, self.capabilities, self.tokenizer, self.normaliser = model, capabilities, tokenizer, normaliser
        self.parts: Parts | None = None
        self.normalisers = dict(normalisers or {})
        if batch_tokens is None:
            batch_tokens = default_batch_tokens(tokenizer.vocab_size, model.device)
        batch_tokens = inputs.check_integer(batch_tokens, name="batch_tokens", minimum=1)
        if encoder is not None and not (hasattr(encoder, "encode") and hasattr(encoder, "dim")):
            raise SamplingError(f"encoder: expected an encoder (dim, encode), found {show(encoder, 60)}.")
        memory.refuse_batch(batch_tokens, vocab_size=tokenizer.vocab_size)
        self._engine = Engine(
            model, capabilities, tokenizer, normaliser,
            encoder=encoder, load_encoder=load_encoder, no_encoder=no_encoder, batch_tokens=batch_tokens,
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
            batch_tokens=batch_tokens, load_encoder=parts.load_encoder, no_encoder=parts.no_encoder,
            normalisers=parts.normalisers,
        )  # fmt: skip
        made.parts = parts
        return made

    def __deepcopy__(self, memo: dict[int, Any]) -> MMLDLM:
        """Copy the weights; the tokenizer, the normalisers and the encoder, which do not change, are shared."""
        engine = self._engine
        made = MMLDLM(
            copy.deepcopy(self.model, memo), self.capabilities, self.tokenizer, self.normaliser, engine.edge.loaded,
            batch_tokens=self.batch_tokens, load_encoder=engine.edge.load_encoder, no_encoder=engine.edge.no_encoder,
            normalisers=self.normalisers,
        )  # fmt: skip
        made.parts = self.parts
        return made

    def __copy__(self) -> MMLDLM:
        """Copy the model; a copy that shared its weights would be the same object."""
        return copy.deepcopy(self)

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        """Refuse pickling, which runs code when it is read and does not contain the encoder."""
        raise SamplingError(
            "MMLDLM is not pickled. Give the other process the path of the run folder and load it there by "
            "MMLDLM.from_run(path)."
        )

    def __repr__(self) -> str:
        """Name the run, the step, the number of parameters and the uses in one line."""
        run = f"{self.parts.checkpoint.parent.parent.name}, step {self.parts.step:,}, " if self.parts else ""
        count = sum(parameter.numel() for parameter in self.model.model.parameters())
        uses = ", ".join(use for use in USES if use in self.capabilities)
        return f"MMLDLM({run}{count:,} parameters, {self.capabilities.trained_as}; can {uses or 'nothing'})"

    def __getattr__(self, name: str) -> Any:
        """Find a request that a family or another package adds (`REQUESTS`)."""
        if name.startswith("_") or name not in REQUESTS:
            raise AttributeError(f"'MMLDLM' object has no attribute {name!r}")
        return REQUESTS.load(name).__get__(self, type(self))

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *REQUESTS})

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
        return self._engine.edge.dim

    @property
    def max_length(self) -> int:
        """Number of tokens of the longest text that the model reads at once."""
        return self.shape.max_length

    @property
    def batch_tokens(self) -> int:
        """Number of tokens of one batch, including pads."""
        return self._engine.batch_tokens

    @property
    def encoder(self) -> Encoder:
        """Encoder that made the latents.

        Raises:
            SamplingError: there is no encoder, or the dimension of its vectors differs from that of the latents.
        """
        return self._engine.edge.encoder

    @property
    def no_encoder(self) -> str | None:
        """Reason why the encoder cannot embed texts here; None if it can. Search, re-embedding and texts as targets
        need it."""
        return self._engine.edge.no_encoder

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
        samples: int = 1,
        keep: Keep = "best",
    ) -> Texts:
        """Invert embeddings: write a text for each latent, or several.

        Args:
            targets: raw latents (n, d), the path of a `.npy` file of them, or texts, which the encoder embeds first.
            sampler: a kind or the configuration of a sampler. A kind alone uses 4 steps at temperature 0; None uses the
                default sampler of the model. `steps` overrides the number of steps.
            length: 'argmax' or 'sample' of the length head given the latent; 'top-n' (as in 'top-3') writes a text of
                each of the n most probable lengths and keeps the most probable one; or a number of tokens.
            search: re-embed candidates and keep the nearest (needs the encoder); see `sampling.config.SearchConfig`.
            reembed: report the cosine of each text to its target also without a search, at one encoder call per text.
            samples: number of texts that are written for each latent. More than one need a sampler with a temperature
                above 0, or the length 'sample'; otherwise they are equal, with a warning.
            keep: of several texts, 'best' keeps one for each latent: that of the highest cosine (with `reembed` or
                `search`), otherwise of the highest log-probability. 'all' keeps them, latent by latent, and `best`
                marks these.
        """
        return inverting.invert(
            self._engine, targets, sampler=sampler, steps=steps, length=length, search=search, reembed=reembed,
            seed=seed, samples=samples, keep=keep,
        )  # fmt: skip

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
        ids = self._engine.edge.ids(listed, too_long=too_long)
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
        return embedding.embed(self._engine, ids, texts, sampler=sampler, steps=steps, draws=draws, seed=seed)

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
        return inverting.generate(
            self._engine, n, order=order, sampler=sampler, latent_sampler=latent_sampler, steps=steps, length=length,
            seed=seed,
        )  # fmt: skip

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

        Everything else in a text stays letter for letter, also words that are [UNK] to the model.

        Raises:
            SamplingError: a text has no `mask`, is empty, or is too long.
        """
        return editing.infill(
            self._engine, texts, latents=latents, sampler=sampler, steps=steps, mask=mask, seed=seed
        )  # fmt: skip

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
        The tokens that are not rewritten stay letter for letter.
        """
        return editing.edit(
            self._engine, sources, targets=targets, strength=strength, which=which, sampler=sampler, steps=steps,
            reembed=reembed, seed=seed,
        )  # fmt: skip

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
        return inverting.interpolate(
            self._engine, a, b, steps=steps, path=path, sampler=sampler, length=length, reembed=reembed, seed=seed
        )  # fmt: skip

    def score(
        self, texts: Sequence[str] | str, *, latents: Latents | None = None, draws: int = 16, seed: int = 0
    ) -> Scores:
        """Compute −log p of each text in nats, given its raw latent or without one: exact, or an upper bound (NELBO).

        The upper bound is −log p(length) plus the NELBO of the tokens, estimated by `draws` low-discrepancy draws for
        each text, with its standard error. `capabilities.likelihood` states whether the value is exact.
        """
        listed = inputs.check_texts(texts)
        return self.score_tokens(self._engine.edge.ids(listed), listed, latents=latents, draws=draws, seed=seed)

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
        return scoring.score(self._engine, ids, texts, latents=latents, draws=draws, seed=seed)

    def neighbours(self, latents: Latents, store: Any, *, k: int = 5) -> Neighbours:
        """Find the k rows of `store` nearest to each raw latent by cosine.

        `store` is a `latents.store.LatentStore`, or an (m, d) array, whose row numbers then serve as ids.
        """
        k = inputs.check_integer(k, name="k", minimum=1)
        return editing.neighbours(inputs.check_latents(latents, dim=self.dim), store, k=k)

    def encode(self, texts: Sequence[str] | str) -> npt.NDArray[np.float32]:
        """Embed texts by the encoder: raw latents (n, d)."""
        return self._engine.edge.encoded(inputs.check_texts(texts))
