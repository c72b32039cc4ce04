"""What held-out text costs the model, without and with its latent, and what other text costs it."""

from __future__ import annotations

import gzip
import math
from pathlib import Path
from typing import Any

import numpy as np

from mm_ldlm.errors import EvaluationError
from mm_ldlm.evaluation import perplexity as ppl
from mm_ldlm.evaluation.config import LikelihoodConfig, TextFile
from mm_ldlm.evaluation.heldout import Sentences


def evaluate(
    model: Any, sentences: Sentences, *, config: LikelihoodConfig, seed: int, progress: bool
) -> dict[str, Any]:
    """Nats per token with standard errors, perplexities, bits of the latent, tables by masked share, zero-shot texts.

    What the model was not trained for is None: without `unconditional` training or a null latent there is no
    unconditional cost.
    """
    import torch

    network = model.network
    latents_nd = torch.as_tensor(np.asarray(model.normaliser.standardise(sentences.latents_nd)), dtype=torch.float32)
    found: dict[str, Any] = {"sentences": len(sentences), "draws": config.draws, "zero_shot": {}}
    known = tuple(network.objective.modes)
    free, told = "unconditional" in known or network.knows_null_latent, "l2t" in known
    costs: dict[str, tuple[ppl.BoundDraws, np.ndarray]] = {}
    for name, wanted, given in (("unconditional", free, None), ("given_latent", told, latents_nd)):
        if wanted:
            costs[name] = _cost(model, sentences.tokens, given, config=config, seed=seed, progress=progress)
            found[name] = _summary(*costs[name], config=config)
        else:
            found[name] = None
    if len(costs) == 2:
        score = ppl.language_model_score(
            unconditional=costs["unconditional"][0],
            given_latent=costs["given_latent"][0],
            length_unconditional_N=costs["unconditional"][1],
            length_given_latent_N=costs["given_latent"][1],
        )
        found["latent_bits"] = {
            "per_token": score.bits_per_token.as_dict(),
            "per_sentence": score.bits_per_sentence.as_dict(),
        }
    for source in config.other_texts:
        found["zero_shot"][source.name] = _zero_shot(
            model, source, free=free, told=told, config=config, seed=seed, progress=progress
        )
    return found


def _cost(
    model: Any, tokens: Any, latents_nd: Any, *, config: LikelihoodConfig, seed: int, progress: bool
) -> tuple[ppl.BoundDraws, np.ndarray]:
    network = model.network
    with network.evaluating():
        draws = ppl.bound_draws(
            tokens,
            ppl.network_log_probs(network, latents_nd, seed=seed),
            pad_id=network.pad_id,
            mask_id=network.mask_id,
            time_of_share=ppl.schedule_time(network.objective.text_schedule.alpha),
            draws=config.draws,
            seed=seed,
            batch_size=config.batch_size,
            progress=progress,
        )
        return draws, ppl.length_nll(network, draws.length_N, latents_nd)


def _summary(draws: ppl.BoundDraws, length_N: np.ndarray, *, config: LikelihoodConfig) -> dict[str, Any]:
    total = ppl.per_token(draws.per_sentence_N + length_N, draws.length_N)
    return {
        "per_token": total.as_dict(),
        "tokens_only_per_token": ppl.per_token(draws.per_sentence_N, draws.length_N).as_dict(),
        "length_per_sentence": ppl.mean(length_N).as_dict(),
        "perplexity": math.exp(total.value),
        "perplexity_low": math.exp(total.low),
        "perplexity_high": math.exp(total.high),
        "by_masked_share": ppl.by_time(draws, buckets=config.buckets).replace({np.nan: None}).to_dict(orient="records"),
    }


def _zero_shot(
    model: Any, source: TextFile, *, free: bool, told: bool, config: LikelihoodConfig, seed: int, progress: bool
) -> dict[str, Any]:
    lines = read_lines(source)
    ids = [list(row) for row in model.tokenizer.encode(lines)]
    fits = [i for i, row in enumerate(ids) if 1 <= len(row) <= model.max_length][: source.limit]
    if not fits:
        raise EvaluationError(
            f"other text '{source.name}': none of {len(lines)} lines has 1 to {model.max_length} tokens."
        )
    texts, tokens = [lines[i] for i in fits], [ids[i] for i in fits]
    unknown = sum(row.count(model.tokenizer.unk_id) for row in tokens) / sum(map(len, tokens))
    found: dict[str, Any] = {
        "sentences": len(fits),
        "outside_length": sum(not 1 <= len(row) <= model.max_length for row in ids),
        "unknown_share": unknown,
    }
    if free:
        found["unconditional"] = _summary(
            *_cost(model, tokens, None, config=config, seed=seed, progress=progress), config=config
        )
    if told:
        import torch

        latents_nd = torch.as_tensor(np.asarray(model.normaliser.standardise(model.encode(texts))), dtype=torch.float32)
        cost = _cost(model, tokens, latents_nd, config=config, seed=seed, progress=progress)
        found["given_latent"] = _summary(*cost, config=config)
    return found


def read_lines(source: TextFile) -> list[str]:
    """Non-empty lines of a UTF-8 file, gz or not."""
    path = Path(source.path)
    if not path.is_file():
        raise EvaluationError(f"other text '{source.name}': {path} does not exist.")
    raw = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    try:
        return [line for line in raw.decode("utf-8").splitlines() if line.strip()]
    except UnicodeDecodeError as error:
        raise EvaluationError(f"other text '{source.name}': {path} is not UTF-8 (byte {error.start}).") from error
