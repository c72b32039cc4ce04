"""Extraction through an embedding service: what the service does wrong changes no byte of the store."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from mm_ldlm.data.latents.checks import validate
from mm_ldlm.data.latents.plan import Plan, make_plan
from tests.extras.http_encoder.embedding_service import DIM, Service, unit

from mm_ldlm.core.config import parse
from mm_ldlm.core.errors import ConfigurationError, EncoderError, FingerprintError
from mm_ldlm.data.encoders import EncoderConfig, load_encoder, locate_encoder, parse_encoder
from mm_ldlm.data.latents import extract as extraction
from mm_ldlm.data.latents import worker
from mm_ldlm.data.latents.config import ExtractConfig, ValidationConfig
from mm_ldlm.data.latents.extract import extract
from mm_ldlm.data.latents.store import LatentStore
from mm_ldlm.data.store import Manifest, Shard

Files = Callable[[Path], dict[str, bytes]]
FAULTS = ["429", "500", "503", "slow", "truncated", "not_json", "reset", "reordered"]


def http_encoder(service: Service, **values: Any) -> EncoderConfig:
    return parse_encoder({"kind": "http", "url": service.url, "name": "toy", "batch_rows": 8, "timeout": 30, **values})


def run(data: Any, service: Service, workspace: Path, *, parameters: Any = None, **values: Any) -> LatentStore:
    encoder = http_encoder(service, **(parameters or {}))
    config = dataclasses.replace(data.extraction, **values)
    extract(data.records, encoder=encoder, config=config, workspace=workspace)
    return LatentStore.open(workspace)


def texts_of(data: Any) -> list[str]:
    found: list[str] = data.records.strings("text").take(slice(None))
    return found


def written(workspace: Path) -> list[int]:
    """Numbers of the shards that an unfinished store records."""
    return sorted(int(path.stem[-6:]) for path in (workspace / ".extract").glob("part-*.json"))


def recorded(workspace: Path, number: int) -> Shard:
    return Shard(**json.loads((workspace / ".extract" / f"part-{number:06d}.json").read_text()))


def failing(rate: float, *, seed: int) -> Callable[[int, list[str]], str | None]:
    random = np.random.default_rng(seed)
    return lambda number, texts: random.choice(FAULTS) if random.random() < rate else None


def test_a_failing_service_gives_the_bytes_of_one_that_does_not_fail(
    pristine: Any, service: Service, tmp_path: Path, files: Files
) -> None:
    """Nothing lost, nothing twice; the store contains neither the address nor the name of a variable."""
    store = run(pristine, service, tmp_path / "calm", processes=0)
    np.testing.assert_array_equal(store.take(slice(None)), [unit(text) for text in texts_of(pristine)])
    assert sorted(service.texts) == sorted(texts_of(pristine))
    meta = store.manifest.meta
    assert (meta["dim"], meta["encoder"]["kind"], meta["encoder"]["name"]) == (DIM, "http", "toy")
    assert service.url not in (tmp_path / "calm" / "manifest.json").read_text()
    service.fault = failing(0.3, seed=1)
    run(pristine, service, tmp_path / "failing", processes=0, parameters={"timeout": 0.4})  # "slow" is slower
    assert files(tmp_path / "failing") == files(tmp_path / "calm")


def test_a_run_that_ended_continues_with_the_missing_shards(
    pristine: Any, service: Service, tmp_path: Path, files: Files
) -> None:
    run(pristine, service, tmp_path / "whole")
    service.requests.clear()
    texts = texts_of(pristine)
    service.fault = lambda number, asked: "400" if texts[120] in asked else None
    with pytest.raises(EncoderError, match="status 400"):
        run(pristine, service, tmp_path / "w")
    kept = written(tmp_path / "w")
    assert kept
    assert 2 not in kept
    service.fault = lambda number, asked: None
    service.requests.clear()
    run(pristine, service, tmp_path / "w")
    assert sorted(service.texts) == sorted(text for row, text in enumerate(texts) if row // 50 not in kept)
    assert files(tmp_path / "w") == files(tmp_path / "whole")


def test_a_service_with_noise_continues_its_own_store(pristine: Any, service: Service, tmp_path: Path) -> None:
    """Its probe vectors are never twice the same, and the store keeps the fingerprint of the first contact."""

    def noisy(text: str) -> np.ndarray:
        return (unit(text) + np.random.default_rng().normal(0, 3e-5, DIM)).astype(np.float32)

    service.vectors = noisy
    first = run(pristine, service, tmp_path / "w").manifest
    (tmp_path / "w" / "part-000003.arrow").unlink()
    again = run(pristine, service, tmp_path / "w").manifest
    assert again.fingerprints == first.fingerprints
    assert report_of(pristine, service, tmp_path / "w")["passed"]


def report_of(data: Any, service: Service, latents: Path) -> dict[str, Any]:
    return validate(
        records=data.records, tokens=data.tokens, latents=LatentStore.open(latents), tokenizer=data.tokenizer,
        encoder=parse_encoder({"kind": "http", "url": service.url, "name": "toy"}), extraction=data.extraction,
        config=ValidationConfig(spot_rows=20), evaluation_sets={}, seed=0,
    ).report  # fmt: skip


def test_a_model_that_changes_during_the_run_writes_no_further_shard(
    pristine: Any, service: Service, tmp_path: Path
) -> None:
    texts = texts_of(pristine)

    def changing(text: str) -> np.ndarray:
        return unit(text, salt="new" if texts[130] in service.texts else "")

    service.vectors = changing
    with pytest.raises(EncoderError, match=r"returns other vectors than before.*no further one was written"):
        run(pristine, service, tmp_path / "w")
    kept = written(tmp_path / "w")
    assert 2 not in kept
    for number in kept:  # whatever was written before is of the first model
        shard = LatentStore(
            tmp_path / "w", Manifest(kind="latents", rows=50, shards=(recorded(tmp_path / "w", number),))
        )
        np.testing.assert_array_equal(shard.take(slice(None)), [unit(text) for text in texts[50 * number :][:50]])
    with pytest.raises(EncoderError, match="returns other vectors than before"):  # and so does the next run
        run(pristine, service, tmp_path / "w")
    service.vectors = unit
    np.testing.assert_array_equal(
        run(pristine, service, tmp_path / "w").take(slice(None)), [unit(text) for text in texts]
    )


def test_validation_finds_a_model_that_changed_after_the_run(pristine: Any, service: Service, tmp_path: Path) -> None:
    run(pristine, service, tmp_path / "w")
    assert report_of(pristine, service, tmp_path / "w")["passed"]
    service.vectors = lambda text: unit(text, salt="new")
    with pytest.raises(EncoderError, match="returns other vectors than before"):
        report_of(pristine, service, tmp_path / "w")


@pytest.mark.parametrize("values", [{"name": "other"}, {"prompt": "say: "}])
def test_pitfall_25_shards_of_another_model_are_refused(
    pristine: Any, service: Service, tmp_path: Path, values: dict[str, Any]
) -> None:
    run(pristine, service, tmp_path / "w")
    with pytest.raises(FingerprintError, match="contains latents of another encoder"):
        run(pristine, service, tmp_path / "w", parameters=values)


def test_not_a_number_stops_with_the_ids_or_goes_to_quarantine(pristine: Any, service: Service, tmp_path: Path) -> None:
    texts = texts_of(pristine)
    service.fault = lambda number, asked: "nan" if asked[-1] == texts[7] else None
    identity = pristine.records.strings("id").take([7])[0]
    with pytest.raises(EncoderError, match=rf"not finite for 1 of 50 sentences of shard 0 \(ids {identity}\)"):
        run(pristine, service, tmp_path / "w")
    store = run(pristine, service, tmp_path / "q", non_finite="quarantine")
    assert store.manifest.meta["non_finite"] == {"count": 1, "ids": [identity]}


WORKER = """
import sys
from pathlib import Path
from mm_ldlm.latents import worker
worker.main(Path(sys.argv[1]))
print([name for name in ("kedro", "mlflow", "transformers") if name in sys.modules])
"""


def test_the_worker_process_builds_the_encoder_from_the_plan(
    pristine: Any, service: Service, tmp_path: Path, files: Files
) -> None:
    """Without Kedro, MLflow and transformers; the key reaches it by the environment."""
    parameters = {"key_variable": "TOY_KEY"}
    environment = {**os.environ, "TOY_KEY": "sk-secret", "PYTHONPATH": os.pathsep.join(sys.path)}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TOY_KEY", "sk-secret")
        run(pristine, service, tmp_path / "here", parameters=parameters)
        encoder = http_encoder(service, **parameters)
        located = locate_encoder(encoder)
        plan = make_plan(
            pristine.records, located, encoder=encoder, config=pristine.extraction, workspace=tmp_path / "there"
        )
        plan.progress_folder.mkdir(parents=True)
        extraction._write_plan(plan, located)
        (tmp_path / "job.json").write_text(json.dumps({"plan": plan.to_dict(), "missing": [0, 1, 2, 3, 4]}))
        command = [sys.executable, "-c", WORKER, str(tmp_path / "job.json")]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
        assert done.stdout.strip() == "[]"
        assert written(tmp_path / "there") == [0, 1, 2, 3, 4]
        asked = len(service.texts)
        run(pristine, service, tmp_path / "there", parameters=parameters)
    assert len(service.texts) == asked
    assert files(tmp_path / "there") == files(tmp_path / "here")


def test_the_plan_of_a_service_survives_its_json(pristine: Any, service: Service, tmp_path: Path) -> None:
    seen: list[Plan] = []
    real = worker.encode_shards
    try:
        extraction.worker.encode_shards = lambda plan, *a, **k: (seen.append(plan), real(plan, *a, **k))  # type: ignore
        run(pristine, service, tmp_path / "w")
    finally:
        extraction.worker.encode_shards = real
    assert Plan.from_dict(json.loads(json.dumps(seen[0].to_dict()))) == seen[0]


def test_a_key_in_the_wrong_place_never_reaches_a_store(
    pristine: Any, service: Service, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOY_KEY", "sk-secret")
    run(pristine, service, tmp_path / "w", parameters={"key_variable": "TOY_KEY"})
    assert service.headers[-1]["Authorization"] == "Bearer sk-secret"
    written = b"".join(path.read_bytes() for path in (tmp_path / "w").rglob("*") if path.is_file())
    assert b"sk-secret" not in written
    assert b"TOY_KEY" not in written
    with pytest.raises(ConfigurationError, match="is not known"):
        parse_encoder({"kind": "http", "url": service.url, "name": "toy", "key": "sk-secret"})


@pytest.mark.slow
def test_twenty_thousand_sentences_through_a_service_that_fails(
    new_records: Callable[..., Any], service: Service, tmp_path: Path, files: Files
) -> None:
    """One request in twenty fails: nothing lost, nothing twice, the bytes of a run without failures."""
    texts = [f"sentence {number} of twenty thousand" for number in range(20_000)]
    records = new_records(tmp_path / "records", texts)
    encoder = http_encoder(service, batch_rows=16)
    config = parse(ExtractConfig, {"progress": False}, at="embedding")
    extract(records, encoder=encoder, config=config, workspace=tmp_path / "calm")
    assert sorted(service.texts) == sorted(texts)
    service.requests.clear()
    random = np.random.default_rng(0)
    failed: list[str] = []

    def one_in_twenty(number: int, asked: list[str]) -> str | None:
        if random.random() >= 0.05:
            return None
        failed.append(random.choice(FAULTS))
        return failed[-1]

    service.fault = one_in_twenty
    impatient = http_encoder(service, batch_rows=16, timeout=0.5)
    extract(records, encoder=impatient, config=config, workspace=tmp_path / "failing")
    assert len(failed) > 40
    assert set(failed) == set(FAULTS)
    assert files(tmp_path / "failing") == files(tmp_path / "calm")
    store = LatentStore.open(tmp_path / "failing")
    assert store.ids(slice(None)) == records.strings("id").take(slice(None))
    np.testing.assert_array_equal(store.take(slice(None)), [unit(text) for text in texts])
    assert Manifest.read(tmp_path / "failing").rows == 20_000


def test_the_loaded_encoder_adopts_the_fingerprint_of_a_run(service: Service) -> None:
    """As `MMLDLM.from_run` does."""
    parameters = parse_encoder({"kind": "http", "url": service.url, "name": "toy"})
    expected = load_encoder(parameters).fingerprint
    service.vectors = lambda text: (unit(text) * np.float32(1 + 1e-5)).astype(np.float32)
    assert load_encoder(parameters, expected=expected).fingerprint == expected
