"""`kedro package`: the wheel with its configuration runs everything in an environment that has no sources of the project."""

import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest


@pytest.mark.slow
def test_the_wheel_and_its_configuration_go_from_text_to_a_report(project: Path, tmp_path: Path) -> None:
    sources, venv, work = (tmp_path / name for name in ("sources", "venv", "work"))
    for name in ("src", "conf"):
        shutil.copytree(project / name, sources / name, ignore=shutil.ignore_patterns("*.egg-info", "__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy2(project / name, sources)

    def run(*words: object, cwd: Path) -> None:
        done = subprocess.run(
            [*map(str, words)], cwd=cwd, env={"PATH": "/usr/bin:/bin"}, capture_output=True, text=True
        )
        assert done.returncode == 0, f"{done.stdout[-3000:]}{done.stderr[-3000:]}"

    run(sys.executable, "-m", "kedro", "package", cwd=sources)
    run(sys.executable, "-m", "venv", venv, cwd=tmp_path)
    (wheel,) = (sources / "dist").glob("*.whl")
    run(venv / "bin" / "pip", "install", "--no-deps", "--no-index", wheel, cwd=tmp_path)
    (site,) = venv.glob("lib/*/site-packages")
    (site / "dependencies.pth").write_text(sysconfig.get_paths()["purelib"])  # without its own .pth files
    models = project / "pretrained"
    packed = {each.relative_to(models) for each in models.glob("*/**/*")}
    assert packed == {each.relative_to(site / "mm_ldlm/pretrained") for each in site.glob("mm_ldlm/pretrained/*/**/*")}
    work.mkdir()
    run("tar", "xzf", sources / "dist" / "conf-mm_ldlm.tar.gz", cwd=work)
    run(venv / "bin" / "mm-ldlm", "run", "--env=test", "--params=training.launch.processes=1", cwd=work)
    assert (work / "data/test/08_reporting/report.html").is_file()
    run(venv / "bin" / "mm-ldlm", "generate", "2", "--run=data/test", cwd=work)
    shutil.rmtree(sources)
