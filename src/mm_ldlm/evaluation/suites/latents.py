"""The latents that the model samples for held-out texts, compared with those of the encoder."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from mm_ldlm.data.sentences import latents_of, sample_rows, split_rows
from mm_ldlm.evaluation import latents as lat
from mm_ldlm.evaluation.suites.base import Evaluation, Headline, Metrics, Suite, of_samples, vectors, without_truth

if TYPE_CHECKING:
    import pandas as pd


class Latents(Suite):
    """Compare sampled latents and the one-step regression with the encoder's latents of the same texts."""

    name, title, use = "latents", "From text to latent", "t2l"
    samples = ("t2l", "unconditional")
    plots = ("plot_cosine", "plot_latent_spectrum", "plot_calibration")
    template = "mm_ldlm.evaluation.suites/latents.html.j2"

    def skip_reason(self, given: Evaluation) -> str | None:
        return super().skip_reason(given) or without_truth(given.samples["t2l"])

    def evaluate(self, given: Evaluation) -> tuple[Metrics, pd.DataFrame | None]:
        config, seed, dataset = given.config.latents, given.seed, given.dataset
        sentences, samples = of_samples(given.samples["t2l"], dataset=dataset)
        real_nd, generated_nd, unconditional_nd = (
            sentences.latents,
            vectors(samples),
            vectors(given.samples["unconditional"]),
        )
        one_step_nd = np.asarray(given.model.embed(list(sentences.texts), sampler="one_step", seed=seed).latents)
        assert generated_nd is not None
        others = sample_rows(split_rows(dataset, "train"), max(2, config.candidates - len(sentences)), seed=seed)
        others_md = latents_of(dataset, others)
        found: Metrics = {
            "sentences": len(sentences),
            "candidates": len(sentences) + len(others_md),
            "samplers": {
                name: _compared(latents_nd, real_nd, others_md, given)
                for name, latents_nd in (("model", generated_nd), ("one_step", one_step_nd))
            },
        }
        spectra = {"real": real_nd, "model": generated_nd, "one_step": one_step_nd, "unconditional": unconditional_nd}
        found["spectrum"] = {
            name: _spectrum(some_nd) for name, some_nd in spectra.items() if some_nd is not None and len(some_nd) > 1
        }
        if unconditional_nd is not None and len(unconditional_nd) > 1:
            found["unconditional_frechet"] = lat.frechet_distance(unconditional_nd, real_nd)
            # for comparison: real latents of other sentences, as many as were generated
            rows = sample_rows(np.arange(len(others_md)), len(unconditional_nd), seed=seed)
            found["real_frechet"] = lat.frechet_distance(others_md[rows], real_nd)
        if config.calibration_sentences:
            part = sentences.some(config.calibration_sentences, seed=seed)
            drawn = given.model.embed(
                list(part.texts), sampler=given.config.sts.sampler, draws=config.calibration_samples, seed=seed
            ).draws
            found["calibration"] = {"sentences": len(part), **lat.calibration(np.asarray(drawn), part.latents)}
        return found, None

    def numbers(self, metrics: Metrics) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for name, entry in metrics["samplers"].items():
            prefix = "t2l" if name == "model" else f"t2l.{name}"
            found |= {f"{prefix}.{key}": entry[key] for key in ("cosine", "squared_error_fraction", "frechet")}
            found |= {f"{prefix}.retrieval.{key}": value["value"] for key, value in entry["retrieval"].items()}
            if entry["neighbourhoods"]:
                found[f"{prefix}.neighbourhood_correlation"] = entry["neighbourhoods"]["rank_correlation"]["value"]
        found["unconditional.frechet"] = metrics.get("unconditional_frechet")
        found["real.frechet"] = metrics.get("real_frechet")
        found["t2l.spread_to_error"] = metrics.get("calibration", {}).get("spread_to_error")
        return found

    def headlines(self, numbers: Mapping[str, float]) -> Sequence[Headline]:
        return (
            Headline("t2l.cosine", "Cosine, text to latent", "cosine", "to the encoder's own vector", leading=True),
            Headline("t2l.retrieval.at_1", "Retrieval at 1", "fraction"),
        )

    def figures(self, metrics: Metrics) -> dict[str, Any]:
        from mm_ldlm.evaluation.report import figures

        return {
            "plot_cosine": figures.cosine_histogram(metrics["samplers"]),
            "plot_latent_spectrum": figures.spectrum(metrics["spectrum"]),
            "plot_calibration": figures.calibration(metrics.get("calibration")),
        }


def _compared(latents_nd: np.ndarray, real_nd: np.ndarray, others_md: np.ndarray, given: Evaluation) -> Metrics:
    bootstrap, real_nd = given.bootstrap, np.asarray(real_nd, dtype=np.float64)
    cosine_n = lat.cosine(latents_nd, real_nd)
    error_n = ((np.asarray(latents_nd, dtype=np.float64) - real_nd) ** 2).mean(axis=1) / real_nd.var(axis=0).mean()
    rank_n = lat.ranks(latents_nd, real_nd, others_md)
    near = None
    if len(real_nd) >= 3:
        correlation_n, overlap = lat.neighbourhoods(
            latents_nd, real_nd, limit=given.config.latents.neighbourhood_sentences
        )
        near = {"rank_correlation": bootstrap.mean(correlation_n), "overlap": overlap}
    return {
        "cosine": bootstrap.mean(cosine_n),
        "cosine_quantiles": {f"{q:g}": np.quantile(cosine_n, q) for q in (0.01, 0.05, 0.25, 0.5, 0.75, 0.95)},
        "squared_error_fraction": bootstrap.mean(error_n),
        "retrieval": {
            **{f"at_{k}": bootstrap.proportion(rank_n <= k) for k in (1, 5, 10)},
            "mean_reciprocal_rank": bootstrap.mean(1 / rank_n),
        },
        "neighbourhoods": near,
        "frechet": lat.frechet_distance(latents_nd, real_nd),
        "cosines": cosine_n.round(4),
    }


def _spectrum(latents_nd: np.ndarray) -> Metrics:
    values_d, rank = lat.spectrum(latents_nd)
    return {"rows": len(latents_nd), "effective_rank": rank, "eigenvalues": [float(f"{v:.4g}") for v in values_d]}
