"""Embedding 10,000 sentences against `SentenceTransformer.encode(batch_size=32)` with the same weights in the same run.

Both are measured from parameters to the last vector, the loading of the model included (imports are not for the peer,
which runs in this process; ours pays for starting its processes). Ours also writes the store, checksums and manifest.
The two take turns, so that whatever else the machine does meets both; the peer uses all cores by threads, as it does by
default.
"""

import os
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

SENTENCES = 10_000
ROUNDS = 3


def run() -> list[dict[str, Any]]:
    """Return one row: sentences per second of both."""
    return measure(SENTENCES, ROUNDS)


def measure(sentences: int, rounds: int) -> list[dict[str, Any]]:
    """Embed that many sentences in each round."""
    import torch
    from sentence_transformers import SentenceTransformer

    from mm_ldlm.data.encoders import LocalEncoderConfig
    from mm_ldlm.data.latents.config import ExtractConfig
    from mm_ldlm.data.latents.extract import extract
    from mm_ldlm.data.latents.store import LatentStore

    texts = _texts(sentences)
    folder = str(LocalEncoderConfig().locate().folder)
    cores = len(os.sched_getaffinity(0))
    ours, theirs, difference = [], [], 0.0
    cpu: dict[str, list[float]] = {"ours": [], "theirs": []}
    before = torch.get_num_threads()
    torch.set_num_threads(cores)
    try:
        with tempfile.TemporaryDirectory() as temporary:
            records = _records(texts, Path(temporary) / "records")
            for number in range(rounds):
                workspace = Path(temporary) / f"latents-{number}"
                start, busy = time.perf_counter(), _cpu_seconds()
                extract(records, encoder=LocalEncoderConfig(), config=ExtractConfig(), workspace=workspace)
                ours.append(sentences / (time.perf_counter() - start))
                cpu["ours"].append(_cpu_seconds() - busy)
                start, busy = time.perf_counter(), _cpu_seconds()
                expected = SentenceTransformer(folder, device="cpu").encode(
                    texts, batch_size=32, show_progress_bar=False
                )
                theirs.append(sentences / (time.perf_counter() - start))
                cpu["theirs"].append(_cpu_seconds() - busy)
                found = LatentStore.open(workspace).take(slice(None))
                difference = max(difference, float(np.abs(found - np.asarray(expected)).max()))
    finally:
        torch.set_num_threads(before)
    if difference > 1e-5:
        raise AssertionError(f"expected vectors that differ by at most 1e-5, found {difference:.2e}")
    value, peer = statistics.median(ours), statistics.median(theirs)
    return [
        {
            "name": "embedding.sentences_per_second",
            "value": value,
            "unit": "sentences/s",
            "peer": "SentenceTransformer.encode(batch_size=32)",
            "peer_value": peer,
            "ratio": value / peer,
            "note": (
                f"{sentences} starter sentences, MiniLM, {cores} cores, median of {rounds} alternating rounds; ours "
                f"writes the store; vectors differ by at most {difference:.1e}"
            ),
        }
    ]


def _cpu_seconds() -> float:
    """Return the CPU seconds of this process and its finished children."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


def _texts(count: int) -> list[str]:
    from mm_ldlm.extras.starter.corpus import generate_starter_corpus

    return [
        sentence.text for sentence in generate_starter_corpus(seed=0, num_train=count, num_validation=1, num_test=1)
    ][:count]


def _records(texts: list[str], folder: Path) -> Any:
    from mm_ldlm.data.corpus.record import RECORD_SCHEMA, record_id
    from mm_ldlm.data.store import ShardStore, write_store

    count = len(texts)
    columns = {
        "id": [record_id(text) for text in texts],
        "text": texts,
        "source": ["benchmark"] * count,
        "split": ["train"] * count,
        "meta": [None] * count,
    }
    write_store(folder, [columns], kind="records", schema=RECORD_SCHEMA)
    return ShardStore.open(folder, "records")
