"""Fixtures of all tests: one thread per process, no telemetry, no network."""

import functools
import gc
import os
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

for _name, _value in {
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "KEDRO_DISABLE_TELEMETRY": "1",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "HF_HUB_OFFLINE": "1",
}.items():
    os.environ.setdefault(_name, _value)

gc.disable()  # until the tests are collected: nothing of what is imported becomes garbage
import pytest  # noqa: E402
from hypothesis import settings  # noqa: E402

# Time is measured in benchmarks, never in a test; every run draws other examples, so that many runs draw many.
settings.register_profile("untimed", deadline=None, max_examples=40)
settings.load_profile("untimed")

from tests.kills import sweep  # noqa: E402, F401
from tests.refusals import messages, pytest_addoption, refuses  # noqa: E402, F401

PROJECT = Path(__file__).resolve().parents[1]
if (_here := str(Path(__file__).parent)) not in sys.path:
    sys.path.insert(0, _here)  # for `damage`, which several folders of tests import


@pytest.fixture(autouse=True)
def _same_draws() -> None:
    """Seed the global generator, so that a test draws the same numbers alone or with others.

    `torch.manual_seed` keeps the stack for each kind of device that is not there, which takes more than a millisecond.
    """
    import torch

    torch.default_generator.manual_seed(0)


@pytest.fixture(scope="session")
def project() -> Path:
    """The project's root."""
    return PROJECT


@pytest.fixture(scope="session")
def write_dataset() -> Callable[..., Any]:
    """`write_dataset(root, texts, splits, latents=None, ...)` commits a validated dataset of words w0 … w19."""
    return _write_dataset


def _write_dataset(
    root: Path,
    texts: Sequence[str],
    splits: Sequence[str],
    *,
    latents: Any = None,
    token_vectors: Any = None,
    max_length: int = 12,
    shard_rows: int = 128,
    ids: Sequence[str] | None = None,
) -> Any:
    """Stores of these texts in folders of `root`, with a tokenizer whose ids 0 … 19 are the words w0 … w19.

    `latents` (n, d) and `token_vectors` (23, d) are written where given; the normaliser is fitted to the latents.
    """
    import numpy as np
    from tests.data.corpus.examples import word_tokenizer

    from mm_ldlm.data.corpus.record import RECORD_SCHEMA, record_id
    from mm_ldlm.data.corpus.tokens import TOKEN_SCHEMA
    from mm_ldlm.data.dataset_manifest import commit
    from mm_ldlm.data.example_index import INDEX_SCHEMA
    from mm_ldlm.data.latents.normaliser import Normaliser
    from mm_ldlm.data.latents.store import schema
    from mm_ldlm.data.store import write_store

    tokenizer = word_tokenizer(*(f"w{i}" for i in range(20)), max_length=max_length)
    tokenizer.save(root / "tokenizer")
    names = list(ids) if ids is not None else [record_id(text) for text in texts]
    tokens = [row[:max_length] for row in tokenizer.encode(texts)]
    lengths = [len(row) for row in tokens]
    count = len(texts)
    sources = [f"source {row % 3}" for row in range(count)]
    record = {"id": names, "text": list(texts), "source": sources, "split": list(splits), "meta": [None] * count}
    tables: dict[str, tuple[Any, dict[str, Any], str]] = {
        "records": (RECORD_SCHEMA, record, "records"),
        "tokens": (TOKEN_SCHEMA, {"id": names, "input_ids": tokens, "length": lengths}, "tokens"),
        "index": (INDEX_SCHEMA, {"id": names, "row": range(count), "split": list(splits), "length": lengths}, "index"),
    }
    for name, vectors, row_ids in (
        ("latents", latents, names), ("token_vectors", token_vectors, [tokenizer.token(i) for i in range(23)]),
    ):  # fmt: skip
        if vectors is not None:
            columns = {"id": row_ids, "latent": list(np.asarray(vectors, np.float32))}
            tables[name] = (schema(np.shape(vectors)[1], "float32"), columns, "latents")
    made: dict[str, str] = {"tokenizer": tokenizer.fingerprint, "encoder": "0" * 32}
    for name, (kind_schema, columns, kind) in tables.items():
        wanted = {"tokens": ("records", "tokenizer"), "latents": ("records", "encoder"),
                  "index": ("records", "tokens"), "token_vectors": ("tokenizer", "encoder")}.get(name, ())  # fmt: skip
        made[name] = write_store(
            root / name, [{key: list(value) for key, value in columns.items()}], kind=kind, schema=kind_schema,
            shard_rows=shard_rows, fingerprints={key: made[key] for key in wanted},
            meta={"splits": dict(Counter(splits))} if name == "index" else {},
        ).fingerprint  # fmt: skip
    stores = {name: root / name for name in (*tables, "tokenizer")}
    if latents is not None:
        seen = np.asarray(latents, np.float64)
        Normaliser("standard", seen.mean(0), seen.std(0), True, rows=count).save(root / "normaliser")
        stores["normaliser"] = root / "normaliser"
    return commit(root / "dataset", stores=stores)


@pytest.hookimpl(tryfirst=True)
def pytest_cmdline_main(config: pytest.Config) -> None:
    """Make `-n 2` mean `-n 2 --dist loadgroup`, where pytest-xdist is installed."""
    if getattr(config.option, "numprocesses", None) and config.option.dist == "no":
        config.option.dist, config.option.loadscopereorder = "loadgroup", False


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the tests that need the finished run, which one process makes and which take longest."""
    items.sort(key=lambda item: "finished" not in getattr(item, "fixturenames", ()))


def pytest_collection_finish() -> None:
    """Leave modules and tests out of later garbage collections, which would visit, and in a fork copy, all their objects."""
    gc.freeze()
    gc.enable()


@functools.cache
def _unit(file: str) -> str:
    """Return what one process runs together: a file, or all files that need the finished run."""
    path = PROJECT / file
    sources = (each for each in (path, path.with_name("conftest.py")) if each != Path(__file__) and each.is_file())
    return "finished" if any("finished: Path" in each.read_text(encoding="utf-8") for each in sources) else file


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Give entire files to the processes of `pytest -n N`, in order; each would make its own finished run otherwise."""
    from xdist.scheduler import LoadScopeScheduling

    class ByFile(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return _unit(nodeid.partition("::")[0])

    config.option.loadscopereorder = False
    return ByFile(config, log)


@pytest.fixture(scope="session")
def workshop(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project folder of its own: a copy of the checkout's configuration and notebooks, with empty data.

    `--env=test` reads 40 of the pairs of sentences, because most of the time of its evaluation is that of all 480.
    """
    from mm_ldlm.extras.starter.corpus import generate_starter_sts

    root = tmp_path_factory.mktemp("workshop")
    for name in ("pyproject.toml", ".telemetry"):
        (root / name).symlink_to(PROJECT / name)
    (root / "src").mkdir()  # Kedro wants one below the project; the package itself comes by PYTHONPATH
    for name in ("conf", "notebooks"):
        shutil.copytree(PROJECT / name, root / name, ignore=shutil.ignore_patterns("local", ".ipynb_checkpoints"))
    (root / "conf" / "local").mkdir()
    pairs = generate_starter_sts(seed=0, num_pairs=40)
    (root / "pairs.csv").write_text("".join(f'"{p.sentence1}","{p.sentence2}",{p.score}\n' for p in pairs))
    layer, few = root / "conf/test/parameters.yml", f"  sts:\n    sets: []\n    files: {{starter: {root}/pairs.csv}}\n"
    layer.write_text(layer.read_text(encoding="utf-8").replace("  sts:\n", few), encoding="utf-8")
    return root


@pytest.fixture(scope="session")
def finished(workshop: Path) -> Path:
    """The workshop after one `kedro run --env=test`, with one rank: every pipeline has run, every artifact is there."""
    kedro("run", "--env=test", "--params=training.launch.processes=1", root=workshop)
    return workshop


def kedro(*arguments: str, root: Path, code: int = 0, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a command line in the folder `root`, as a user would; it has to end with this exit code."""
    done = subprocess.run(
        [sys.executable, "-m", "kedro", *arguments],
        cwd=root,
        env={**os.environ, "PYTHONPATH": str(PROJECT / "src"), **environment},
        capture_output=True,
        text=True,
        timeout=1800,  # a hang, not slowness
    )
    assert done.returncode == code, f"{done.stdout}\n{done.stderr}"
    return done


@pytest.fixture(scope="session")
def run_kedro(workshop: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """`kedro …` in the workshop, which has to succeed unless another exit `code` is given."""
    return functools.partial(kedro, root=workshop)


def in_namespaces(*arguments: str) -> None:
    """`ip ARGUMENTS`; the test is skipped where that is not allowed."""
    try:
        subprocess.run(["ip", *arguments], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"network namespaces cannot be made here: {error}")


@pytest.fixture
def namespaces() -> Iterator[list[str]]:
    """Two network namespaces, joined by a cable: 10.77.0.1 and 10.77.0.2."""
    names = [f"mmldlm{os.getpid()}{side}" for side in "ab"]
    ends = [f"mm{os.getpid()}{side}" for side in "ab"]
    try:
        for name in names:
            in_namespaces("netns", "add", name)
        in_namespaces("link", "add", ends[0], "type", "veth", "peer", "name", ends[1])
        for number, (name, end) in enumerate(zip(names, ends, strict=True), 1):
            in_namespaces("link", "set", end, "netns", name)
            in_namespaces("-n", name, "addr", "add", f"10.77.0.{number}/24", "dev", end)
            in_namespaces("-n", name, "link", "set", end, "up")
            in_namespaces("-n", name, "link", "set", "lo", "up")
        yield names
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "del", name], check=False, capture_output=True)
