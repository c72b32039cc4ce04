"""The sampling pipeline on a tiny run and tiny stores."""

from __future__ import annotations

import importlib.util
import types
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import yaml
from kedro.io import DataCatalog, MemoryDataset
from kedro.runner import SequentialRunner
from mm_ldlm.inference.edge import Edge
from mm_ldlm.sampling.config import TASKS, SamplingConfig

from mm_ldlm.app.datasets import SamplesDataset
from mm_ldlm.core.config import parse, to_dict
from mm_ldlm.core.errors import ConfigurationError, SamplingError
from mm_ldlm.data.corpus.record import record_id
from mm_ldlm.evaluation import samples
from mm_ldlm.objectives.capabilities import Capabilities
from mm_ldlm.objectives.multimodal import MultimodalConfig
from mm_ldlm.pipelines.sampling import nodes
from mm_ldlm.pipelines.sampling.pipeline import create_pipeline

PARTS = importlib.util.spec_from_file_location(
    "inference_parts", Path(__file__).parents[1] / "inference" / "conftest.py"
)


SAMPLERS = {
    "text": {"kind": "confidence", "steps": 4, "temperature": 0.0},
    "latent": {"kind": "ddim", "steps": 3},
    "unconditional": {
        "count": 5,
        "text": {"kind": "ancestral", "steps": 4},
        "latent": {"kind": "ddim", "steps": 3},
    },
}


@pytest.fixture(scope="module")
def parts():
    module = importlib.util.module_from_spec(PARTS)
    PARTS.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def world(parts, write_dataset, tmp_path_factory):
    """Two run folders, a dataset of 20 training and 8 test sentences, and an encoder that needs no weights."""
    root = tmp_path_factory.mktemp("sampling")
    encoder = parts.BagEncoder()
    texts = [" ".join(f"w{(i * 3 + j) % 20}" for j in range(2 + i % 5)) + f" w{i % 20}" for i in range(28)]
    splits = ["train"] * 20 + ["test"] * 8
    dataset = write_dataset(root / "data", texts, splits, latents=encoder.encode(texts))
    made_of = {"encoder": dataset.fingerprints["encoder"]}
    parts.write_run(root / "runs" / "run-1", fingerprints=made_of)
    parts.write_run(root / "runs" / "run-l2t", objective=MultimodalConfig(mode="l2t"), fingerprints=made_of)
    return {"root": root, "encoder": encoder, "dataset": dataset, "texts": texts}


@pytest.fixture
def sample(world, monkeypatch):
    """Run the whole pipeline with some parameters changed; returns its tables."""
    monkeypatch.setattr(Edge, "encoder", property(lambda self: world["encoder"]))
    monkeypatch.setattr(Edge, "no_encoder", None)

    def run(name="run-1", **changes):
        parameters = {
            "tasks": ["l2t", "t2l", "unconditional"],
            "rows": 6,
            **SAMPLERS,
        } | changes
        given = {
            "run": {"name": name, "path": "nowhere"},
            "runs": world["root"] / "runs",
            "params:sampling": parameters,
            "params:seed": 3,
            "dataset": world["dataset"],
        }
        catalog = DataCatalog({key: MemoryDataset(value, copy_mode="assign") for key, value in given.items()})
        return {key: value.load() for key, value in SequentialRunner().run(create_pipeline(), catalog).items()}

    return run


def test_tables_hold_samples_beside_their_sources(sample, world, tmp_path):
    tables = sample()
    l2t, t2l, free = (tables[f"samples_{task}"] for task in ("l2t", "t2l", "unconditional"))
    assert (len(l2t), len(t2l), len(free)) == (6, 6, 5)
    assert set(l2t["source"]) <= set(world["texts"][20:])
    assert [record_id(text) for text in l2t["source"]] == list(l2t["id"])
    assert list(l2t["id"]) == list(t2l["id"])
    assert l2t["cosine"].between(-1.001, 1.001).all()
    assert t2l["cosine"].between(-1.001, 1.001).all()
    assert (l2t["model_calls"] <= 4).all()
    assert (l2t["encoder_calls"] == 1).all()
    assert np.stack(free["latent"]).shape == (5, 6)
    assert set(free["neighbour"]) <= set(world["texts"][:20])
    for name, table in tables.items():  # as the catalog keeps them
        table.to_parquet(tmp_path / f"{name}.parquet")
        back = pd.read_parquet(tmp_path / f"{name}.parquet")
        assert list(back.columns) == list(table.columns)
        assert len(back) == len(table)
    assert all(len(tables[f"samples_{task}"]) == 0 for task in ("infill", "edit", "interpolate"))


@pytest.mark.parametrize("keep", ["best", "all"])
def test_several_texts_for_each_latent(sample, world, keep):
    warm = {"kind": "confidence", "steps": 4, "temperature": 1.0}
    several = {"samples": 3, "keep": keep, "texts": ["w7 w8"]}
    table = sample(tasks=["l2t"], text=warm, l2t=several)["samples_l2t"]
    assert len(table) == 7 * (3 if keep == "all" else 1)
    best = table[table["best"]]
    assert len(best) == 7
    held = best[best["id"].notna()]
    assert [record_id(text) for text in held["source"]] == list(held["id"])
    assert held["id"].is_unique
    if keep == "all":
        assert list(table["sample"]) == [0, 1, 2] * 7
        groups = [table.iloc[start : start + 3] for start in range(0, 21, 3)]
        assert all(group["cosine"].max() == group.loc[group["best"], "cosine"].item() for group in groups)
        kept = sample(tasks=["l2t"], text=warm, l2t={**several, "keep": "best"})["samples_l2t"]
        assert list(kept["text"]) == list(best["text"])
        assert list(kept["model_calls"]) == [group["model_calls"].sum() for group in groups]
    _, outputs = samples.of_samples(table, dataset=world["dataset"])
    assert list(outputs["text"]) == list(held["text"])


def test_the_same_seed_gives_the_same_tables(sample):
    one, two = sample(), sample()
    for name in one:
        pd.testing.assert_frame_equal(one[name], two[name])


def test_files_and_texts_join_the_held_out_rows(sample, world, tmp_path):
    np.save(tmp_path / "mine.npy", world["encoder"].encode(["w1 w2", "w3"]))
    (tmp_path / "mine.txt").write_text("w4 w5\n\nw6\n", encoding="utf-8")
    tables = sample(
        l2t={"files": [str(tmp_path / "mine.npy")], "texts": ["w7 w8"]},
        t2l={"files": [str(tmp_path / "mine.txt")], "texts": ["w9"]},
    )
    l2t, t2l = tables["samples_l2t"], tables["samples_t2l"]
    assert list(l2t["origin"]) == ["test"] * 6 + [str(tmp_path / "mine.npy")] * 2 + ["texts"]
    assert l2t["source"].iloc[-1] == "w7 w8"
    assert l2t["id"].isna().sum() == 3
    assert list(t2l["source"].iloc[-3:]) == ["w4 w5", "w6", "w9"]
    alone = sample(rows=0, tasks=["l2t"], l2t={"texts": ["w7 w8"]})
    assert len(alone["samples_l2t"]) == 1


def test_infill_edit_and_interpolate(sample):
    tables = sample(
        tasks=["infill", "edit", "interpolate"],
        infill={"texts": ["w1 [MASK] w3"], "latents_of": ["w1 w2 w3"]},
        edit={"sources": ["w1 w2 w3 w4", "w5 w6"], "targets": ["w9 w8"], "strength": 0.5},
        interpolate={"starts": ["w1 w2"], "ends": ["w3 w4"], "steps": 3, "path": "lerp"},
    )
    assert tables["samples_infill"]["text"][0].startswith("w1 ")
    assert tables["samples_infill"]["latent_of"][0] == "w1 w2 w3"
    assert list(tables["samples_edit"]["source"]) == ["w1 w2 w3 w4", "w5 w6"]
    assert list(tables["samples_edit"]["target"]) == ["w9 w8", "w9 w8"]
    assert list(tables["samples_interpolate"]["fraction"]) == [0.0, 0.5, 1.0]
    assert len(tables["samples_l2t"]) == 0


def test_what_the_run_was_not_trained_for_is_left_out_and_said(sample, caplog):
    caplog.set_level("INFO")
    tables = sample(name="run-l2t", tasks=None)
    assert len(tables["samples_l2t"]) == 6
    assert len(tables["samples_t2l"]) == len(tables["samples_unconditional"]) == 0
    for task, words in (("t2l", "embed texts"), ("unconditional", "generate texts from noise")):
        assert f"task '{task}' is skipped: this run cannot {words} ({task}): it was trained with" in caplog.text
    assert "image" not in caplog.text, "a run without images is not asked for any"
    with pytest.raises(SamplingError, match=r"this run cannot generate images from captions \(caption_to_image\)"):
        sample(name="run-l2t", tasks=["caption_to_image"])


def test_a_listed_task_that_the_run_was_not_trained_for_is_refused(sample):
    with pytest.raises(SamplingError, match="this run cannot embed texts"):
        sample(name="run-l2t", tasks=["l2t", "t2l"])


def test_without_a_list_every_task_with_an_input_takes_place(sample):
    tables = sample(tasks=None, infill={"texts": ["w1 [MASK]"]})
    assert {name: len(table) for name, table in tables.items()} == {
        "samples_l2t": 6, "samples_t2l": 6, "samples_unconditional": 5, "samples_infill": 1, "samples_edit": 0,
        "samples_interpolate": 0, "samples_caption_to_image": 0, "samples_image_to_caption": 0, "samples_image_text": 0,
    }  # fmt: skip


def test_a_task_that_is_not_listed_keeps_the_table_of_the_same_checkpoint(sample, tmp_path):
    entry = SamplesDataset(filepath=str(tmp_path / "samples_t2l.parquet"))
    entry.save(sample(tasks=["l2t", "t2l"])["samples_t2l"])
    entry.save(sample(tasks=["l2t"])["samples_t2l"])
    assert len(entry.load()) == 6
    entry.save(sample(tasks=["l2t"], use_ema=False)["samples_t2l"])  # other weights: the samples would be stale
    assert len(entry.load()) == 0


def test_latents_of_texts_are_also_a_file_that_l2t_reads(sample, tmp_path):
    entry = SamplesDataset(filepath=str(tmp_path / "samples_t2l.parquet"), vectors="latent")
    npy = tmp_path / "samples_t2l.npy"
    entry.save(sample(tasks=["l2t", "t2l"])["samples_t2l"])
    vectors = np.load(npy)
    assert (vectors.shape, vectors.dtype) == ((6, 6), np.float32)
    np.testing.assert_array_equal(vectors, np.stack(entry.load()["latent"]))
    entry.save(sample(tasks=["l2t"])["samples_t2l"])  # the table stays, and so does the file
    np.testing.assert_array_equal(np.load(npy), vectors)
    again = sample(tasks=["l2t"], rows=0, l2t={"files": str(npy)})["samples_l2t"]
    assert len(again) == 6
    entry.save(sample(tasks=["l2t"], use_ema=False)["samples_t2l"])
    assert not npy.exists()


def test_the_model_is_loaded_once(sample, monkeypatch):
    from mm_ldlm.inference import MMLDLM

    calls, load = [], MMLDLM.from_run
    monkeypatch.setattr(MMLDLM, "from_run", lambda *given, **more: calls.append(given) or load(*given, **more))
    sample(tasks=["l2t", "t2l", "unconditional"])
    assert len(calls) == 1


def test_an_order_that_the_run_cannot_generate_in_is_left_out(world, caplog):
    capabilities = Capabilities(
        uses=frozenset({"unconditional"}), joint_orders=("together",), reads_latents=True, trained_as="modes x"
    )
    caplog.set_level("INFO")
    model = types.SimpleNamespace(capabilities=capabilities, parts=None)
    parameters = {"tasks": None, "rows": 0, **SAMPLERS}
    parameters["unconditional"] = SAMPLERS["unconditional"] | {"order": "text_first"}
    assert len(nodes.sample_unconditional(model, world["dataset"], parameters, 0)) == 0
    assert capabilities.refuse_order("text_first") in caplog.text
    with pytest.raises(SamplingError, match="in the order 'text_first'"):
        nodes.sample_unconditional(model, world["dataset"], parameters | {"tasks": ["unconditional"]}, 0)


def test_search_is_a_parameter(sample):
    plain = sample(tasks=["l2t"])["samples_l2t"]
    found = sample(tasks=["l2t"], search={"candidates": 4, "rounds": 1})["samples_l2t"]
    assert (found["cosine"] >= plain["cosine"] - 1e-6).all()
    assert (found["encoder_calls"] > 1).all()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"tasks": ["infill"]}, "task 'infill' has no input: set infill.texts"),
        ({"tasks": ["l2t"], "rows": 0}, "task 'l2t' has no input"),
        ({"text": {"kind": "ancestrel"}}, "'sampling.text.kind': expected a text sampler, found 'ancestrel'"),
        ({"latent": {"kind": "dim"}}, "'sampling.latent.kind': expected a latent sampler, found 'dim'"),
        ({"length": "longest"}, "length must be 'argmax'"),
        ({"txet": {}}, "parameter 'sampling.txet' is not known. Did you mean 'text'"),
        ({"edit": {"sources": ["a", "b", "c"], "targets": ["d", "e"]}}, "one for each of 3 sources, found 2"),
    ],
)
def test_wrong_parameters_are_refused(changes, message):
    with pytest.raises(ConfigurationError) as error:
        nodes._config({"tasks": ["l2t"], "rows": 3, **SAMPLERS} | changes)
    assert message in str(error.value)


ALWAYS, OF_ROWS = {"unconditional", "image_text"}, {"l2t", "t2l", "caption_to_image", "image_to_caption"}


@pytest.mark.parametrize(
    ("inputs", "tasks"),
    [
        ({}, set()),
        ({"rows": 1}, OF_ROWS),
        ({"l2t": {"files": ["a.npy"]}}, {"l2t"}),
        ({"l2t": {"texts": ["a"]}}, {"l2t"}),
        ({"t2l": {"files": ["a.txt"]}}, {"t2l"}),
        ({"t2l": {"texts": ["a"]}}, {"t2l"}),
        ({"infill": {"texts": ["a [MASK]"]}}, {"infill"}),
        ({"edit": {"sources": ["a"], "targets": ["b"]}}, {"edit"}),
        ({"interpolate": {"starts": ["a"], "ends": ["b"]}}, {"interpolate"}),
    ],
)
def test_a_task_has_an_input_where_its_own_parameters_name_one(inputs, tasks):
    config = parse(SamplingConfig, {"rows": 0, **SAMPLERS} | inputs, at="sampling")
    assert {task for task in TASKS if config.has_input(task)} == ALWAYS | tasks


def test_base_parameters_are_complete(project):
    """The file names every option but those of a sampler's own kind, so that users need not read code to find one."""
    written = yaml.safe_load((project / "conf/base/parameters/sampling.yml").read_text())["sampling"]
    typed = parse(SamplingConfig, written, at="sampling")
    assert set(written) == set(to_dict(typed))
    for key in ("search", "infill", "edit", "interpolate", "l2t", "t2l", "unconditional"):
        assert set(written[key]) == set(to_dict(typed)[key]), key
