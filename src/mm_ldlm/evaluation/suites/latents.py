"""Evaluation of the latents that the model samples for texts, compared with those of the encoder."""

from __future__ import annotations

from typing import Any

import numpy as np

from mm_ldlm.data.sentences import Sentences, sample_rows
from mm_ldlm.evaluation import retrieval as ret
from mm_ldlm.evaluation.bootstrap import mean_interval, proportion_interval
from mm_ldlm.evaluation.config import BootstrapConfig, LatentsConfig


def evaluate(
    model: Any,
    sentences: Sentences,
    generated_nd: np.ndarray,
    *,
    distractors_md: np.ndarray,
    unconditional_nd: np.ndarray | None,
    sampler: Any,
    config: LatentsConfig,
    bootstrap: BootstrapConfig,
    seed: int,
) -> dict[str, Any]:
    """Compare sampled latents and the one-step regression with the encoder's latents of the same texts.

    Args:
        generated_nd: the sampled latents of `sentences`, raw.
        distractors_md: latents of other sentences, which join the candidates of retrieval.
        unconditional_nd: latents sampled from noise alone, or None.
    """
    real_nd = sentences.latents
    options: dict[str, Any] = {"replicates": bootstrap.replicates, "seed": seed, "level": bootstrap.level}
    one_step_nd = np.asarray(model.embed(list(sentences.texts), sampler="one_step", seed=seed).latents)
    found: dict[str, Any] = {"sentences": len(sentences), "samplers": {}}
    variance = float(np.asarray(real_nd, dtype=np.float64).var(axis=0).mean())
    for name, latents_nd in (("model", generated_nd), ("one_step", one_step_nd)):
        cosine_n = ret.cosine(latents_nd, real_nd)
        error_n = ret.squared_error(latents_nd, real_nd) / variance
        rank = ret.retrieval(latents_nd, real_nd, distractors_Md=distractors_md)
        limit = config.neighbourhood_sentences
        near = ret.neighbourhoods(latents_nd, real_nd, limit=limit) if len(sentences) >= 3 else None
        found["samplers"][name] = {
            "cosine": mean_interval(cosine_n, **options).as_dict(),
            "cosine_quantiles": {
                f"{q:g}": float(np.quantile(cosine_n, q)) for q in (0.01, 0.05, 0.25, 0.5, 0.75, 0.95)
            },
            "squared_error_fraction": mean_interval(error_n, **options).as_dict(),
            "retrieval": {
                "candidates": rank.candidates,
                **{
                    f"at_{k}": proportion_interval((rank.rank_N <= k).astype(float), **options).as_dict()
                    for k in (1, 5, 10)
                },
                "mean_reciprocal_rank": mean_interval(1 / rank.rank_N, **options).as_dict(),
            },
            "neighbourhoods": None
            if near is None
            else {
                "rank_correlation": mean_interval(near.rank_correlation_N, **options).as_dict(),
                "overlap": {str(k): value for k, value in near.overlap_at.items()},
            },
            "frechet": ret.frechet_distance(latents_nd, real_nd),
            "cosines": [round(float(v), 4) for v in cosine_n],
        }
    found["spectrum"] = _spectra(real=real_nd, model=generated_nd, one_step=one_step_nd, unconditional=unconditional_nd)
    if unconditional_nd is not None and len(unconditional_nd) >= 2:
        found["unconditional_frechet"] = ret.frechet_distance(unconditional_nd, real_nd)
        # for comparison: real latents of other sentences, as many as were generated
        other = distractors_md[sample_rows(np.arange(len(distractors_md)), len(unconditional_nd), seed=seed)]
        if len(other) >= 2:
            found["real_frechet"] = ret.frechet_distance(other, real_nd)
    if config.calibration_sentences:
        part = sentences.some(config.calibration_sentences, seed=seed)
        drawn = model.embed(list(part.texts), sampler=sampler, draws=config.calibration_samples, seed=seed).draws
        result = ret.calibration(np.asarray(drawn), part.latents)
        found["calibration"] = {
            "sentences": len(part),
            "samples": result.samples,
            "cosine_single": result.cosine_single,
            "cosine_mean": result.cosine_mean,
            "spread_to_error": result.spread_to_error,
            "rank_fraction": result.rank_fraction.tolist(),
        }
    return found


def _spectra(**latents: np.ndarray | None) -> dict[str, Any]:
    found = {}
    for name, vectors in latents.items():
        if vectors is None or len(vectors) < 2:
            continue
        values = np.clip(ret.spectrum(vectors), 0, None)
        found[name] = {
            "rows": len(vectors),
            "effective_rank": ret.effective_rank(values),
            "eigenvalues": [float(f"{v:.4g}") for v in values],
        }
    return found
