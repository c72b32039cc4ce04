"""Nodes of `evaluation`: the model is loaded once, and each suite returns its metrics.

A suite that the run's capabilities do not support returns `{"skipped": reason}`. Every result names the weights, the
parameters and the seed that made it; samples of other weights are refused.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable
from functools import partial, wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mm_ldlm.core.config import parse, to_dict
from mm_ldlm.pipelines.trained import load_trained

if TYPE_CHECKING:
    import pandas as pd

    from mm_ldlm.data import Dataset
    from mm_ldlm.evaluation.config import EvaluationConfig
    from mm_ldlm.inference import MMLDLM

log = logging.getLogger(__name__)

Parameters = Any  # a section of the parameters, parsed by the hook
Metrics = dict[str, Any]
SUITES = ("inversion", "sts", "likelihood", "latents", "generation", "classification", "images")
"""Suites of this pipeline, each a catalog entry `metrics_{suite}`."""
_AGAIN = (
    "Run `kedro run --pipelines=sampling,evaluation,reporting`, with the same checkpoint and use_ema in the sections "
    "sampling and evaluation."
)


def _signed(suite: Callable[..., Any]) -> Callable[..., Any]:
    """Refuse samples of other weights than the model's, and sign the metrics and rows of a suite (`provenance`)."""

    @wraps(suite)
    def evaluate(*arguments: Any, **named: Any) -> Any:
        from mm_ldlm.training.checkpoints.provenance import MADE_BY, made_by, refuse_other, weights_of

        given = inspect.signature(suite).bind(*arguments, **named).arguments
        model, evaluation = given["model"], given["evaluation"]
        if model.parts is None:  # a model that was built in memory
            return suite(*arguments, **named)
        config = _config(evaluation)
        weights = weights_of(model.parts.checkpoint, use_ema=config.use_ema)
        about = made_by(weights, parameters=to_dict(config), seed=given["seed"])
        for name, table in given.items():
            if name.startswith("samples_"):
                found = table.attrs.get(MADE_BY)
                refuse_other(found, weights, what=name, remedy=_AGAIN)
                about.setdefault("samples", {})[name] = found
        result = suite(*arguments, **named)
        metrics = result[1] if isinstance(result, tuple) else result
        metrics[MADE_BY] = about
        if isinstance(result, tuple):
            result[0].attrs = {MADE_BY: about}
        return result

    return evaluate


def load_model(run: dict[str, Any], runs: Path, dataset: Dataset, evaluation: Parameters) -> MMLDLM:
    """Load the run's model, once for all suites; refuse a run of another vocabulary or encoder than the dataset's."""
    return load_trained(run, runs, dataset, _config(evaluation))


@_signed
def evaluate_inversion(
    model: MMLDLM, dataset: Dataset, samples_l2t: pd.DataFrame, evaluation: Parameters, seed: int
) -> tuple[pd.DataFrame, Metrics]:
    """Score the sentences that `sampling` reconstructed; compare samplers, baselines and memorisation."""
    from mm_ldlm.data.sentences import read_sentences, sample_rows, split_rows, texts_of_split
    from mm_ldlm.evaluation import samples
    from mm_ldlm.evaluation.suites import inversion as suite

    config = _config(evaluation)
    options: dict[str, Any] = {"bootstrap": config.bootstrap, "seed": seed}
    if (reason := model.capabilities.refusal("l2t") or samples.without_truth(samples_l2t)) is not None:
        return samples.no_rows(), {"skipped": reason}
    sentences, outputs = samples.of_samples(samples_l2t, dataset=dataset)
    rows = suite.score(model, sentences, outputs)
    metrics = suite.headline(rows, config=config.inversion, **options)
    part = sentences.some(config.inversion.sweep_sentences, seed=seed)
    metrics["sweep_sentences"] = len(part)
    if (without := suite.no_encoder(model)) is not None:
        points = [f"the point '{point.label}'" for point in suite.without_encoder(model, config.inversion)]
        metrics["left_out"] = [f"{', '.join(['cosines of re-embedded texts', *points])}: {without}"]
        log.info("left out of the inversion: %s", metrics["left_out"][0])
    metrics["sweep"] = suite.sweep(model, part, config=config.inversion, progress=config.progress, **options)
    if config.inversion.baseline_rows:
        train = sample_rows(split_rows(dataset, "train"), config.inversion.baseline_rows, seed=seed)
        metrics["baselines"] = suite.baselines(model, sentences, read_sentences(dataset, train), **options)
    metrics["memorised"] = suite.memorisation(
        rows["hypothesis"].tolist(), rows["reference"].tolist(), texts_of_split(dataset, "train")
    )
    return rows, metrics


@_signed
def evaluate_sts(model: MMLDLM, evaluation: Parameters, seed: int) -> Metrics:
    """Score every STS set for the model, the one-step regression and the encoder."""
    from mm_ldlm.evaluation.suites import sts as suite

    config = _config(evaluation)
    return suite.evaluate(model, config=config.sts, bootstrap=config.bootstrap, seed=seed, progress=config.progress)


@_signed
def evaluate_likelihood(
    model: MMLDLM, dataset: Dataset, evaluation: Parameters, seed: int
) -> tuple[pd.DataFrame, Metrics]:
    """Score held-out sentences, with and without their latents, and other texts."""
    from mm_ldlm.data.sentences import held_out
    from mm_ldlm.evaluation.suites import likelihood as suite

    config = _config(evaluation)
    sentences = held_out(dataset, count=config.likelihood.sentences, seed=seed)
    return suite.evaluate(model, sentences, config=config.likelihood, seed=seed)


@_signed
def evaluate_latents(
    model: MMLDLM,
    dataset: Dataset,
    samples_t2l: pd.DataFrame,
    samples_unconditional: pd.DataFrame,
    evaluation: Parameters,
    seed: int,
) -> Metrics:
    """Compare the latents that `sampling` drew for held-out texts with those of the encoder."""
    from mm_ldlm.data.sentences import latents_of, sample_rows, split_rows
    from mm_ldlm.evaluation import samples
    from mm_ldlm.evaluation.suites import latents as suite

    config = _config(evaluation)
    if (reason := model.capabilities.refusal("t2l") or samples.without_truth(samples_t2l)) is not None:
        return {"skipped": reason}
    sentences, generated = samples.of_samples(samples_t2l, dataset=dataset)
    others = max(2, config.latents.candidates - len(sentences))
    rows = sample_rows(split_rows(dataset, "train"), others, seed=seed)
    return suite.evaluate(
        model,
        sentences,
        samples.required_vectors(generated),
        distractors_md=latents_of(dataset, rows),
        unconditional_nd=samples.vectors(samples_unconditional),
        sampler=config.sts.sampler,
        config=config.latents,
        bootstrap=config.bootstrap,
        seed=seed,
    )


@_signed
def evaluate_generation(
    model: MMLDLM, dataset: Dataset, samples_unconditional: pd.DataFrame, evaluation: Parameters, seed: int
) -> Metrics:
    """Measure the texts that `sampling` generated from noise, and as many real ones, with the same functions."""
    from mm_ldlm.data.sentences import held_out, texts_of_split
    from mm_ldlm.evaluation import samples
    from mm_ldlm.evaluation.suites import generation as suite

    config = _config(evaluation)
    texts = [str(text) for text in samples_unconditional["text"]] if len(samples_unconditional) else []
    if (reason := suite.skip_reason(model, texts)) is not None:
        return {"skipped": reason}
    real = held_out(dataset, count=len(texts), seed=seed)
    return suite.evaluate(
        texts,
        samples.token_rows(samples_unconditional, model.tokenizer),
        real_texts=real.texts,
        real_tokens=real.tokens,
        training_texts=partial(texts_of_split, dataset, "train"),
        config=config.generation,
        bootstrap=config.bootstrap,
        device=str(model.device),
        seed=seed,
    )


@_signed
def evaluate_classification(model: MMLDLM, dataset: Dataset, evaluation: Parameters, seed: int) -> Metrics:
    """Measure the classes of held-out examples, beside logistic regression on the latents."""
    from mm_ldlm.families.classification import suite

    config = _config(evaluation)
    return suite.evaluate(model, dataset, config=config.classification, bootstrap=config.bootstrap, seed=seed)


@_signed
def evaluate_images(
    model: MMLDLM,
    dataset: Dataset,
    samples_caption_to_image: pd.DataFrame,
    samples_image_to_caption: pd.DataFrame,
    samples_image_text: pd.DataFrame,
    evaluation: Parameters,
    seed: int,
) -> Metrics:
    """Score the images and captions that `sampling` generated, by a classifier trained on real images."""
    from mm_ldlm.families.images import suite

    tables = (samples_caption_to_image, samples_image_to_caption, samples_image_text)
    if (reason := suite.skip_reason(model, tables)) is not None:
        return {"skipped": reason}
    config = _config(evaluation)
    return suite.evaluate(
        dataset, drawn=tables[0], written=tables[1], both=tables[2], config=config.images, bootstrap=config.bootstrap,
        seed=seed,
    )  # fmt: skip


def _config(evaluation: Parameters) -> EvaluationConfig:
    from mm_ldlm.evaluation.config import EvaluationConfig

    return parse(EvaluationConfig, evaluation, at="evaluation")
