"""Nodes of `sampling`: the model is loaded once, and each task returns one table.

A task that does not take place returns a table without rows. If it was not requested, an earlier table of the same
checkpoint is kept (`datasets.samples`).
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mm_ldlm.core.config import parse, to_dict
from mm_ldlm.core.errors import SamplingError
from mm_ldlm.pipelines.trained import load_trained

if TYPE_CHECKING:
    import pandas as pd

    from mm_ldlm.data import Dataset
    from mm_ldlm.data.sentences import Sentences
    from mm_ldlm.inference import MMLDLM
    from mm_ldlm.sampling.config import SamplingConfig

Parameters = Any  # a section of the parameters, parsed by the hook
log = logging.getLogger(__name__)

TEXT_COLUMNS = {
    "source": "string", "text": "string", "tokens": "object", "length": "int64", "log_prob": "float64",
    "model_calls": "int64", "encoder_calls": "int64", "cosine": "float64",
}  # fmt: skip
L2T_COLUMNS = {"id": "string", "origin": "string", **TEXT_COLUMNS, "sample": "int64", "best": "bool"}
T2L_COLUMNS = {
    "id": "string", "origin": "string", "source": "string", "latent": "object", "model_calls": "int64",
    "cosine": "float64",
}  # fmt: skip
UNCONDITIONAL_COLUMNS = {
    "text": "string", "tokens": "object", "length": "int64", "log_prob": "float64", "model_calls": "int64",
    "latent": "object", "neighbour": "string", "neighbour_cosine": "float64",
}  # fmt: skip
EDIT_COLUMNS = {"target": "string", "strength": "float64", **TEXT_COLUMNS}
INFILL_COLUMNS = {"latent_of": "string", **TEXT_COLUMNS}
INTERPOLATE_COLUMNS = {"pair": "int64", "fraction": "float64", **TEXT_COLUMNS}
DRAWN_COLUMNS = {"id": "string", "source": "string", "image": "object", "model_calls": "int64"}
CAPTION_COLUMNS = {
    "id": "string", "source": "string", "text": "string", "tokens": "object", "length": "int64", "log_prob": "float64",
    "model_calls": "int64",
}  # fmt: skip
JOINT_COLUMNS = {"text": "string", "image": "object", "model_calls": "int64"}
IMAGE_TASKS = ("caption_to_image", "image_to_caption", "image_text")
"""Tasks that a run without images leaves out without a line in the log, unless they are listed."""
NEIGHBOUR_CANDIDATES = 50_000
"""Number of training sentences among which the nearest neighbour of a sample is searched."""


def load_model(run: dict[str, Any], runs: Path, dataset: Dataset, sampling: Parameters) -> MMLDLM:
    """Load the run's model, once for all tasks; refuse a run of another vocabulary or encoder than the dataset's."""
    return load_trained(run, runs, dataset, _config(sampling))


def sample_l2t(model: MMLDLM, dataset: Dataset, sampling: Parameters, seed: int) -> pd.DataFrame:
    """Invert held-out latents, `.npy` files and given texts; `cosine` is that of the re-embedded text.

    `sample` numbers the texts of one latent, and `best` marks the one with the highest cosine.
    Without an encoder, there is neither a search nor a cosine.
    """
    config = _config(sampling)
    if not _runs(model, config, "l2t"):
        return _table([], L2T_COLUMNS, model, config, "l2t", seed)
    embeds = model.no_encoder is None
    if not embeds:
        log.info("task 'l2t' runs without search and re-embedding: %s", model.no_encoder)
    how: dict[str, Any] = {
        "sampler": config.text, "length": config.length, "search": config.search if embeds else None,
        "reembed": embeds, "seed": seed, "samples": config.l2t.samples, "keep": config.l2t.keep,
    }  # fmt: skip
    parts = []
    if config.rows:
        held = _held_out(dataset, config, seed)
        made = model.invert(held.latents, **how)
        rows = range(len(held)) if made.rows is None else made.rows
        parts.append(
            _texts(made, id=[held.ids[i] for i in rows], origin=config.split, source=[held.texts[i] for i in rows])
        )
    for file in config.l2t.files:
        parts.append(_texts(model.invert(Path(file), **how), id=None, origin=file))
    if config.l2t.texts:
        parts.append(_texts(model.invert(list(config.l2t.texts), **how), id=None, origin="texts"))
    parts = [part if "sample" in part else part.assign(sample=0, best=True) for part in parts]
    return _table(parts, L2T_COLUMNS, model, config, "l2t", seed)


def sample_t2l(model: MMLDLM, dataset: Dataset, sampling: Parameters, seed: int) -> pd.DataFrame:
    """Sample latents of held-out and given texts; `cosine` is to the encoder's vector, if the store contains it."""
    import numpy as np

    config = _config(sampling)
    if not _runs(model, config, "t2l"):
        return _table([], T2L_COLUMNS, model, config, "t2l", seed)
    parts = []
    if config.rows:
        held = _held_out(dataset, config, seed)
        made = model.embed_tokens(held.tokens, held.texts, sampler=config.latent, seed=seed)
        cosine = np.einsum("nd,nd->n", _unit(made.latents), _unit(held.latents))
        parts.append(made.to_frame().assign(id=list(held.ids), origin=config.split, cosine=cosine))
    for origin, texts in _given_texts(config):
        parts.append(model.embed(texts, sampler=config.latent, seed=seed).to_frame().assign(id=None, origin=origin))
    return _table(parts, T2L_COLUMNS, model, config, "t2l", seed)


def sample_unconditional(model: MMLDLM, dataset: Dataset, sampling: Parameters, seed: int) -> pd.DataFrame:
    """Generate texts from noise, with their latents if the run generates latents.

    The table contains the training sentence whose latent is nearest to that of each text.
    """
    config = _config(sampling)
    how = config.unconditional
    if not _runs(model, config, "unconditional"):
        return _table([], UNCONDITIONAL_COLUMNS, model, config, "unconditional", seed)
    made = model.generate(
        how.count, order=how.order, sampler=how.text, latent_sampler=how.latent, length=how.length, seed=seed
    )
    frame = _texts(made, latent=list(made.latents) if made.latents is not None else None)
    if config.neighbours and made.latents is not None:
        from mm_ldlm.data.sentences import latents_of, sample_rows, split_rows

        rows = sample_rows(split_rows(dataset, "train"), NEIGHBOUR_CANDIDATES, seed=seed)
        found = model.neighbours(made.latents, latents_of(dataset, rows), k=1)
        nearest = dataset.records.take(rows[found.rows[:, 0]]).column("text").to_pylist()
        frame = frame.assign(neighbour=nearest, neighbour_cosine=found.cosines[:, 0])
    return _table([frame], UNCONDITIONAL_COLUMNS, model, config, "unconditional", seed)


def edit_texts(model: MMLDLM, sampling: Parameters, seed: int) -> tuple[pd.DataFrame, pd.DataFrame, pd.DataFrame]:
    """Run the tasks that start from given texts: infill, edit and interpolate."""
    config = _config(sampling)
    infill, edit, between = config.infill, config.edit, config.interpolate
    filled, edited, interpolated = [], [], []
    if _runs(model, config, "infill"):
        latents = model.encode(list(infill.latents_of)) if infill.latents_of else None
        made = model.infill(list(infill.texts), latents=latents, sampler=config.text, seed=seed)
        filled.append(_texts(made, latent_of=list(infill.latents_of) or None))
    if _runs(model, config, "edit"):
        made = model.edit(
            list(edit.sources), targets=list(edit.targets), strength=edit.strength, which=edit.which,
            sampler=config.text, reembed=True, seed=seed,
        )  # fmt: skip
        targets = list(edit.targets) * (len(edit.sources) if len(edit.targets) == 1 else 1)
        edited.append(_texts(made, target=targets, strength=edit.strength))
    if _runs(model, config, "interpolate"):
        path = model.interpolate(
            list(between.starts), list(between.ends), steps=between.steps, path=between.path,
            sampler=config.text, length=config.length, reembed=True, seed=seed,
        )  # fmt: skip
        interpolated.append(_texts(path.written, pair=path.pairs, fraction=path.fractions))
    return (
        _table(filled, INFILL_COLUMNS, model, config, "infill", seed),
        _table(edited, EDIT_COLUMNS, model, config, "edit", seed),
        _table(interpolated, INTERPOLATE_COLUMNS, model, config, "interpolate", seed),
    )


def sample_images(
    model: MMLDLM, dataset: Dataset, sampling: Parameters, seed: int
) -> tuple[pd.DataFrame, pd.DataFrame, pd.DataFrame]:
    """Generate images of held-out captions, captions of held-out images, and both together."""
    config = _config(sampling)
    how = config.images
    drawn, written, both = [], [], []
    tasks = [task for task in IMAGE_TASKS if _runs(model, config, task)]
    if tasks:
        from mm_ldlm.data import sentences

        rows = sentences.sample_rows(sentences.split_rows(dataset, config.split), config.rows, seed=seed)
        held = sentences.read_sentences(dataset, rows)
        about = {"id": list(held.ids), "source": list(held.texts)}
    if "caption_to_image" in tasks:
        made = model.images.draw_tokens(held.tokens, held.texts, sampler=how.image, seed=seed)
        drawn.append(made.to_frame().assign(**about))
    if "image_to_caption" in tasks:
        pixels = sentences.images_of(dataset, rows)
        texts = model.images.caption(pixels, sampler=how.caption, length=how.length, seed=seed)
        written.append(_texts(texts, **about))
    if "image_text" in tasks:
        both.append(model.images.generate(how.joint_count, steps=how.joint_steps, seed=seed).to_frame())
    return (
        _table(drawn, DRAWN_COLUMNS, model, config, "caption_to_image", seed),
        _table(written, CAPTION_COLUMNS, model, config, "image_to_caption", seed),
        _table(both, JOINT_COLUMNS, model, config, "image_text", seed),
    )


# --- helpers ----------------------------------------------------------------------------------------------------------


def _config(sampling: Parameters) -> SamplingConfig:
    from mm_ldlm.sampling.config import SamplingConfig

    return parse(SamplingConfig, sampling, at="sampling")


def _runs(model: MMLDLM, config: SamplingConfig, task: Any) -> bool:
    """Return whether a task takes place.

    Raises:
        SamplingError: the parameters list a task that the run does not support.
    """
    if not config.requests(task):
        return False
    reason = model.capabilities.refuse_task(
        config.use(task), order=config.unconditional.order, length=config.length_of(task)
    )
    if reason is not None and config.tasks is not None:
        raise SamplingError(reason)
    if reason is not None and (task not in IMAGE_TASKS or model.capabilities.reads_images):
        log.info("task '%s' is skipped: %s", task, reason)
    return reason is None


def _held_out(dataset: Dataset, config: SamplingConfig, seed: int) -> Sentences:
    from mm_ldlm.data.sentences import held_out

    return held_out(dataset, count=config.rows, seed=seed, split=config.split)


def _given_texts(config: SamplingConfig) -> list[tuple[str, list[str]]]:
    from mm_ldlm.inference.inputs import read_texts

    given = [(file, read_texts(file)) for file in config.t2l.files]
    return [*given, ("texts", list(config.t2l.texts))] if config.t2l.texts else given


def _texts(made: Any, **more: Any) -> pd.DataFrame:
    """Convert a result to a table with its tokens and further columns, without the latents of the condition."""
    frame = made.to_frame().drop(columns="latent", errors="ignore")
    return frame.assign(tokens=[list(row) for row in made.tokens], **more)


def _table(
    parts: Sequence[pd.DataFrame], columns: dict[str, str], model: MMLDLM, config: SamplingConfig, task: Any, seed: int
) -> pd.DataFrame:
    """Concatenate the parts, with exactly these columns and types, and the attributes that `SamplesDataset` reads."""
    import pandas as pd

    from mm_ldlm.app.datasets.samples import KEEP
    from mm_ldlm.training.checkpoints.provenance import MADE_BY, made_by, weights_of

    whole = (
        pd.concat([part.reindex(columns=list(columns)) for part in parts])
        if parts
        else pd.DataFrame(columns=list(columns))
    )
    table = whole.astype(columns).reset_index(drop=True)
    if model.parts is not None:
        weights = weights_of(model.parts.checkpoint, use_ema=config.use_ema)
        table.attrs = {MADE_BY: made_by(weights, parameters=to_dict(config), seed=seed)}
        table.attrs |= {} if config.requests(task) else {KEEP: weights}
    return table


def _unit(vectors_nd: Any) -> Any:
    import numpy as np

    return vectors_nd / np.maximum(np.linalg.norm(vectors_nd, axis=1, keepdims=True), 1e-12)
