"""Packages of `mm-ldlm new`: each is found by its name once it is installed, passes its tests and the project's, and trains."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from mm_ldlm.app.console import commands
from mm_ldlm.extras.scaffold.command import KINDS

SUITES = ("diffusion/test_process.py", "models/test_model.py", "objectives", "sampling/test_registry.py")
"""Conformance tests, which take installed components as well"""
INSTALL = """
import os, sys, zipfile
from setuptools import build_meta
site, *folders = sys.argv[1:]
os.mkdir(site)
for folder in folders:
    os.chdir(folder)
    zipfile.ZipFile(os.path.join(site, build_meta.build_wheel(site))).extractall(site)
"""
"""What pip does with packages without dependencies, in one process"""


def new(*words: object) -> Any:
    return CliRunner().invoke(commands, ["new", *map(str, words)])


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a package of each kind, called my_KIND, all of them installed into its folder `site`."""
    root = tmp_path_factory.mktemp("packages")
    for what in KINDS:
        made = new(what, f"my_{what}", root / what)
        assert made.exit_code == 0, made.output
    folders = (root / "site", *(root / what for what in KINDS))
    subprocess.run([sys.executable, "-c", INSTALL, *folders], check=True, capture_output=True)
    return root


@pytest.fixture
def python(packages: Path, project: Path) -> Callable[..., None]:
    """`python …` in a folder, with the packages installed."""

    def run(*words: object, cwd: Path = project) -> None:
        path = os.pathsep.join(map(str, (packages / "site", project / "src", project)))
        done = subprocess.run(
            [sys.executable, *map(str, words)], cwd=cwd, env={**os.environ, "PYTHONPATH": path}, capture_output=True,
            text=True,
        )  # fmt: skip
        assert done.returncode == 0, f"{done.stdout[-4000:]}{done.stderr[-2000:]}"

    return run


def test_each_package_passes_its_own_tests(packages: Path, python: Callable[..., None]) -> None:
    python("-m", "pytest", "-q", "-p", "no:cacheprovider", "-c", os.devnull, *(packages / what for what in KINDS))


@pytest.mark.slow
def test_each_component_passes_the_conformance_tests(python: Callable[..., None], project: Path) -> None:
    python("-m", "pytest", "-p", "no:cacheprovider", "-k", "my_", *(project / "tests" / suite for suite in SUITES))


@pytest.mark.slow
@pytest.mark.parametrize("what", KINDS)
def test_each_component_trains_by_its_name(workshop: Path, python: Callable[..., None], what: str) -> None:
    _, parameter = KINDS[what]
    params = f"{parameter}=my_{what},training.launch.processes=1,tracking.enabled=false,results=data/my_{what}"
    python("-m", "kedro", "run", "--env=mdlm+test", f"--params={params}", cwd=workshop)
    assert (workshop / f"data/my_{what}/08_reporting/report.html").is_file()


@pytest.mark.parametrize(
    "name", ["../x", "/x", "Upper", "", "a-b", "import", "json", "torch", "dit", "confidence", "ünï"]
)
def test_a_name_that_leaves_the_folder_or_is_taken_writes_nothing(name: str, tmp_path: Path) -> None:
    what = "sampler" if name == "confidence" else "model"
    refused = new(what, name, tmp_path / "x")
    assert refused.exit_code == 1, refused.output
    assert not any(tmp_path.iterdir())


def test_nothing_is_written_over_a_folder(tmp_path: Path) -> None:
    (tmp_path / "kept").touch()
    assert new("model", "my_model", tmp_path).exit_code == 1
    assert [*tmp_path.iterdir()] == [tmp_path / "kept"]
