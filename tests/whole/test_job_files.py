"""Job files in docs/: parsed by their tools where these are at hand, and consistent in themselves.

`make test-slow` installs Ray, whose own parser reads its cluster file.
"""

import re
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from mm_ldlm.app.params_option import parse_params
from mm_ldlm.distributed.environment import counts_hosts, hosts
from mm_ldlm.pipelines import MAIN

DOCS = Path(__file__).parents[2] / "docs"
SCRIPTS = sorted(DOCS.glob("*.sbatch"))
MANIFESTS = sorted(DOCS.glob("kubernetes-*.yaml"))
OPTIONS = {"job-name", "nodes", "ntasks-per-node", "gpus-per-node", "cpus-per-task", "time", "signal", "requeue"}


def check_kedro_run(words: list[str], *, project: Path) -> None:
    """Check the pipelines, environments and parameters of a `kedro run` command."""
    options = dict(word.removeprefix("--").split("=", 1) for word in words if word.startswith("--") and "=" in word)
    for name in (options.get("pipelines") or options["pipeline"]).split(","):
        assert name in MAIN
    for layer in re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", options.get("env", "base")).split("+"):
        assert (project / "conf" / layer).is_dir(), layer
    if "--params" in words:
        assert set(parse_params(words[words.index("--params") + 1])) <= {"data", "ingestion", "embedding"}


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.name)
def test_batch_scripts(path: Path, project: Path) -> None:
    text = path.read_text()
    subprocess.run(["bash", "-n", str(path)], check=True)
    lines = text.splitlines()
    directives = [line for line in lines if line.startswith("#SBATCH ")]
    assert lines[0] == "#!/bin/bash"
    assert {line.split()[1].removeprefix("--").split("=")[0] for line in directives} <= OPTIONS
    last = max(lines.index(line) for line in directives)
    assert all(line.startswith("#") for line in lines[:last]), "SLURM reads no directive after the first command"
    assert "set -euo pipefail" in lines
    for command in re.findall(r"^(?:srun )?(kedro run (?:.*\\\n)*.*)$", text, re.MULTILINE):
        check_kedro_run(shlex.split(command.replace("\\\n", " ")), project=project)


def test_tasks_of_the_batch_script_know_their_host() -> None:
    """What the script exports, and what SLURM sets for a task of the second host."""
    text = (DOCS / "slurm-embedding.sbatch").read_text()
    for name in ("MASTER_ADDR", "MASTER_PORT", "NPROC_PER_NODE", "NNODES"):
        assert re.search(rf"^export .*\b{name}\b", text, re.MULTILINE)
    task = {
        "SLURM_NNODES": "2", "SLURM_NODEID": "1", "SLURM_JOB_NODELIST": "gpu[1-2]", "NNODES": "2",
        "MASTER_ADDR": "gpu1", "MASTER_PORT": "29400", "NPROC_PER_NODE": "8",
    }  # fmt: skip
    found = hosts(task)
    assert (found.nodes, found.node_rank, found.endpoint, found.processes) == (2, 1, "gpu1:29400", 8)
    assert counts_hosts(task)


def documents(path: Path) -> dict[str, Any]:
    """The documents of a manifest, by kind."""
    return {document["kind"]: document for document in yaml.safe_load_all(path.read_text())}


@pytest.mark.parametrize("path", MANIFESTS, ids=lambda path: path.name)
def test_manifests_name_what_they_contain(path: Path) -> None:
    found = documents(path)
    versions = {"Service": "v1", "Job": "batch/v1", "RayJob": "ray.io/v1"}
    assert {kind: document["apiVersion"] for kind, document in found.items()} == {
        kind: versions[kind] for kind in found
    }
    pods = []
    if "Job" in found:
        job, service = found["Job"], found["Service"]
        name, spec = job["metadata"]["name"], job["spec"]
        assert service["metadata"]["name"] == name == spec["template"]["spec"]["subdomain"]
        assert service["spec"]["selector"] == {"job-name": name}
        assert service["spec"]["clusterIP"] == "None"
        assert (spec["completionMode"], spec["completions"]) == ("Indexed", spec["parallelism"])
        assert f"{name}-0.{name}" in path.read_text(), "the address of pod 0"
        pods.append(spec["template"]["spec"])
    else:
        cluster = found["RayJob"]["spec"]["rayClusterSpec"]
        groups = [cluster["headGroupSpec"], *cluster["workerGroupSpecs"]]
        assert all("rayStartParams" in group for group in groups)
        assert all(isinstance(value, str) for group in groups for value in group["rayStartParams"].values())
        pods += [group["template"]["spec"] for group in groups]
    for pod in pods:
        volumes = {volume["name"] for volume in pod.get("volumes", [])}
        for container in pod["containers"]:
            assert {mount["name"] for mount in container.get("volumeMounts", [])} == volumes
            assert all(isinstance(each.get("value", ""), str) for each in container.get("env", []))


def test_pods_of_the_embedding_know_their_host(project: Path) -> None:
    spec = documents(DOCS / "kubernetes-embedding.yaml")["Job"]["spec"]
    container = spec["template"]["spec"]["containers"][0]
    check_kedro_run([*container["command"], *container["args"]], project=project)
    # NODE_RANK, without a value, is the index of the pod
    found = hosts({each["name"]: each.get("value", "1") for each in container["env"]})
    assert (found.nodes, found.node_rank) == (spec["completions"], 1)
    assert found.endpoint == "mm-ldlm-embedding-0.mm-ldlm-embedding:29400"
    assert found.processes == container["resources"]["limits"]["nvidia.com/gpu"]


def test_the_entrypoint_of_the_ray_job_is_a_command(project: Path) -> None:
    job = documents(DOCS / "kubernetes-ray.yaml")["RayJob"]["spec"]
    shell = shlex.split(job["entrypoint"])
    assert shell[:2] == ["sh", "-c"]
    check_kedro_run(shlex.split(shell[2].partition("&& ")[2]), project=project)
    constraints = (DOCS.parent / "constraints.txt").read_text().splitlines()
    assert f"ray=={job['rayClusterSpec']['rayVersion']}" in constraints


@pytest.mark.slow
def test_rays_own_parser_accepts_the_cluster_file() -> None:
    pytest.importorskip("ray")
    from ray.autoscaler._private.util import prepare_config, validate_config

    plain = yaml.safe_load((DOCS / "ray-cluster.yaml").read_text())
    whole = prepare_config(plain)
    validate_config(whole)
    assert whole["provider"]["worker_ips"] == ["10.0.0.2", "10.0.0.3"]
    assert len(plain["provider"]["worker_ips"]) == plain["max_workers"]


def test_the_container_copies_what_there_is(project: Path) -> None:
    lines = (project / "Containerfile").read_text().splitlines()
    copied = [name for line in lines if line.startswith("COPY ") for name in line.split()[1:-1]]
    assert {"src", "conf", "pyproject.toml"} <= {*copied}
    assert not [name for name in copied if not (project / name).exists()]
