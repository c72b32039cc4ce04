from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from kedro.config import OmegaConfigLoader
from kedro.io import DataCatalog
from kedro.runner import SequentialRunner

from mm_ldlm.core.config import parse
from mm_ldlm.core.errors import ConfigurationError
from mm_ldlm.data.corpus.config import IngestionConfig
from mm_ldlm.data.corpus.tokenizer import TextTokenizer, TokenizerConfig
from mm_ldlm.pipelines.ingestion import nodes
from mm_ldlm.pipelines.ingestion.pipeline import create_pipeline

SMALL = {"kind": "starter", "num_train": 300, "num_validation": 20, "num_test": 30}


def catalog_of(project: Path, data: Path, **ingestion: Any) -> DataCatalog:
    """The project's own catalog on another folder, with this pipeline's parameters."""
    loader = OmegaConfigLoader(
        str(project / "conf"), base_env="base", default_run_env="local", runtime_params={"data": str(data)}
    )
    entries = {name: entry for name, entry in loader["catalog"].items() if not name.startswith("_")}
    names = create_pipeline().datasets()
    catalog = DataCatalog.from_config({name: entry for name, entry in entries.items() if name in names})
    parameters = loader["parameters"]
    catalog["params:ingestion"] = {**parameters["ingestion"], "progress": False, "sources": [SMALL], **ingestion}
    catalog["params:tokenizer"] = parameters["tokenizer"]
    catalog["params:encoder"] = parameters["encoder"]
    catalog["params:seed"] = parameters["seed"]
    return catalog


def test_the_pipeline_fills_the_catalog(project: Path, tmp_path: Path) -> None:
    catalog = catalog_of(project, tmp_path)
    SequentialRunner().run(create_pipeline(), catalog)
    records, tokens, report = catalog.load("records"), catalog.load("tokens"), catalog.load("ingestion_report")
    assert len(records) == len(tokens) == report["accepted"] == 350
    assert report["splits"] == {"train": 300, "validation": 20, "test": 30}
    assert records.strings("id").take(slice(None)) == tokens.strings("id").take(slice(None))
    tokenizer = catalog.load("tokenizer_files")
    assert isinstance(tokenizer, TextTokenizer)
    assert tokens.manifest.fingerprints["tokenizer"] == tokenizer.fingerprint
    assert len(catalog.load("quarantine_ingestion")) == 0
    values, offsets = tokens.lists("input_ids").take([5])
    assert tokenizer.decode(values) == records.strings("text").take([5])[0].lower()
    before = records.manifest.fingerprint
    SequentialRunner().run(create_pipeline(), catalog_of(project, tmp_path))
    assert catalog.load("records").manifest.fingerprint == before
    assert offsets.tolist() == [0, len(values)]


def test_another_parameter_makes_another_store(project: Path, tmp_path: Path) -> None:
    SequentialRunner().run(create_pipeline(), catalog_of(project, tmp_path))
    catalog = catalog_of(project, tmp_path, length={"max_characters": 40})
    SequentialRunner().run(create_pipeline(), catalog)
    report = catalog.load("ingestion_report")
    assert report["quarantined_by_reason"]["too_long"] == len(catalog.load("quarantine_ingestion")) > 0
    assert len(catalog.load("tokens")) == report["accepted"] < 350


@pytest.mark.parametrize("environment", ["base", "test", "tatoeba", "wikitext103", "openwebtext", "lm1b", "stsb"])
def test_the_parameters_of_each_environment_are_valid(project: Path, environment: str) -> None:
    loader = OmegaConfigLoader(
        str(project / "conf"), base_env="base", default_run_env=environment, merge_strategy={"parameters": "soft"}
    )
    parameters = loader["parameters"]
    assert parse(IngestionConfig, parameters["ingestion"], at="ingestion").sources
    assert parse(TokenizerConfig, parameters["tokenizer"], at="tokenizer").max_length > 1


def test_base_parameters_are_valid_and_misspelt_ones_are_named(project: Path, tmp_path: Path) -> None:
    with pytest.raises(
        ConfigurationError, match=r"'ingestion.max_bad_fractions' is not known. Did you mean 'max_bad_fraction'"
    ):
        nodes.prepare_records({"sources": [SMALL], "max_bad_fractions": 0.1}, {"max_length": 8}, {}, 0, *[tmp_path] * 3)
    with pytest.raises(ConfigurationError, match=r"'tokenizer.max_length' is missing"):
        nodes.prepare_records({"sources": [SMALL]}, {}, {}, 0, *[tmp_path] * 3)
