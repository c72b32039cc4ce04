"""Vectors of the user: what the parameters refuse, and the whole `kedro run` on them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from mm_ldlm.extras.layout.reading import Folder, parse_tokens

from mm_ldlm.app.config_loader import LayeredConfigLoader, merge
from mm_ldlm.app.parameters import check_files, check_machine, check_parameters
from mm_ldlm.core.errors import ConfigurationError
from mm_ldlm.extras.starter.corpus import generate_starter_corpus
from mm_ldlm.settings import CONFIG_LOADER_ARGS

MINILM = {"kind": "local", "name": "minilm"}


@pytest.fixture(scope="module")
def own(project: Path) -> dict[str, Any]:
    found: dict[str, Any] = LayeredConfigLoader(project / "conf", env="own_vectors", **CONFIG_LOADER_ARGS)["parameters"]
    return found


def test_the_environment_needs_no_encoder_on_this_machine(own: dict[str, Any]) -> None:
    typed = check_parameters(own)
    check_machine(typed, read={"encoder", "embedding", "ingestion"}, trains=False)
    with pytest.raises(
        ConfigurationError, match=r"'ingestion\.sources\.0\.path': 'data/01_raw/vectors\.parquet' does not"
    ):
        check_files(typed, read={"encoder", "embedding", "ingestion"})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"encoder": {"kind": "local", "name": "minilm"}}, r"^parameter 'ingestion\.sources\.0': the "
         r"source 'own_vectors' contains vectors, but encoder\.kind is 'local'"),
        ({"ingestion": {"sources": [{"kind": "text", "path": "t.txt"}]}}, r"expected a source with vectors, because "
         r"encoder\.kind is 'precomputed', found none in 'text'"),
        ({"model": {"token_vectors": "encoder"}}, r"^parameter 'encoder\.for_new_texts': .* reads token_vectors, .* "
         r"Otherwise set model\.token_vectors to random"),
        ({"sampling": {"l2t": {"texts": ["a text"]}}}, r"^parameter 'sampling\.l2t\.texts': the encoder embeds"),
        ({"sampling": {"edit": {"sources": ["a"], "targets": ["b"]}}}, r"^parameter 'sampling\.edit\.sources'"),
    ],
)  # fmt: skip
def test_parameters_that_contradict_given_vectors_are_refused_before_the_run(
    own: dict[str, Any], changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigurationError, match=message) as refused:
        check_parameters(merge(own, changes))
    assert len(str(refused.value).splitlines()) <= 3
    if "encoder" not in changes and "ingestion" not in changes:
        named = {"name": "m", "dim": 384, "normalised": True, "for_new_texts": MINILM}
        check_parameters(merge(merge(own, changes), {"encoder": named}))


TINY = (
    "training.max_steps=4,training.launch.processes=1,training.optimizer.warmup_steps=1,training.batch.examples=8,"
    "evaluation.bootstrap.replicates=20,tracking.enabled=false,model.dim=32,model.depth=1,model.heads=2,"
    "sampling.rows=8,sampling.unconditional.count=4,evaluation.inversion.sweep_sentences=4,"
    "evaluation.latents.candidates=50,ingestion.splits.test=0.1,ingestion.splits.validation=0.1"
)


@pytest.mark.slow
def test_own_vectors_go_from_a_table_to_the_report_in_one_command(
    run_kedro: Callable[..., CompletedProcess[str]], workshop: Path, tmp_path: Path
) -> None:
    texts = [
        sentence.text for sentence in generate_starter_corpus(seed=0, num_train=300, num_validation=10, num_test=10)
    ]
    vectors: list[Any] = np.random.default_rng(0).standard_normal((len(texts), 24)).astype(np.float32).tolist()
    vectors[5] = vectors[5][:-1]
    vectors[7][0] = float("nan")
    pq.write_table(pa.table({"text": texts, "embedding": vectors}), tmp_path / "table.parquet")
    own = f"ingestion.path={tmp_path}/table.parquet,encoder.name=mine,encoder.dim=24,encoder.normalised=false"
    result = run_kedro("run", "--env=own_vectors", f"--params={own},{TINY}")
    assert result.returncode == 0, result.stderr[-3000:]
    data = workshop / "data" / "own_vectors"
    ingested = json.loads((data / "08_reporting/ingestion_report.json").read_text())
    assert ingested["conservation"] == (
        f"{len(texts)} rows read = {len(texts) - 2} accepted + 0 duplicates + 2 quarantined "
        "(1 not_finite, 1 wrong_dimension)"
    )
    assert ingested["quarantined_by_reason"] == {"not_finite": 1, "wrong_dimension": 1}
    metrics = json.loads((data / "08_reporting/metrics.json").read_text())
    assert metrics["l2t.sentences"] == 8
    assert "l2t.cosine" not in metrics
    assert not any("encoder" in name for name in metrics)
    report = (data / "08_reporting/report.html").read_text()
    assert report.count("come from the sources, and no encoder is named") >= 3
    log = " ".join((result.stdout + result.stderr).split())
    assert "runs without search and re-embedding: the vectors of the encoder" in log


@pytest.mark.slow
def test_an_exported_layout_trains_samples_and_comes_back(
    finished: Path, run_kedro: Callable[..., CompletedProcess[str]], tmp_path: Path
) -> None:
    """Latents are those of the layout, checked by the encoder that made them; the second export equals the first."""
    first, second = tmp_path / "first.zip", tmp_path / "second"
    exported = run_kedro("run", "--pipeline=export", "--env=test", f"--params=export.path={first}")
    assert exported.returncode == 0, exported.stderr[-3000:]
    minilm = "encoder.dim=384,encoder.for_new_texts.kind=local,encoder.for_new_texts.name=minilm"
    result = run_kedro(
        "run", "--env=layout", f"--params=ingestion.path={first},{minilm},{TINY},sampling.search.rounds=0"
    )
    assert result.returncode == 0, result.stderr[-3000:]
    data = finished / "data" / "layout"
    ingested = json.loads((data / "08_reporting/ingestion_report.json").read_text())
    assert (ingested["duplicates"], ingested["quarantined"], ingested["splits"]["test"]) == (0, 0, 24)
    checks = json.loads((data / "08_reporting/validation_report.json").read_text())["findings"]
    assert any(check["check"] == "spot re-encoding" and "were encoded again" in check["message"] for check in checks)
    metrics = json.loads((data / "08_reporting/metrics.json").read_text())
    assert metrics["l2t.sentences"] == 8
    assert "l2t.cosine" in metrics
    back = run_kedro("run", "--pipeline=export", "--env=layout", f"--params=export.path={second},{minilm}")
    assert back.returncode == 0, back.stderr[-3000:]
    with Folder(first) as one, Folder(second) as two:
        assert one.names() == two.names()
        for name in one.names():
            if name.endswith(".npz"):
                assert parse_tokens(one.read(name)).tolist() == parse_tokens(two.read(name)).tolist()
            elif name.endswith(".json"):
                rows = [json.loads(folder.read(name)) for folder in (one, two)]
                assert [row["id"] for row in rows[0]] == [row["id"] for row in rows[1]]
            else:
                assert one.read(name) == two.read(name)
    again = run_kedro("run", "--pipeline=export", "--env=layout", f"--params=export.path={second},{minilm}")
    assert again.returncode != 0
    assert "Nothing was changed" in again.stdout + again.stderr
