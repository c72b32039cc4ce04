"""STS sets of SemEval, SICK and the hub, files that are not of them, and the adapter for external evaluators."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from mm_ldlm.core import EvaluationError
from mm_ldlm.extras.sts.adapters import EncoderAdapter
from mm_ldlm.extras.sts.readers import SEMEVAL_SUBSETS, SICK_PARTS
from mm_ldlm.extras.sts.sets import StsSet, StsSource, from_pairs, load_sts
from mm_ldlm.extras.sts.suite import score_encoder

PAIRS = [("A plane, taking off.", 'An "air" plane', 5.0), ("Zwei Männer", "two men", 0.5), ("x y", "z", 3.25)]


def source(path: Path, format: str, **more: Any) -> StsSource:
    return StsSource(format=format, name=more.pop("name", "set"), path=str(path), **more)


def as_pairs(found: StsSet) -> list[tuple[str, str, float]]:
    return list(zip(found.first, found.second, found.gold_N.tolist(), strict=True))


def write_year(folder: Path, subsets: dict[str, str], *, prefix: str = "STS", extra: str = "") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, gold in subsets.items():
        lines = [f"{name} first {i}\t{name} second {i}{extra}" for i in range(len(gold.split(" ")))]
        (folder / f"{prefix}.input.{name}.txt").write_text("".join(f"{line}\n" for line in lines))
        (folder / f"{prefix}.gs.{name}.txt").write_text("".join(f"{score}\n" for score in gold.split(" ")))
    return folder


@pytest.mark.parametrize(("prefix", "extra"), [("STS", ""), ("STS2016", "\tsource 1\tsource 2")])
def test_pairs_without_a_gold_score_are_no_part_of_a_year(prefix: str, extra: str, tmp_path: Path) -> None:
    write_year(tmp_path / "deep", {"B": "1  2", "A": "3 4", "ALL": "1"}, prefix=prefix, extra=extra)
    found = load_sts(source(tmp_path, "semeval"))
    assert found.subsets == ("A", "B")
    assert as_pairs(found)[2:] == [("B first 0", "B second 0", 1), ("B first 2", "B second 2", 2)]
    assert load_sts(source(tmp_path, "semeval", subsets=["B"], name="sts13")).subsets == ("B",)


def test_a_folder_of_all_sets_has_each_at_any_depth(tmp_path: Path) -> None:
    for year, subsets in SEMEVAL_SUBSETS.items():
        write_year(
            tmp_path / "STS" / f"{year}-test",
            dict.fromkeys((*subsets, "more"), "1 2"),
            prefix=f"STS{'2016' * (year == 'sts16')}",
        )
    (tmp_path / "STS" / "sts-test.csv").write_text("g\tf\ty\t1\t4\ta\tb\ng\tf\ty\t2\t3\tc\td\n")
    for part, name in SICK_PARTS.items():
        (tmp_path / "STS" / name).write_text(sick(f"{part} {part}", column=False))
    found = {year: load_sts(source(tmp_path, "semeval", name=year)).subsets for year in SEMEVAL_SUBSETS}
    assert found == SEMEVAL_SUBSETS
    assert [len(load_sts(source(tmp_path, kind, split="all"))) for kind in ("stsb", "sick")] == [2, 6]
    for kind, name in (("stsb", "sts-test.csv"), ("sick", "SICK_trial.txt")):
        (tmp_path / name).write_text("another one")
        with pytest.raises(EvaluationError, match=f"one file {name}"):
            load_sts(source(tmp_path, kind, split="all"))


def test_a_part_of_a_year_is_refused(tmp_path: Path, refuses: Callable[..., Any]) -> None:
    with refuses(EvaluationError, tmp_path):
        load_sts(source(tmp_path, "semeval"))
    write_year(tmp_path / "a", {"headlines": "1 2", "FNWN": "1 2"})
    with refuses(EvaluationError, "OnWN"):
        load_sts(source(tmp_path / "a", "semeval", name="sts13"))
    write_year(tmp_path / "b", {"headlines": "1 2 3"})
    with refuses(EvaluationError, "headlines"):
        load_sts(source(tmp_path, "semeval"))
    (tmp_path / "b" / "STS.gs.headlines.txt").write_text("1\n2\n")
    with refuses(EvaluationError, "headlines"):
        load_sts(source(tmp_path / "b", "semeval"))
    (tmp_path / "b" / "STS.gs.headlines.txt").unlink()
    with refuses(EvaluationError, "STS.gs.headlines.txt"):
        load_sts(source(tmp_path / "b", "semeval"))
    write_year(tmp_path / "c", {"x": "1 2"}, extra="\ttail of a sentence with a tab")
    with refuses(EvaluationError, "STS.input.x.txt"):
        load_sts(source(tmp_path / "c", "semeval"))


def sick(parts: str, *, column: bool) -> str:
    lines = ["pair_ID\tsentence_A\tsentence_B\trelatedness_score" + "\tSemEval_set" * column]
    for i, part in enumerate(parts.split()):
        lines.append(f"{i}\t{part} a {i}\t{part} b {i}\t{1 + i / 2}" + f"\t{part.upper()}" * column)
    return "\n".join(lines) + "\n"


def test_sick_has_three_parts_in_one_file_or_in_three(tmp_path: Path, refuses: Callable[..., Any]) -> None:
    (tmp_path / "one").mkdir()
    (tmp_path / "three").mkdir()
    (tmp_path / "one" / "SICK.txt").write_text(sick("train train trial trial test test", column=True))
    for part, name in (("train", "SICK_train"), ("trial", "SICK_trial"), ("test", "SICK_test_annotated")):
        (tmp_path / "three" / f"{name}.txt").write_text(sick(f"{part} {part}", column=False))
    for place in (tmp_path / "one", tmp_path / "one" / "SICK.txt", tmp_path / "three"):
        found = load_sts(source(place, "sick"))
        assert {text[:4] for text in found.first} == {"test"}
        assert found.part == "test"
    for place in (tmp_path / "one", tmp_path / "three"):
        assert len(load_sts(source(place, "sick", split="all"))) == 6
    with refuses(EvaluationError, "trial"):
        load_sts(source(tmp_path / "three" / "SICK_train.txt", "sick", split="trial"))
    (tmp_path / "low.txt").write_text(sick("test test test", column=False).replace("\t2.0", "\t0.5"))
    with pytest.raises(EvaluationError, match="between 1 and 5"):
        load_sts(source(tmp_path / "low.txt", "sick"))
    (tmp_path / "three" / "SICK_trial.txt").unlink()
    with refuses(EvaluationError, "SICK_trial.txt"):
        load_sts(source(tmp_path / "three", "sick", split="all"))


def test_sets_of_the_hub_and_folders_saved_by_datasets_are_read(
    tmp_path: Path, refuses: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    import datasets

    first, second, gold = (list(side) for side in zip(*PAIRS, strict=True))
    columns = {"sentence1": first, "sentence2": second, "score": gold}
    saved = datasets.Dataset.from_dict({**columns, "subset": ["a", "a", "b"]})
    datasets.DatasetDict({"test": saved}).save_to_disk(str(tmp_path / "d"))
    found = load_sts(source(tmp_path / "d", "hub"))
    assert as_pairs(found) == PAIRS
    assert found.subsets == ("a", "b")
    of_hub, asked = StsSource(format="hub", name="stsb", split="dev", revision="v1"), list[Any]()
    monkeypatch.setattr(datasets, "load_dataset", lambda name, **how: asked.append((name, how)) or saved)
    assert as_pairs(load_sts(of_hub)) == PAIRS
    assert asked == [("mteb/stsbenchmark-sts", {"split": "dev", "revision": "v1"})]
    saved.rename_column("score", "points").save_to_disk(str(tmp_path / "e"))
    with refuses(EvaluationError, "points"):
        load_sts(source(tmp_path / "e", "hub"))
    with refuses(EvaluationError, "validation"):
        load_sts(source(tmp_path / "d", "hub", split="validation"))


# -- the adapter for external evaluators -------------------------------------------------------------------------------


RATED = [(f"sentence {i}", f"other {i % 7}", float(i % 6)) for i in range(40)]


def encode(texts: Sequence[str]) -> np.ndarray:
    return np.stack([np.random.default_rng(sum(map(ord, text))).normal(size=12) for text in texts])


def test_sentence_transformers_computes_our_correlations() -> None:
    from sentence_transformers.sentence_transformer.evaluation import EmbeddingSimilarityEvaluator

    first, second, gold = zip(*RATED, strict=True)
    names = ["cosine", "dot", "manhattan", "euclidean"]
    evaluator = EmbeddingSimilarityEvaluator(first, second, gold, similarity_fn_names=names)
    theirs = evaluator(EncoderAdapter(encode))
    ours = score_encoder(from_pairs("set", RATED), encode)
    for name in names:
        for kind in ("spearman", "pearson"):
            assert ours.numbers["by_similarity"][name][kind] == pytest.approx(100 * theirs[f"{kind}_{name}"], abs=1e-4)


def test_texts_and_batches_of_texts_give_the_same_vectors() -> None:
    adapter, texts = EncoderAdapter(encode), ["a", "b", "c"]
    whole = adapter.encode(texts, batch_size=2, show_progress_bar=True)
    batches: list[dict[str, Any]] = [{"text": texts[:2]}, {"text": texts[2:]}]
    assert whole.dtype == np.float32
    assert (adapter.encode(batches, task_metadata=None) == whole).all()
    assert (adapter.encode("b") == whole[1]).all()
    assert torch.equal(adapter.encode(texts, convert_to_tensor=True), torch.from_numpy(whole))


@pytest.mark.parametrize(
    "option", [{"output_value": "token_embeddings"}, {"truncate_dim": 4}, {"normalize_embeddings": True}]
)
def test_options_that_change_the_vectors_are_refused(option: dict[str, Any], refuses: Callable[..., Any]) -> None:
    with refuses(EvaluationError, *option):
        EncoderAdapter(encode).encode(["a"], **option)
