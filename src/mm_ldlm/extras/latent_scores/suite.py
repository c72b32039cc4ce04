"""Quality of the latents that the model samples for held-out texts, compared with the encoder's.

Shapes: N texts, d latent dimension, K samples per text, M candidates. All arithmetic is in float64 on raw
(encoder-space) vectors.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from mm_ldlm.data.held_out import sample_rows, split_rows
from mm_ldlm.data.latents.normaliser import spectrum
from mm_ldlm.evaluation.bootstrap import weighted_pearson
from mm_ldlm.evaluation.suites.base import (
    Evaluation,
    Headline,
    Metrics,
    Suite,
    of_samples,
    unit,
    without_truth,
)


class Latents(Suite):
    """Compare sampled latents and the one-step regression with the encoder's latents of the same texts."""

    name, title, use = "latents", "From text to latent", "t2l"
    samples = ("t2l", "unconditional")
    template = "mm_ldlm.extras.latent_scores/report.html.j2"

    def skip_reason(self, given: Evaluation) -> str | None:
        samples = given.samples["t2l"]
        few = "expected at least two held-out texts, found one; raise sampling.rows"
        one = few if samples["id"].nunique() < 2 else None
        return super().skip_reason(given) or without_truth(samples) or one

    def evaluate(self, given: Evaluation) -> tuple[Metrics, pd.DataFrame | None]:
        config, seed, dataset = given.config.latents, given.seed, given.dataset
        sentences, samples = of_samples(given.samples["t2l"], dataset=dataset)
        real_nd, generated_nd = sentences.latents, vectors(samples)
        unconditional_nd = vectors(given.samples["unconditional"])
        one_step_nd = np.asarray(given.model.embed(list(sentences.texts), sampler="one_step", seed=seed).latents)
        others = sample_rows(split_rows(dataset, "train"), max(2, config.candidates - len(sentences)), seed=seed)
        others_md = dataset.require("latents").take(others)
        found: Metrics = {
            "sentences": len(sentences),
            "candidates": len(sentences) + len(others_md),
            "samplers": {
                name: _compared(latents_nd.astype(np.float64), real_nd.astype(np.float64), others_md, given)
                for name, latents_nd in (("model", generated_nd), ("one_step", one_step_nd))
            },
        }
        spectra = {"real": real_nd, "model": generated_nd, "one_step": one_step_nd, "unconditional": unconditional_nd}
        found["spectrum"] = {name: _spectrum(some_nd) for name, some_nd in spectra.items() if len(some_nd) > 1}
        if len(unconditional_nd) > 1:
            found["unconditional_frechet"] = frechet_distance(unconditional_nd, real_nd)
            # for comparison: real latents of other sentences, as many as were generated
            rows = sample_rows(np.arange(len(others_md)), len(unconditional_nd), seed=seed)
            found["real_frechet"] = frechet_distance(others_md[rows], real_nd)
        if config.calibration_sentences:
            part = sentences.some(config.calibration_sentences, seed=seed)
            drawn = given.model.embed(
                list(part.texts), sampler="ddim", steps=8, draws=config.calibration_samples, seed=seed
            ).draws
            found["calibration"] = {"sentences": len(part), **calibration(np.asarray(drawn), part.latents)}
        return found, None

    def numbers(self, metrics: Metrics) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for name, entry in metrics["samplers"].items():
            prefix = "t2l" if name == "model" else f"t2l.{name}"
            found |= {f"{prefix}.{key}": entry[key] for key in ("cosine", "squared_error_fraction", "frechet")}
            found |= {f"{prefix}.retrieval.{key}": value["value"] for key, value in entry["retrieval"].items()}
            if entry["neighbourhoods"]:
                found[f"{prefix}.neighbourhood_correlation"] = entry["neighbourhoods"]["rank_correlation"]["value"]
        return found | {
            "unconditional.frechet": metrics.get("unconditional_frechet"),
            "real.frechet": metrics.get("real_frechet"),
            "t2l.spread_to_error": metrics.get("calibration", {}).get("spread_to_error"),
        }

    def headlines(self, numbers: Mapping[str, float]) -> Sequence[Headline]:
        return (
            Headline("t2l.cosine", "Cosine, text to latent", "cosine", "to the encoder's own vector", leading=True),
            Headline("t2l.retrieval.at_1", "Retrieval at 1", "fraction"),
        )

    def figures(self, metrics: Metrics) -> dict[str, Any]:
        from mm_ldlm.extras.latent_scores import figures

        return {
            "plot_cosine": figures.cosine_histogram(metrics["samplers"]),
            "plot_latent_spectrum": figures.spectrum(metrics["spectrum"]),
            "plot_calibration": figures.calibration(metrics.get("calibration")),
        }


def _compared(latents_nd: np.ndarray, real_nd: np.ndarray, others_md: np.ndarray, given: Evaluation) -> Metrics:
    bootstrap, limit = given.bootstrap, given.config.latents.neighbourhood_sentences
    cosine_n = cosine(latents_nd, real_nd)
    error_n = ((latents_nd - real_nd) ** 2).mean(axis=1) / real_nd.var(axis=0).mean()
    rank_n = ranks(latents_nd, real_nd, others_md)
    near = None
    if len(real_nd) >= 3:
        correlation_n = neighbourhoods(latents_nd, real_nd, limit=limit)
        if np.isfinite(correlation_n).all():  # otherwise the model has collapsed
            near = {"rank_correlation": bootstrap.mean(correlation_n)}
    return {
        "cosine": bootstrap.mean(cosine_n),
        "squared_error_fraction": bootstrap.mean(error_n),
        "retrieval": {
            **{f"at_{k}": bootstrap.proportion(rank_n <= k) for k in (1, 5, 10)},
            "mean_reciprocal_rank": bootstrap.mean(1 / rank_n),
        },
        "neighbourhoods": near,
        "frechet": frechet_distance(latents_nd, real_nd),
        "cosines": cosine_n.round(4),
    }


def _spectrum(latents_nd: np.ndarray) -> Metrics:
    values_d, rank = spectrum(latents_nd)
    return {"rows": len(latents_nd), "effective_rank": rank, "eigenvalues": [float(f"{v:.4g}") for v in values_d]}


def vectors(samples: pd.DataFrame) -> np.ndarray:
    """Return the column `latent` as (n, d) float32; no rows for samples without latents."""
    kept = [np.asarray(row, dtype=np.float32) for row in samples["latent"].dropna()]
    return np.stack(kept) if kept else np.empty((0, 0), dtype=np.float32)


# -- metrics ----------------------------------------------------------------------------------------------------------


def cosine(a_Nd: np.ndarray, b_Nd: np.ndarray) -> np.ndarray:
    """Compute the cosine (N,) of each row of `a` to the same row of `b`."""
    return (unit(a_Nd) * unit(b_Nd)).sum(axis=1)


def ranks(generated_Nd: np.ndarray, real_Nd: np.ndarray, candidates_Md: np.ndarray, *, block: int = 512) -> np.ndarray:
    """Rank each generated latent's own target by cosine among all targets and the candidates: (N,), 1 = nearest.

    Ties count half, so that the ranks of a collapsed model are in the middle and not first.
    """
    query, pool = unit(generated_Nd), unit(np.concatenate([real_Nd, candidates_Md]))
    found = []
    for start in range(0, len(query), block):
        score_BM = query[start : start + block] @ pool.T
        own_B1 = np.diagonal(score_BM, offset=start)[:, None]
        closer, equal = (score_BM > own_B1 + 1e-12).sum(axis=1), (np.abs(score_BM - own_B1) <= 1e-12).sum(axis=1) - 1
        found.append(1 + closer + equal / 2)
    return np.concatenate(found)


def neighbourhoods(generated_Nd: np.ndarray, real_Nd: np.ndarray, *, limit: int = 1000) -> np.ndarray:
    """Compare the neighbourhoods of generated and of real latents, for `limit` evenly spaced texts, at least three.

    Returns for each text the Spearman correlation of its cosines to all others in the two spaces, NaN where all are
    equal.
    """
    from scipy.stats import rankdata

    places = np.unique(np.linspace(0, len(real_Nd) - 1, min(limit, len(real_Nd))).astype(int))
    count = len(places)
    others = ~np.eye(count, dtype=bool)
    sides = [unit(x_Nd[places]) for x_Nd in (generated_Nd, real_Nd)]
    alike = [(x_Nd @ x_Nd.T)[others].reshape(count, count - 1) for x_Nd in sides]
    generated, real = (rankdata(side, axis=1) for side in alike)
    return weighted_pearson(generated, real, np.ones_like(real))


def frechet_distance(generated_Nd: np.ndarray, real_Md: np.ndarray) -> float:
    """Compute the Fréchet distance of two Gaussians, as in FID (Heusel et al. 2017), each from at least two latents.

    It is ‖μ₁ − μ₂‖² + tr(Σ₁ + Σ₂ − 2 (Σ₁^½ Σ₂ Σ₁^½)^½). The estimate is biased upwards unless both sides have many more
    rows than d; compare values at equal numbers of rows only.
    """
    a, b = (np.asarray(side, dtype=np.float64) for side in (generated_Nd, real_Md))
    cov_a, cov_b = (np.atleast_2d(np.cov(side, rowvar=False)) for side in (a, b))
    values, vectors = np.linalg.eigh(cov_a)
    root_a = (vectors * np.sqrt(np.clip(values, 0, None))) @ vectors.T
    cross = np.sqrt(np.clip(np.linalg.eigvalsh(root_a @ cov_b @ root_a), 0, None)).sum()
    distance = ((a.mean(axis=0) - b.mean(axis=0)) ** 2).sum() + np.trace(cov_a) + np.trace(cov_b) - 2 * cross
    return float(max(0.0, distance))


def calibration(samples_KNd: np.ndarray, real_Nd: np.ndarray) -> dict[str, Any]:
    """Compare the spread of K ≥ 2 samples per text with the encoder's latents of the texts.

    Returns:
        samples: K.
        spread_to_error: standard deviation of the samples ÷ error of their mean, corrected by √(1 + 1/K); 1 is
            calibrated, below 1 is overconfident (Fortin et al. 2014).
        rank_fraction: (K + 1,) histogram of the target's rank among the samples over all coordinates; a flat histogram
            is calibrated, a U shape is overconfident.
    """
    samples_KNd, real_Nd = np.asarray(samples_KNd, dtype=np.float64), np.asarray(real_Nd, dtype=np.float64)
    count, mean_Nd = len(samples_KNd), samples_KNd.mean(axis=0)
    error = np.sqrt(((mean_Nd - real_Nd) ** 2).mean())
    spread = np.sqrt(samples_KNd.var(axis=0, ddof=1).mean() * (1 + 1 / count))
    below_Nd = (samples_KNd < real_Nd).sum(axis=0)
    return {
        "samples": count,
        "spread_to_error": float(spread / error),
        "rank_fraction": np.bincount(below_Nd.ravel(), minlength=count + 1) / below_Nd.size,
    }
