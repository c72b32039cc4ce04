"""Extraction on several hosts: the first decides what is missing and commits; no byte depends on their number."""

from __future__ import annotations

import dataclasses
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from mm_ldlm.core.config import parse
from mm_ldlm.core.errors import ConfigurationError
from mm_ldlm.data.latents import hosts, worker
from mm_ldlm.data.latents.config import ExtractConfig
from mm_ldlm.data.latents.extract import extract, extract_with_first_host
from mm_ldlm.data.latents.store import LatentStore
from mm_ldlm.data.store import NOT_NEEDED
from mm_ldlm.distributed import environment
from mm_ldlm.distributed.launch import HostsConfig

VARIABLES = {"NNODES": "2", "NODE_RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29511", "NPROC_PER_NODE": "1"}


@pytest.fixture
def two_hosts(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    for name, value in VARIABLES.items():
        monkeypatch.setenv(name, value)
    return monkeypatch


def test_the_variables_of_the_launcher_are_those_of_a_training(
    pristine: Any, tmp_path: Path, two_hosts: pytest.MonkeyPatch
) -> None:
    def config() -> Any:
        return hosts.launch_config(pristine.extraction, pristine.encoder, workspace=tmp_path)

    first = config()
    assert (first.nodes, first.node_rank, first.processes, first.rendezvous) == (2, 0, 1, "127.0.0.1:29511")
    assert environment.hosts().is_first
    two_hosts.setenv("NODE_RANK", "1")
    assert config().job == first.job
    assert not environment.hosts().is_first
    two_hosts.delenv("NPROC_PER_NODE")
    two_hosts.setattr(os, "sched_getaffinity", lambda _: set(range(6)))
    two_hosts.setattr("torch.cuda.is_available", lambda: False)
    assert config().processes == 1  # embedding.processes
    changed = dataclasses.replace(pristine.extraction, processes=0, threads=2)
    assert hosts.launch_config(changed, pristine.encoder, workspace=tmp_path).processes == 3  # type: ignore[union-attr]
    two_hosts.setenv("NNODES", "1")
    assert config() is None
    assert environment.hosts().is_first


@pytest.mark.parametrize(
    ("variable", "change", "words"),
    [
        ("NODE_RANK", {}, r"the number of this host among 2 in NODE_RANK \(0 for the first\), found none"),
        ("MASTER_ADDR", {}, "the address of the first of 2 hosts, found none. Set MASTER_ADDR and MASTER_PORT"),
        ("", {"engine": {"kind": "ray"}}, r"'embedding.engine': expected local on 2 hosts \(NNODES\), found ray"),
    ],
)
def test_hosts_that_cannot_meet_are_refused(
    pristine: Any, tmp_path: Path, two_hosts: pytest.MonkeyPatch, variable: str, change: dict[str, Any], words: str
) -> None:
    if variable:
        two_hosts.delenv(variable)
    with pytest.raises(ConfigurationError, match=words):
        extract(
            pristine.records, encoder=pristine.encoder, config=parse(ExtractConfig, change, at="embedding"),
            workspace=tmp_path / "w",
        )  # fmt: skip


def test_hosts_of_one_store_have_one_name_and_each_has_logs_of_its_own(
    pristine: Any, tmp_path: Path, two_hosts: pytest.MonkeyPatch
) -> None:
    """Hosts may see the folder of the store under different paths; two stores or two first hosts have two names."""

    def job(folder: str, **launch: Any) -> str:
        extraction = dataclasses.replace(pristine.extraction, launch=HostsConfig(**launch))
        return hosts.launch_config(extraction, pristine.encoder, workspace=Path(folder)).job  # type: ignore[union-attr]

    assert job("/a/latents") == job("/b/latents") != job("/a/other")
    assert job("/a/latents", job="mine") == "mine"
    before = job("/a/latents")
    two_hosts.setenv("MASTER_PORT", "29512")
    assert job("/a/latents") != before
    launched: list[Any] = []
    two_hosts.setattr(hosts, "launch", lambda *given, **options: launched.append((given, options)))
    two_hosts.setattr(environment, "host_name", lambda: "left")
    for rank in ("0", "1"):
        two_hosts.setenv("NODE_RANK", rank)
        config = hosts.launch_config(pristine.extraction, pristine.encoder, workspace=tmp_path)
        assert config is not None
        hosts.run_ranks(tmp_path, config=config)
        progress = tmp_path / ".extract"
        assert launched[-1][0] == ("mm_ldlm.data.latents.worker", [str(progress / "job.json")])
        assert launched[-1][1] == {"config": config, "log_directory": progress / "logs" / f"left-{rank}"}


def test_an_engine_with_nodes_of_its_own_refuses_hosts() -> None:
    with pytest.raises(ConfigurationError, match=r"'embedding.launch.nodes': expected 1, because the engine ray has"):
        parse(ExtractConfig, {"engine": {"kind": "ray"}, "launch": {"nodes": 2}}, at="embedding")


def test_the_first_host_decides_and_the_ranks_of_both_write_the_bytes_of_one_process(
    pristine: Any, tmp_path: Path, files: Any, two_hosts: pytest.MonkeyPatch
) -> None:
    """The ranks run here one after another, as rank 1 of the other host and rank 0 of the first."""
    workspace = tmp_path / "w"
    launched: list[tuple[str, int]] = []

    def launch(module: str, arguments: list[str], *, config: Any, log_directory: Path) -> None:
        launched.append((arguments[0], config.node_rank))
        for rank in (1, 0):
            two_hosts.setattr(
                worker.environment, "rank_info", lambda rank=rank: worker.environment.RankInfo(rank=rank, world=2)
            )
            worker.main(Path(arguments[0]))

    two_hosts.setattr(hosts, "launch", launch)
    two_hosts.setattr(worker.process, "die_with_parent", lambda: None)
    two_hosts.setattr(worker, "append_output", lambda: None)
    for _ in range(2):  # the second time nothing is missing, and the hosts meet all the same
        extract(pristine.records, encoder=pristine.encoder, config=pristine.extraction, workspace=workspace)
        assert files(workspace) == files(pristine.root / "latents")
    two_hosts.setenv("NODE_RANK", "1")
    two_hosts.setattr(
        hosts, "launch", lambda _, arguments, config, **__: launched.append((arguments[0], config.node_rank))
    )
    extract_with_first_host(encoder=pristine.encoder, config=pristine.extraction, workspace=workspace)
    job = str(workspace / ".extract" / "job.json")
    assert launched == [(job, 0), (job, 0), (job, 1)]


def test_other_hosts_save_nothing(pristine: Any, tmp_path: Path, two_hosts: pytest.MonkeyPatch) -> None:
    from mm_ldlm.pipelines.embedding import nodes

    two_hosts.setenv("NODE_RANK", "1")
    two_hosts.setattr(hosts, "launch", lambda *_, **__: None)
    objective = {"kind": "multimodal"}
    encoder = {"kind": "local", "path": pristine.encoder.path, "device": "cpu"}
    assert nodes.embed_records(pristine.records, None, encoder, {}, objective, tmp_path / "w") is NOT_NEEDED
    for call in (
        lambda: nodes.store_images(pristine.records, {}, {}, {"kind": "image_text"}, tmp_path / "i"),
        lambda: nodes.embed_vocabulary(pristine.tokenizer, encoder, {"kind": "mmdit"}, objective, tmp_path / "v"),
        lambda: nodes.embed_tokens(
            pristine.records, pristine.tokens, pristine.tokenizer, encoder, {}, {"kind": "ccdd"}, tmp_path / "s"
        ),
    ):
        assert call() is NOT_NEEDED
    assert not any(tmp_path.iterdir())


def test_a_restarted_rank_skips_what_it_has_finished(
    pristine: Any, tmp_path: Path, two_hosts: pytest.MonkeyPatch, files: Any
) -> None:
    workspace, made = tmp_path / "w", []
    real = worker.encode_shards

    def counted(plan: Any, numbers: list[int], **options: Any) -> None:
        made.append(numbers)
        real(plan, numbers[:1] if len(made) == 1 else numbers, **options)

    def launch(module: str, arguments: list[str], **_: Any) -> None:
        worker.main(Path(arguments[0]))
        worker.main(Path(arguments[0]))

    two_hosts.setattr(worker, "encode_shards", counted)
    two_hosts.setattr(hosts, "launch", launch)
    two_hosts.setattr(worker.process, "die_with_parent", lambda: None)
    two_hosts.setattr(worker, "append_output", lambda: None)
    extract(pristine.records, encoder=pristine.encoder, config=pristine.extraction, workspace=workspace)
    assert made == [[0, 1, 2, 3, 4], [1, 2, 3, 4]]
    assert files(workspace) == files(pristine.root / "latents")


# -- two hosts ---------------------------------------------------------------------------------------------------------

_HOST = """
import sys
from pathlib import Path
from mm_ldlm.distributed.environment import hosts
from mm_ldlm.encoders import LocalEncoderConfig
from mm_ldlm.latents.config import ExtractConfig
from mm_ldlm.latents.extract import extract, extract_with_first_host
from mm_ldlm.store import ShardStore

records, workspace, encoder = sys.argv[1:]
given = {
    "encoder": LocalEncoderConfig(name="minilm", path=encoder, device="cpu", batch_tokens=256, max_length=64),
    "config": ExtractConfig(shard_rows=50, progress=False),
    "workspace": Path(workspace),
}
if hosts().is_first:
    extract(ShardStore.open(records, "records"), **given)
else:
    extract_with_first_host(**given)
"""


@pytest.mark.slow
def test_two_launchers_write_the_bytes_of_one_process(pristine: Any, tmp_path: Path, files: Any) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    workspace = tmp_path / "w"
    source = str(Path(worker.__file__).resolve().parents[2])
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", _HOST, str(pristine.root / "records"), str(workspace), pristine.encoder.path],
            env={**os.environ, **VARIABLES, "MASTER_PORT": port, "NODE_RANK": rank, "PYTHONPATH": source},
        )
        for rank in ("1", "0")
    ]
    for process in processes:
        assert process.wait(timeout=400) == 0
    assert files(workspace) == files(pristine.root / "latents")
    assert LatentStore.open(workspace).ids(slice(None)) == pristine.records.strings("id").take(slice(None))


def test_a_number_of_hosts_is_also_a_parameter() -> None:
    config = parse(ExtractConfig, {"launch": {"nodes": 3, "rendezvous": "head:29400"}}, at="embedding")
    assert config.launch == HostsConfig(nodes=3, rendezvous="head:29400")
