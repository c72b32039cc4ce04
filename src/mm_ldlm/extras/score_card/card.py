"""Make a score card: find its runs, score them one after another, and turn the scores into rows (`rows`).

Scores of a run are saved and reused under an equal protocol, so that an additional run takes only its own time, and an
interrupted card continues.
"""

import glob
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import torch

from mm_ldlm.core import ConfigurationError, EvaluationError, SamplingError, to_dict
from mm_ldlm.core.files import recorded, write_json
from mm_ldlm.core.progress import shown
from mm_ldlm.data.corpus.tokenizer import TextTokenizer
from mm_ldlm.data.corpus.wrapping import wrap_of, wrapped
from mm_ldlm.data.dataset_manifest import Dataset
from mm_ldlm.data.encoders.base import EncoderConfig, load_encoder, no_encoder
from mm_ldlm.data.held_out import held_out, sample_rows
from mm_ldlm.data.store.fingerprint import fingerprint
from mm_ldlm.evaluation.config import EvaluationConfig
from mm_ldlm.evaluation.suites import GIVEN_LENGTH
from mm_ldlm.evaluation.suites.base import plain
from mm_ldlm.evaluation.suites.generation import diversity, entropies, generative_perplexity, judge_of, words
from mm_ldlm.extras.score_card.config import ScoreCardConfig
from mm_ldlm.extras.score_card.mauve import mauve
from mm_ldlm.extras.score_card.rows import compare, row_of
from mm_ldlm.inference.api import MMLDLM
from mm_ldlm.inference.files import read_texts, run_of
from mm_ldlm.inference.loading import run_config
from mm_ldlm.training.checkpoints import folder as checkpoints
from mm_ldlm.training.checkpoints.provenance import weights_of


@dataclass(frozen=True)
class Candidate:
    """A run of a row, before its weights are loaded.

    Attributes:
        stored: stored tokens of held-out texts, by text, because the tokenizer would divide a wrapped text differently.
            Empty if the data have another tokenizer, and for the texts of a file if they are not wrapped.
    """

    name: str
    checkpoint: Path
    tokenizer: TextTokenizer
    max_length: int
    weights: dict[str, str]
    stored: Mapping[str, Sequence[int]]

    def ids(self, texts: Sequence[str]) -> Sequence[Sequence[int]]:
        return [self.stored[text] for text in texts] if self.stored else self.tokenizer.encode(texts)

    def reads(self, texts: Sequence[str]) -> list[str]:
        """Return the texts after tokenising and decoding, without white space."""
        return ["".join(text.split()) for text in self.tokenizer.decode_batch(self.ids(texts))]


@dataclass(frozen=True)
class Protocol:
    """Texts, samplers and judge that all runs of a card share.

    Attributes:
        unit: unit of entropy and diversity: the token, or the word if the tokenizers differ.
        texts: held-out texts that every run can read.
        real: held-out texts with which samples are compared, at most as many as the samples.
        judge: model that scores samples (`evaluation.suites.generation.judge_of`), or None.
        embed: encoder of texts for MAUVE, or None; `encoder` is its name.
    """

    config: ScoreCardConfig
    evaluation: EvaluationConfig
    seed: int
    unit: str
    texts: Sequence[str]
    real: Sequence[str]
    judge: Any
    embed: Callable[[Sequence[str]], Any] | None
    encoder: str | None

    def described(self) -> dict[str, Any]:
        """Describe the protocol by plain values and digests of the texts; equal protocols give equal scores."""
        of_evaluation = to_dict(self.evaluation)
        return {
            **{name: value for name, value in to_dict(self.config).items() if name != "runs"},
            **{name: of_evaluation["generation"][name] for name in ("causal_model", "revision")},
            **{name: of_evaluation[name] for name in ("checkpoint", "use_ema", "device")},
            "judge": getattr(self.judge, "weights", None),
            "draws": self.evaluation.likelihood.draws,
            "seed": self.seed,
            "unit": self.unit,
            "encoder": self.encoder,
            "held_out": {"count": len(self.texts), "digest": fingerprint(list(self.texts))},
            "compared_with": {"count": len(self.real), "digest": fingerprint(list(self.real))},
        }

    def measure(self, texts: Sequence[str], ids: Sequence[Sequence[int]], *, full: bool) -> dict[str, Any]:
        """Measure non-empty texts: entropies and perplexity, with `full` also diversity, MAUVE and examples."""
        rows = [words(text) for text in texts] if self.unit == "word" else ids
        found: dict[str, Any] = entropies(rows)
        if full:
            found = diversity(rows, seed=self.seed)
            found |= {"distinct_2": found["distinct"][2], "examples": list(texts[:8])}
            if self.embed is not None:
                found["mauve"] = mauve(self.embed(texts), self.embed(self.real), seed=self.seed)
        if self.judge is not None:
            found |= generative_perplexity(self.judge, texts, batch_size=self.evaluation.generation.batch_size)
        return found | {"entropy": found["entropy_corpus" if self.config.entropy == "corpus" else "entropy_sample"]}


# -- the card ----------------------------------------------------------------------------------------------------------


def make_card(
    config: ScoreCardConfig,
    evaluation: EvaluationConfig,
    encoder: EncoderConfig,
    *,
    dataset: Dataset | None,
    seed: int,
    kept: Path,
) -> dict[str, Any]:
    """Score all runs; return the protocol, rows (name, cells, reasons, runs), held_out (cells), and curves.

    Args:
        dataset: dataset of the current environment; None if there is none.
        kept: folder in which the scores of runs are saved.
    """
    drawn, stored = texts_of(config, dataset, count=evaluation.likelihood.sentences, seed=seed)
    compared, more = texts_of(config, dataset, count=config.samples, seed=seed)
    found = candidates(config, evaluation, dataset, stored | more)
    base, texts = found[0], fitting(drawn, found)
    default = "cuda" if torch.cuda.is_available() else "cpu"
    embeds = config.mauve and no_encoder(encoder) is None
    protocol = Protocol(
        config=config, evaluation=evaluation, seed=seed, texts=texts, real=compared,
        unit="token" if len({each.tokenizer.fingerprint for each in found}) == 1 else "word",
        judge=judge_of(evaluation.generation, device=evaluation.device or default)
        if evaluation.generation.causal_model
        else None,
        embed=load_encoder(encoder, device=evaluation.device).encode if embeds else None,
        encoder=encoder.name if embeds else None,
    )  # fmt: skip
    real = plain(protocol.measure(compared, base.ids(compared), full=True))
    records: dict[str, list[dict[str, Any]]] = {}
    for each in shown(found, total=len(found), desc="runs", unit="runs"):
        file = kept / f"{fingerprint({'weights': each.weights, **protocol.described()})}.json"
        if (record := recorded(file)) is None:
            record = plain(score(each, protocol))
            write_json(file, record)
        unlike = sum(one != two for one, two in zip(each.reads(texts), base.reads(texts), strict=True))
        records.setdefault(each.name, []).append({**record, "unlike": unlike, "base": base.tokenizer.fingerprint})
    counts = {"word": [len(text.split()) for text in texts], "character": [len(text) for text in texts]}
    bootstrap = evaluation.bootstrap.seeded(seed)
    rows = {name: row_of(some, counts, real, bootstrap) for name, some in records.items()}
    compare(rows, records, "token" if protocol.unit == "token" else "character", counts, bootstrap)
    about = ("weights", "tokenizer", "trained_as", "parameters", "device", "sampler", "unlike")
    return plain(
        {
            "protocol": {
                **protocol.described(),
                "source": config.texts or f"test split of dataset {getattr(dataset, 'fingerprint', ''):.12}",
                "left_out": len(drawn) - len(texts),
                "words": sum(counts["word"]),
                "characters": sum(counts["character"]),
                "baseline": base.name,
                "level": bootstrap.level,
                "replicates": bootstrap.replicates,
                "held_out_entropy": real["entropy"],
            },
            "rows": [
                {"name": name, **rows[name], "runs": [{key: one.get(key) for key in about} for one in some]}
                for name, some in records.items()
            ],
            "held_out": {**real, "mauve": None, "generative_perplexity": real.get("perplexity")},
            "curves": [
                {"name": name, "run": one["weights"]["run"], "points": one["points"]}
                for name, some in records.items()
                for one in some
            ],
        }
    )


# -- runs and texts ----------------------------------------------------------------------------------------------------


def texts_of(
    config: ScoreCardConfig, dataset: Dataset | None, *, count: int | None, seed: int
) -> tuple[Sequence[str], dict[str, Sequence[int]]]:
    """Draw the held-out texts that the evaluation draws too (`count` None: all), and their tokens in the data.

    The lines of a file are wrapped if the texts of the data are.

    Raises:
        EvaluationError: there are no data.
    """
    if config.texts is not None:
        texts, known = read_texts(config.texts, name="score_card.texts"), dict[str, Sequence[int]]()
        if dataset is not None and (wrap := wrap_of(dataset.tokens)) is not None:
            texts, ids = wrapped(texts, dataset.tokenizer, wrap, length=dataset.shape.max_length)
            known = dict(zip(texts, ids, strict=True))
        chosen = sample_rows(np.arange(len(texts)), count or len(texts), seed=seed)
        return [texts[row] for row in chosen], known
    if dataset is None:
        raise EvaluationError(
            "score_card.texts: expected a file of held-out texts, or data of this environment, found neither. Give a "
            "file, or run `kedro run --pipelines=ingestion,embedding,validation`."
        )
    drawn = held_out(dataset, count=count, seed=seed, split="test")
    return drawn.texts, dict(zip(drawn.texts, drawn.tokens, strict=True))


def candidates(
    config: ScoreCardConfig, evaluation: EvaluationConfig, dataset: Dataset | None, stored: Mapping[str, Sequence[int]]
) -> list[Candidate]:
    """Find the runs of all rows, with their tokenizers and maximum lengths, which determine the texts that they read.

    Args:
        stored: tokens of held-out texts in the dataset.

    Raises:
        CheckpointError: a run has no complete checkpoint.
        ConfigurationError: there is no run.
    """
    found = []
    for name, path in config.runs.items():
        for place in sorted(glob.glob(path, recursive=True)) if glob.has_magic(path) else [path]:
            run = run_of(place)
            checkpoint = checkpoints.find(run, which=evaluation.checkpoint)
            tokenizer = TextTokenizer.load(checkpoint / "tokenizer")
            found.append(
                Candidate(
                    name,
                    checkpoint,
                    tokenizer,
                    run_config(run, checkpoint)["shape"].max_length,
                    weights_of(checkpoint, use_ema=evaluation.use_ema),
                    stored
                    if dataset is not None and tokenizer.fingerprint == dataset.fingerprints["tokenizer"]
                    else {},
                )
            )
    if not found:
        raise ConfigurationError(
            "parameter 'score_card.runs': expected at least one run, found none. Name some: {NAME: PATH}."
        )
    return found


def fitting(texts: Sequence[str], found: Sequence[Candidate]) -> list[str]:
    """Select the texts that every run can read, with 1 to `max_length` tokens."""
    fits_RN = [[1 <= len(ids) <= each.max_length for ids in each.ids(texts)] for each in found]
    chosen = [text for text, fits_R in zip(texts, zip(*fits_RN, strict=True), strict=True) if all(fits_R)]
    if len(chosen) < 2:
        raise EvaluationError(
            f"Expected two or more texts that every run reads, found {len(chosen)} of {len(texts)} (a run reads "
            f"only {min(each.max_length for each in found)} tokens). Give shorter texts, or leave that run out."
        )
    return chosen


# -- one run -----------------------------------------------------------------------------------------------------------


def score(candidate: Candidate, protocol: Protocol) -> dict[str, Any]:
    """Score a run: kind, size, `nll` and `tokens` of the texts, `points` by temperature; or why it has none."""
    config, held = protocol.evaluation, in_use(reset=True) if torch.cuda.is_available() else 0.0
    model = MMLDLM.from_run(
        candidate.checkpoint, use_ema=config.use_ema, device=config.device, batch_tokens=config.batch_tokens
    )
    return {
        "weights": candidate.weights,
        "tokenizer": candidate.tokenizer.fingerprint,
        "trained_as": model.capabilities.trained_as,
        "parameters": sum(parameter.numel() for parameter in model.model.model.parameters()),
        "device": f"{model.device.type}, {torch.get_num_threads()} threads",
        **_samples(model, protocol, held),
        **_costs(model, candidate.ids(protocol.texts), protocol),
    }


def _costs(model: MMLDLM, ids: Sequence[Sequence[int]], protocol: Protocol) -> dict[str, Any]:
    able, given = model.capabilities, protocol.config.given_length
    reason = able.refusal("score")
    if reason is None and given and able.likelihood != "given_length" and not model.model.has_length:
        reason = "it writes the length of a text together with its tokens, so it has no cost given the length"
    if reason is None and not given and able.likelihood == "given_length":
        reason = "it has not learned lengths; score_card.given_length=true compares costs given the length"
    if reason is not None:
        return {"cost_reason": reason}
    scores = model.score(protocol.texts, ids=ids, draws=protocol.evaluation.likelihood.draws, seed=protocol.seed)
    return {
        "kind": {"exact": "exact", "bound": "NELBO"}.get("" if given else able.likelihood, GIVEN_LENGTH),
        "nll": (scores.token_nll if given else scores.nll).tolist(),
        "tokens": scores.tokens.tolist(),
        "unknown": float(np.average(np.asarray(scores.unknown), weights=scores.tokens)),
    }


def _samples(model: MMLDLM, protocol: Protocol, held: float) -> dict[str, Any]:
    config, able = protocol.config, model.capabilities
    try:
        able.require("unconditional")
        unfit = able.sampler_refusal(config.sampler, "unconditional", given_latent=False)
        sampler = model.text_sampler(None if unfit else config.sampler, None, conditional=False)
        points = [_point(model, sampler, temperature, protocol, held) for temperature in config.temperatures]
    except SamplingError as error:
        return {"points": [], "samples_reason": str(error)}
    return {"points": points, "sampler": to_dict(sampler)}


def _point(model: MMLDLM, sampler: Any, temperature: float, protocol: Protocol, held: float) -> dict[str, Any]:
    options = {"sampler": sampler, "temperature": temperature, "length": protocol.config.length, "seed": protocol.seed}
    written, seconds, peak = timed(lambda: model.generate(protocol.config.samples, **options))
    kept = [(text, ids) for text, ids in zip(written.texts, written.tokens, strict=True) if text.strip() and ids]
    found = {
        "temperature": temperature,
        "empty": 1 - len(kept) / len(written),
        "seconds_per_1000": seconds * 1000 / len(written),
        "peak_gb": max(0.0, peak - held) / 1e9,
    }
    if len(kept) > 1:
        texts, ids = zip(*kept, strict=True)
        found |= protocol.measure(texts, ids, full=temperature == 1)
    return found


def timed(work: Callable[[], Any]) -> tuple[Any, float, float]:
    """Run `work`; return its result, its seconds, and the largest `in_use`, which is read every 20 ms."""
    began, peak = time.perf_counter(), in_use(reset=True)
    with ThreadPoolExecutor(1) as pool:
        result = pool.submit(work)
        while not result.done():
            wait([result], timeout=0.02)
            peak = max(peak, in_use())
    return result.result(), time.perf_counter() - began, peak


def in_use(*, reset: bool = False) -> float:
    """Return the peak bytes on the GPU since the last reset, or, without a GPU, the resident bytes of this process."""
    if not torch.cuda.is_available():
        return float(psutil.Process().memory_info().rss)
    if reset:
        torch.cuda.reset_peak_memory_stats()
    return float(torch.cuda.max_memory_allocated())
