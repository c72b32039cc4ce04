"""The suites on a tiny random model and on a text-only stub: metrics, and skipped parts with their reasons."""

import dataclasses
import json

import numpy as np
import pandas as pd
import pytest

from mm_ldlm.core.errors import EvaluationError, StoreError
from mm_ldlm.data.sentences import held_out, latents_of, read_sentences, split_rows, texts_of_split
from mm_ldlm.evaluation import headline
from mm_ldlm.evaluation import samples as sampled
from mm_ldlm.evaluation.config import (
    BootstrapConfig,
    GenerationConfig,
    InversionConfig,
    LatentsConfig,
    LikelihoodConfig,
    StsConfig,
    SweepPoint,
    TextFile,
)
from mm_ldlm.evaluation.sts_sets import StsSet, StsSource
from mm_ldlm.evaluation.suites import generation, inversion, latents, likelihood, sts
from mm_ldlm.sampling.config import SearchConfig
from mm_ldlm.sampling.registry import latent_sampler, text_sampler

FEW = BootstrapConfig(replicates=50)


@pytest.fixture(scope="module")
def sentences(dataset):
    return held_out(dataset, count=40, seed=0)


def test_samples_find_their_sentences_in_any_order(dataset, samples, sentences):
    shuffled = samples["l2t"].sample(frac=1, random_state=0)
    found, rows = sampled.of_samples(shuffled, dataset=dataset)
    assert found.ids == tuple(shuffled["id"])
    assert rows["source"].isna().all()
    assert set(found.ids) == set(sentences.ids)
    assert np.allclose(np.stack(rows["latent"]), found.latents_nd, atol=1e-6)


def test_samples_of_other_data_are_refused(dataset, samples):
    alien = samples["l2t"].assign(id="nowhere")
    with pytest.raises(EvaluationError, match="twice"):
        sampled.of_samples(alien, dataset=dataset)
    with pytest.raises(StoreError, match="another dataset"):
        sampled.of_samples(alien.head(1), dataset=dataset)
    with pytest.raises(EvaluationError, match="column 'id'"):
        sampled.of_samples(samples["unconditional"], dataset=dataset)


def test_inversion_headline_and_memorisation(model, dataset, samples):
    found, table = sampled.of_samples(samples["l2t"], dataset=dataset)
    rows = inversion.score(model, found, table)
    head = inversion.headline(rows, config=InversionConfig(length_edges=(4, 7)), bootstrap=FEW, seed=0)
    assert head["sentences"] == 40
    assert sum(line["rows"] for line in head["by_length"]) == 40
    assert 0 <= head["metrics"]["token_accuracy"]["value"] <= 1
    recomputed = inversion.reembedding_cosine(model, table["text"].tolist(), found.latents_nd)
    assert np.allclose(rows["cosine"], recomputed, atol=1e-6)
    memory = inversion.memorisation(
        rows["hypothesis"].tolist(), rows["reference"].tolist(), texts_of_split(dataset, "train")
    )
    assert memory["references"] == 0
    assert memory["wrong"] == (~rows["exact"]).sum()


def test_sweep_counts_calls_and_pairs_with_the_reference(model, sentences):
    config = InversionConfig(
        sweep=(
            SweepPoint(label="one", sampler=text_sampler("confidence", steps=1)),
            SweepPoint(label="four", sampler=text_sampler("confidence", steps=4)),
            SweepPoint(
                label="search",
                sampler=text_sampler("confidence", steps=2),
                search=SearchConfig(candidates=2, rounds=1),
            ),
        ),
        reference="four",
    )
    lines = inversion.sweep(model, sentences.some(12, seed=0), config=config, bootstrap=FEW, seed=0, progress=False)
    assert [line["label"] for line in lines] == ["one", "four", "search"]
    assert lines[0]["model_calls"] == 1
    assert lines[1]["model_calls"] > lines[0]["model_calls"]
    assert lines[0]["encoder_calls"] == 0 < lines[2]["encoder_calls"]
    assert all(line["reference"] == "four" for line in lines)


def test_baselines_beat_nothing_but_are_scored(model, dataset, sentences):
    train = read_sentences(dataset, split_rows(dataset, "train"))
    found = inversion.baselines(model, sentences, train, bootstrap=FEW, seed=0)
    assert set(found) == {"nearest_training_sentence", "bag_of_words"}
    assert found["nearest_training_sentence"]["metrics"]["exact_match"]["value"] == 0
    assert found["nearest_training_sentence"]["metrics"]["cosine"]["value"] > 0.5


def test_likelihood_is_near_the_entropy_of_a_guess_and_adds_up(model, sentences):
    rows, found = likelihood.evaluate(model, sentences, config=LikelihoodConfig(draws=3, buckets=5), seed=0)
    assert found["likelihood"] == "bound"
    assert found["left_out"] == []
    assert rows["id"].tolist() == list(sentences.ids)
    for name, column in (("unconditional", "nll"), ("given_latent", "nll_given_latent")):
        rate = rows[column].sum() / rows["tokens"].sum()
        assert found[name]["per_token"]["value"] == pytest.approx(rate)
        assert found[name]["perplexity"]["value"] == pytest.approx(np.exp(rate))
    for name in ("unconditional", "given_latent"):
        assert 1.0 < found[name]["per_token"]["value"] < 30.0
        total = sum(line["nats_per_token"] for line in found[name]["by_mask_ratio"])
        assert total == pytest.approx(found[name]["tokens_only_per_token"]["value"])
        assert found[name]["per_token"]["standard_error"] > 0
    drop = found["unconditional"]["per_token"]["value"] - found["given_latent"]["per_token"]["value"]
    assert found["latent_bits"]["per_token"]["value"] == pytest.approx(drop / np.log(2))


def test_the_nelbo_agrees_with_the_facade(model, sentences):
    """Other draws estimate the same number."""
    _, found = likelihood.evaluate(model, sentences, config=LikelihoodConfig(draws=24), seed=0)
    theirs = model.score(list(sentences.texts), latents=sentences.latents_nd, draws=24, seed=1)
    per_token = theirs.nll.sum() / theirs.tokens.sum()
    error = found["given_latent"]["per_token"]["standard_error"]
    assert found["given_latent"]["per_token"]["value"] != per_token
    assert found["given_latent"]["per_token"]["value"] == pytest.approx(per_token, abs=4 * error, rel=0.02)


def test_zero_shot_counts_what_it_leaves_out(model, sentences, tmp_path):
    path = tmp_path / "other.txt"
    config = LikelihoodConfig(draws=1, other_texts=(TextFile(name="other", path=str(path)),))
    known = (f"w{i}" for i in range(20))
    path.write_text("w1 w2 w3\n\nw4 w5 w6 w7\n" + "w1 " * 30 + "\n" + " ".join(known) + "\n")
    _, whole = likelihood.evaluate(model, sentences.some(4, seed=0), config=config, seed=0)
    found = whole["zero_shot"]["other"]
    assert (found["sentences"], found["outside_length"], found["unknown_fraction"]) == (2, 2, 0.0)
    assert found["given_latent"]["per_token"]["value"] > 0


def test_zero_shot_texts_may_have_one_token_and_as_many_as_the_model_reads(model, sentences, tmp_path):
    path, longest = tmp_path / "other.txt", model.max_length
    config = LikelihoodConfig(draws=1, other_texts=(TextFile(name="other", path=str(path)),))
    path.write_text("".join("w1 " * count + "\n" for count in (1, longest, longest + 1)))
    _, whole = likelihood.evaluate(model, sentences.some(4, seed=0), config=config, seed=0)
    assert (whole["zero_shot"]["other"]["sentences"], whole["zero_shot"]["other"]["outside_length"]) == (2, 1)


def test_zero_shot_on_a_missing_file_is_refused(model, sentences):
    config = LikelihoodConfig(draws=1, other_texts=(TextFile(name="other", path="nowhere.txt"),))
    with pytest.raises(EvaluationError, match="does not exist"):
        likelihood.evaluate(model, sentences.some(4, seed=0), config=config, seed=0)


def test_latents_are_measured_against_the_encoder(model, dataset, samples):
    found, table = sampled.of_samples(samples["t2l"], dataset=dataset)
    result = latents.evaluate(
        model,
        found,
        sampled.required_vectors(table),
        distractors_md=latents_of(dataset, split_rows(dataset, "train")),
        unconditional_nd=sampled.vectors(samples["unconditional"]),
        sampler=latent_sampler("ddim", steps=2),
        config=LatentsConfig(calibration_sentences=8, calibration_samples=3),
        bootstrap=FEW,
        seed=0,
    )
    assert set(result["samplers"]) == {"model", "one_step"}
    assert result["samplers"]["model"]["retrieval"]["candidates"] > 200
    assert result["calibration"]["samples"] == 3
    assert {"real", "model", "one_step", "unconditional"} == set(result["spectrum"])
    assert result["unconditional_frechet"] >= 0


def sts_file(tmp_path, longest=4):
    generator = np.random.default_rng(0)
    path = tmp_path / "sts.csv"
    lines = []
    for i in range(40):
        words = [f"w{k}" for k in generator.integers(0, 20, size=longest)]
        changed = list(words)
        for place in generator.permutation(longest)[: i % 4]:
            changed[place] = f"w{generator.integers(0, 20)}"
        lines.append(f"{' '.join(words)},{' '.join(changed)},{5 - (i % 4)}")
    path.write_text("\n".join(lines) + "\n")
    return str(path)


def test_sts_of_model_encoder_and_regression(model, tmp_path):
    config = StsConfig(
        sets=(StsSource(format="stsb", name="tiny", path=sts_file(tmp_path)),), sampler=latent_sampler("ddim", steps=2)
    )
    entry = sts.evaluate(model, config=config, bootstrap=FEW, seed=0, progress=False)["sets"]["tiny"]
    assert entry["pairs"] == 40
    assert entry["too_long"] == 0
    assert entry["unknown"] == 0.0
    assert set(entry["scores"]) == {"encoder", "model", "one_step"}
    assert entry["scores"]["encoder"]["spearman"]["value"] > 50
    assert {"low", "high", "value", "level"} == set(entry["scores"]["model"]["ratio"])


def test_sts_counts_the_sentences_with_unknown_words(model):
    pairs = StsSet("some", ("w1 w2", "w1 news", "w3"), ("news", "w1 w2", "w4"), np.arange(3.0), ("",) * 3)
    assert sts.fraction_unknown(pairs, model) == 2 / 5, "of the distinct sentences, two hold 'news'"


@pytest.mark.parametrize(("unknown", "warned"), [(0.5, False), (0.51, True), (1.0, True)])
def test_a_set_of_mostly_unknown_words_is_named_once(model, tmp_path, monkeypatch, caplog, unknown, warned):
    monkeypatch.setattr(sts, "fraction_unknown", lambda *_: unknown)
    source = StsSource(format="stsb", name="tiny", path=sts_file(tmp_path))
    config = StsConfig(sets=(source,), sampler=latent_sampler("ddim", steps=1))
    sts.evaluate(model, config=config, bootstrap=FEW, seed=0, progress=False)
    words = f"STS set 'tiny': {100 * unknown:.0f} % of its sentences contain words outside this run's vocabulary"
    assert caplog.text.count(words) == warned


@pytest.mark.parametrize(("changed", "start"), [(40, "STS set 'tiny': "), (1, "1 of ")])
def test_unknown_words_of_a_set_cause_one_warning_for_both_samplers(
    model, tmp_path, monkeypatch, caplog, changed, start
):
    """The set is named where many of its sentences have such words, and these sentences where they are few."""
    source = StsSource(format="stsb", name="tiny", path=sts_file(tmp_path))
    pairs = sts.load_sts(source, seed=0)
    first = tuple(f"{text} news" if row < changed else text for row, text in enumerate(pairs.first))
    monkeypatch.setattr(sts, "load_sts", lambda *_, **__: dataclasses.replace(pairs, first=first))
    monkeypatch.setattr(sts, "MOST_UNKNOWN", 0.1)
    config = StsConfig(sets=(source,), sampler=latent_sampler("ddim", steps=1))
    sts.evaluate(model, config=config, bootstrap=FEW, seed=0, progress=False)
    (warning,) = [message for message in caplog.messages if "contain words outside" in message]
    assert warning.startswith(start)


def test_sts_sentences_that_are_too_long_are_cut_and_counted_or_refused(model, tmp_path):
    source = StsSource(format="stsb", name="long", path=sts_file(tmp_path, longest=14))
    config = StsConfig(sets=(source,), sampler=latent_sampler("ddim", steps=1))
    entry = sts.evaluate(model, config=config, bootstrap=FEW, seed=0, progress=False)["sets"]["long"]
    assert entry["too_long"] > 40
    assert entry["pairs"] == 40
    with pytest.raises(EvaluationError, match="too_long"):
        sts.evaluate(
            model, config=dataclasses.replace(config, too_long="refuse"), bootstrap=FEW, seed=0, progress=False
        )


def test_pitfall_26_the_suite_reports_diversity_with_and_without_a_causal_model(dataset, samples, model):
    some = samples["unconditional"]
    result = generation.evaluate(
        some["text"].tolist(),
        sampled.token_rows(some, model.tokenizer),
        real_texts=["w1 w2", "w3 w4"],
        real_tokens=[[1, 2], [3, 4]],
        training_texts=lambda: texts_of_split(dataset, "train"),
        config=GenerationConfig(),
        bootstrap=FEW,
    )
    for name in ("generated", "real"):
        assert {"entropy_sample", "entropy_corpus", "distinct", "self_bleu", "unique"} <= set(result[name])
        assert "perplexity" not in result[name]
        assert 0 <= result[name]["attested_bigrams"]["value"] <= 1


def test_an_inverter_without_embedding_leaves_parts_out(make_model, sentences, tmp_path):
    inverter = make_model(mode="l2t", condition_dropout=0.0)
    rows, found = likelihood.evaluate(inverter, sentences.some(8, seed=0), config=LikelihoodConfig(draws=1), seed=0)
    assert "unconditional" not in found
    assert "given_latent" in found
    assert found["left_out"] == [inverter.capabilities.refusal("score")]
    assert "latent_bits" not in found
    assert list(rows.columns) == ["id", "tokens", "nll_given_latent"]
    config = StsConfig(files={"tiny": str(sts_file(tmp_path))})
    found = sts.evaluate(inverter, config=config, bootstrap=FEW, seed=0, progress=False)
    assert set(found["sets"]["tiny"]["scores"]) == {"encoder"}
    assert found["skipped"] == inverter.capabilities.refusal("t2l")


def text_only_sentences(sentences):
    return dataclasses.replace(sentences, latents_nd=None)


def test_an_exact_likelihood_has_no_draws_no_mask_ratios_and_no_latents(text_only, sentences):
    model = text_only("exact", nats=2.0)
    rows, found = likelihood.evaluate(model, text_only_sentences(sentences), config=LikelihoodConfig(), seed=0)
    tokens = sum(map(len, sentences.tokens))
    assert found["likelihood"] == "exact"
    assert found["draws"] is None
    assert found["left_out"] == []
    assert {"given_latent", "latent_bits"}.isdisjoint(found)
    assert "by_mask_ratio" not in found["unconditional"]
    expected = 2.0 * (tokens + len(sentences)) / tokens  # the end token of each sentence is paid for, but not counted
    assert found["unconditional"]["per_token"]["value"] == pytest.approx(expected)
    assert list(rows.columns) == ["id", "tokens", "nll"]
    assert rows["nll"].sum() == pytest.approx(expected * tokens)


def test_a_text_only_nelbo_counts_the_length_and_has_mask_ratios(text_only, sentences):
    config = LikelihoodConfig(draws=3)
    _, found = likelihood.evaluate(text_only("bound"), text_only_sentences(sentences), config=config, seed=0)
    assert (found["likelihood"], found["draws"]) == ("bound", 3)
    assert found["unconditional"]["length_per_sentence"]["value"] == pytest.approx(2.0)
    exact = likelihood.evaluate(text_only("exact"), text_only_sentences(sentences), config=config, seed=0)[1]
    costs = [some["unconditional"]["per_token"]["value"] for some in (found, exact)]
    assert costs[0] == pytest.approx(costs[1]), "a length head and an end token are counted in the same way"
    assert len(found["unconditional"]["by_mask_ratio"]) == config.buckets


def test_suites_that_do_not_apply_return_the_refusal(text_only, sentences):
    model = text_only("exact", uses=("unconditional",))
    rows, found = likelihood.evaluate(model, text_only_sentences(sentences), config=LikelihoodConfig(), seed=0)
    assert found == {"skipped": model.capabilities.refusal("score")}
    assert len(rows) == 0
    found = sts.evaluate(model, config=StsConfig(files={"x": "nowhere"}), bootstrap=FEW, seed=0, progress=False)
    assert found == {"skipped": model.capabilities.refusal("t2l"), "sets": {}}
    assert generation.skip_reason(model, ["a", "b"]) is None
    assert "found 1 samples" in generation.skip_reason(model, ["a"])
    scorer = text_only("exact", uses=("score",))
    assert generation.skip_reason(scorer, ["a", "b"]) == scorer.capabilities.refusal("unconditional")


def test_a_perplexity_beyond_a_float_is_left_out(text_only, sentences):
    model, config = text_only("exact", nats=800.0), LikelihoodConfig()
    _, found = likelihood.evaluate(model, text_only_sentences(sentences), config=config, seed=0)
    assert found["unconditional"]["per_token"]["value"] > 800
    assert found["unconditional"]["perplexity"] is None
    json.dumps(found, allow_nan=False)
    metrics: dict = {}
    headline._likelihood(metrics, found)
    assert "perplexity" not in metrics


def test_the_interval_of_attested_pairs_lies_between_0_and_1():
    texts = ["w1 w2 w3"] * 40 + ["w1 w2 w9"]  # 81 of 82 pairs are attested: ±1.96 standard errors reach beyond 1
    found = generation.evaluate(
        texts,
        [[1, 2, 3]] * 41,
        real_texts=["w1 w2", "w2 w3"],
        real_tokens=[[1, 2], [2, 3]],
        training_texts=lambda: ["w1 w2 w3"],
        config=GenerationConfig(),
        bootstrap=FEW,
    )
    for name in ("generated", "real"):
        part = found[name]["attested_bigrams"]
        assert 0 < part["low"] <= part["value"] <= part["high"] <= 1
        assert part["level"] == FEW.level


def test_empty_samples_are_counted_and_left_out():
    found = generation.evaluate(
        ["w1 w2", "", "w3", " "],
        [[1, 2], [], [3], []],
        real_texts=["w1 w2", "w3 w4"],
        real_tokens=[[1, 2], [3, 4]],
        training_texts=lambda: ["w1 w2"],
        config=GenerationConfig(),
        bootstrap=FEW,
    )
    assert (found["texts"], found["empty"]) == (4, 0.5)
    assert found["memorised"] == 0.5
    assert found["generated"]["unique"] == 1.0


def test_of_several_samples_of_a_sentence_the_best_is_evaluated(dataset, samples, sentences):
    several = samples["l2t"].head(6)
    several = pd.concat(
        [several.assign(best=False, text="w1"), several.assign(best=True), several.assign(id=None, best=True)]
    )
    found, rows = sampled.of_samples(several, dataset=dataset)
    assert found.ids == tuple(samples["l2t"]["id"].head(6)) == tuple(rows["id"])
    assert rows["text"].tolist() == samples["l2t"]["text"].head(6).tolist()
