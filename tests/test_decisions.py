"""The defaults that are decisions: each with its reason, so that a change of one is a change of this table."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import pytest
import yaml

from base_parameters import base

DECISIONS: list[tuple[str, Any, str]] = [
    ("sampling.use_ema", True, "the averaged weights are those that validation and `best` measure"),
    ("evaluation.use_ema", True, "samples and metrics come from the same weights"),
    ("sampling.checkpoint", "latest", "a run without best_metric has no other"),
    ("evaluation.checkpoint", "latest", "samples and metrics come from the same checkpoint"),
    ("sampling.split", "test", "reconstructions are shown of sentences that training and validation never read"),
    ("evaluation.classification.split", "test", "accuracy is measured on examples that training never read"),
    ("sampling.text.temperature", 0.0, "an inversion is the most probable text, not a sample"),
    ("sampling.length", "argmax", "an inversion has the most probable length"),
    ("sampling.unconditional.length", "sample", "unconditional texts have the lengths of the corpus"),
    ("sampling.unconditional.text.temperature", 1.0, "unconditional texts follow the distribution of the model"),
    ("sampling.latent.draws", 4, "the mean of four draws is nearer to the latent of a text than one draw"),
    ("sampling.tasks", None, "every task that has an input and that the run supports"),
    ("evaluation.sts.too_long", "truncate", "encoders truncate, and the comparison is with them"),
    ("evaluation.bootstrap.level", 0.95, "the usual confidence level"),
    ("validation.on_leakage", "remove", "a training text that occurs in an evaluation set makes its score worthless"),
    ("validation.verify_checksums", True, "damaged shards are found before training"),
    ("validation.norm_tolerance", 0.001, "float16 vectors of unit norm stay within it"),
    ("validation.on_norm_outlier", "warn", "an unusual norm alone is no damage"),
    ("validation.on_duplicate_vector", "warn", "texts that differ in case share their vector"),
    ("validation.max_quarantine_fraction", 0.01, "more than this is a fault of the data and not of some rows"),
    ("validation.spot_rows", 256, "vectors under the wrong ids are found only by encoding again"),
    ("embedding.non_finite", "stop", "a text that breaks the encoder is looked at before it is left out"),
    ("ingestion.max_bad_fraction", 0.01, "a source with more damaged rows is misread"),
    ("ingestion.near_duplicates", None, "removal of near duplicates changes the corpus, so it is asked for"),
    ("ingestion.splits.validation", 0.02, "part of the identity of the splits"),
    ("ingestion.splits.test", 0.02, "part of the identity of the splits"),
    ("ingestion.splits.key", "mm-ldlm", "another key moves texts between splits"),
    ("tokenizer.too_long", "drop", "a truncated text is not the text that its latent was made from"),
    ("tokenizer.reduce_vocabulary", True, "tokens that never occur in training cannot be learned"),
    ("objective.condition_dropout", 0.1, "guidance and unconditional texts need the learned null embedding"),
    ("objective.self_condition", False, "it doubles the cost of half of the steps"),
    ("objective.mode", "mixed", "one model for both directions and for joint samples"),
    ("objective.length_weight", 0.1, "without it no length can be predicted"),
    ("objective.cycle.text_weight", 0.0, "cycle losses are an experiment"),
    ("objective.cycle.latent_weight", 0.0, "cycle losses are an experiment"),
    ("normaliser.kind", "whitening", "the diffusion assumes unit variance in every direction"),
    ("training.ema.enabled", True, "averaged weights sample better"),
    ("training.optimizer.warmup_steps", 50, "the first steps at the full rate are spikes"),
    ("training.optimizer.clip", 1.0, "one batch cannot move the weights far"),
    ("training.guard.spike_action", "log", "a spike that is skipped silently changes the data (decision 0042)"),
    ("training.guard.max_consecutive_skips", 5, "more skips in a row are a fault and not an accident"),
    ("training.guard.max_rollbacks", 2, "a third roll-back would repeat the second"),
    ("training.guard.rollback_lr_factor", 0.5, "the same rate would diverge again"),
    ("training.checkpoint.best_is", "min", "the metrics of validation are losses"),
    ("training.checkpoint.best_metric", None, "`best` is asked for"),
    ("training.checkpoint.keep_last", 2, "one damaged checkpoint does not end a run"),
    ("training.preflight", True, "a wrong configuration is refused before the first step"),
    ("training.resume", "auto", "the same command continues an interrupted run"),
    ("training.init_from", None, "training starts from initial values"),
    ("training.seed", None, "one seed for the whole project"),
    ("training.precision.autocast", "auto", "bf16 where the device is faster in it (decisions 0177 and 0180)"),
    ("training.precision.tf32", False, "float32 products keep the precision of float32"),
    ("training.parallel", "ddp", "the model fits one device"),
    ("tracking.enabled", True, "every run can be compared with every other"),
    ("seed", 0, "all results in docs/log.md without another seed have this one"),
]


@pytest.mark.parametrize(("key", "value", "reason"), DECISIONS, ids=[key for key, _, _ in DECISIONS])
def test_a_default_that_is_a_decision_has_its_value(key: str, value: Any, reason: str) -> None:
    found: Any = base()
    for part in key.split("."):
        assert part in found, f"{key} is no parameter of conf/base"
        found = found[part]
    assert found == value, f"{key} is {found!r} in conf/base, decided was {value!r}: {reason}"
    assert isinstance(found, bool) == isinstance(value, bool), key


def test_the_code_has_the_same_decisions() -> None:
    from mm_ldlm.objectives.condition_dropout import CONDITION_DROPOUT

    from mm_ldlm.inference.api import MMLDLM
    from mm_ldlm.inference.loading import load_run
    from mm_ldlm.training.config import CheckpointConfig, EmaConfig, GuardConfig

    assert base()["objective"]["condition_dropout"] == CONDITION_DROPOUT
    for function in (MMLDLM.from_run, load_run):
        defaults = {name: p.default for name, p in inspect.signature(function).parameters.items()}
        assert (defaults["use_ema"], defaults["checkpoint"]) == (True, "latest"), function
    assert (GuardConfig().spike_action, CheckpointConfig().best_is, EmaConfig().enabled) == ("log", "min", True)


COMPARED = ("mdlm", "sedd", "uniform", "gidd", "d3pm", "hdlm", "ccdd", "atat", "ar")
MDLM = ("lm1b", "openwebtext", "openwebtext_1024", "mdlm_small")
OF_ENVIRONMENTS: list[tuple[tuple[str, ...], str, Any, str]] = [
    (COMPARED, "model.dim", 192, "models that are compared have one size"),
    (COMPARED, "model.heads", 6, "models that are compared have one size"),
    (COMPARED, "model.mlp_ratio", 4.0, "models that are compared have one size"),
    (COMPARED[:-1], "model.depth", 6, "models that are compared have one size"),
    (("ar",), "model.depth", 7, "without a timestep a block more has about as many parameters"),
    (COMPARED[:-1], "model.conditioning_dim", 64, "models that are compared have one size"),
    (COMPARED, "training.optimizer.lr", 2e-3, "models that are compared are trained alike"),
    (COMPARED, "training.optimizer.warmup_steps", 100, "models that are compared are trained alike"),
    (MDLM, "model.dim", 768, "arXiv:2406.07524"),
    (MDLM, "model.depth", 12, "arXiv:2406.07524"),
    (MDLM, "model.heads", 12, "arXiv:2406.07524"),
    (MDLM, "model.conditioning_dim", 128, "arXiv:2406.07524"),
    (MDLM, "training.max_steps", 1_000_000, "arXiv:2406.07524"),
    (MDLM, "training.batch.examples", 512, "arXiv:2406.07524"),
    (MDLM, "training.optimizer.lr", 3e-4, "arXiv:2406.07524"),
    (MDLM, "training.optimizer.betas", [0.9, 0.999], "arXiv:2406.07524"),
    (MDLM, "training.optimizer.weight_decay", 0.0, "arXiv:2406.07524"),
    (MDLM, "training.optimizer.schedule", "constant", "arXiv:2406.07524"),
    (MDLM, "training.optimizer.warmup_steps", 2500, "arXiv:2406.07524"),
    (MDLM, "training.ema.decay", 0.9999, "arXiv:2406.07524"),
    (MDLM, "training.validate_every", 10_000, "each checkpoint is measured"),
    (MDLM, "training.checkpoint.every_steps", 10_000, "each checkpoint is measured"),
    (MDLM, "training.checkpoint.every_minutes", 60, "a checkpoint of this size takes seconds"),
    (MDLM, "training.checkpoint.keep_every", 100_000, "ten checkpoints show the course of a run"),
    ((*MDLM, "wikitext103"), "training.checkpoint.best_metric", "validation/perplexity", "the published measure"),
    ((*MDLM, "wikitext103"), "evaluation.likelihood.sentences", None, "published numbers are of the whole test split"),
    ((*MDLM, "wikitext103"), "evaluation.likelihood.draws", 1, "the whole test split averages enough"),
    (MDLM[:3], "objective.t_min", 0.02, "base is tuned for simpler sentences"),
    ((*MDLM[:3], "wikitext103", "tatoeba"), "model.mlp_ratio", 4.0, "base is tuned for a short training"),
    (("tatoeba",), "model.conditioning_dim", 192, "base is tuned for a short training"),
    (("lm1b", "openwebtext", "wikitext103"), "tokenizer.max_length", 128, "the length of published numbers"),
    (("openwebtext_1024",), "tokenizer.max_length", 1024, "the length of published numbers"),
    (("lm1b", "openwebtext", "openwebtext_1024", "wikitext103", "stsb"), "tokenizer.reduce_vocabulary", False,
     "scores are compared with those of the whole vocabulary"),
    (("tatoeba", "stsb"), "tokenizer.max_length", 64, "the longest sentence has 54 wordpieces"),
    (("openwebtext", "wikitext103"), "tokenizer.too_long", "split", "long documents are not lost"),
    (("lm1b", "stsb", "tatoeba"), "tokenizer.too_long", "drop", "a truncated sentence is not that of its latent"),
    (("openwebtext_1024",), "tokenizer.too_long", "truncate", "one text for each document"),
    (("mdlm_small",), "model.dropout", 0.1, "arXiv:2406.07524"),
    (("mdlm_small", "atat"), "model.time_conditioning", False, "ddpm_cache needs a model that ignores the time"),
    (("mdlm_small", "atat"), "sampling.unconditional.text", {"kind": "ddpm_cache", "steps": 128}, "as published"),
    (("mmdit_892m",), "training.optimizer.lr", 5e-5, "the rate of the older trainer of this size"),
    (("mmdit_892m",), "training.optimizer.clip", 0.5, "the limit of the older trainer of this size"),
    (("mmdit_892m",), "training.batch.accumulation", 2, "eight examples do not fit one device"),
    (("mmdit_892m",), "model.gradient_checkpointing", True, "its activations do not fit one device"),
    (("gpu8", "multinode"), "training.launch.processes", 8, "a process for each GPU"),
    (("gpu8",), "training.precision.autocast", "bf16", "these GPUs have instructions for it"),
    (("own_csv", "own_text", "own_vectors", "layout"), "evaluation.sts.sets", [],
     "the starter set has words that other texts hardly contain, so its score measures unknown words"),
    (("multinode",), "training.launch.nodes", 2, "two hosts"),
    (("multinode",), "training.launch.max_restarts", 3, "a lost host does not end the run"),
    (("test", "digits", "classification", "compare_text"), "training.precision.autocast", "fp32",
     "numbers do not depend on the machine"),
    (("classification",), "training.launch.processes", 1, "a step takes less time than its all-reduce"),
    (("qwen3_32",), "encoder.truncate_dim", 32, "its name"),
]  # fmt: skip


def of_environment(name: str) -> dict[str, Any]:
    """The parameters that the files of an environment set."""
    folder, found = Path(__file__).parents[1] / "conf" / name, {}
    for file in sorted({*folder.glob("parameters*.yml"), *folder.glob("parameters/*.yml")}):
        found |= yaml.safe_load(file.read_text(encoding="utf-8")) or {}
    return found


@pytest.mark.parametrize("case", OF_ENVIRONMENTS, ids=lambda case: f"{case[0][0]}-{case[1]}")
def test_a_value_of_an_environment_that_is_a_decision_stays(case: tuple[tuple[str, ...], str, Any, str]) -> None:
    environments, key, value, reason = case
    for environment in environments:
        found: Any = of_environment(environment)
        for part in key.split("."):
            assert part in found, f"conf/{environment} does not set {key}"
            found = found[part]
        assert repr(found) == repr(value), f"{key} is {found!r} in conf/{environment}, decided was {value!r}: {reason}"
