"""The documentation: documented commands, modules, pages and Python exist and run as they are written."""

import importlib.util
import re
import shlex
import subprocess
import sys
from functools import reduce
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from kedro.framework.session import KedroSession
from kedro.framework.startup import bootstrap_project
from tests.components import SHAPE, random_batch
from tests.environments import CONF, ENVIRONMENTS, configured, layer, parameters

from mm_ldlm.app.config_loader import merge
from mm_ldlm.app.console import Items
from mm_ldlm.app.console import commands as console
from mm_ldlm.app.parameters import check_parameters
from mm_ldlm.cli import cli
from mm_ldlm.core import parse_kind
from mm_ldlm.diffusion.random import RowGenerator
from mm_ldlm.extras.huggingface.commands import export
from mm_ldlm.inference import files
from mm_ldlm.inference.files import DEFAULT, pretrained_names
from mm_ldlm.models.base import MODELS
from mm_ldlm.objectives.base import OBJECTIVES
from mm_ldlm.objectives.root import build_root
from mm_ldlm.pipelines import PIPELINES
from mm_ldlm.sampling.registry import TEXT_SAMPLERS

PROJECT = CONF.parent
FEATURES = PROJECT / "docs" / "features.md"
PAGES = sorted({page for pattern in ("*.md", "docs/**/*.md") for page in PROJECT.glob(pattern)})


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", page.read_text(encoding="utf-8"), flags=re.DOTALL)


def commands() -> list[tuple[str, list[str]]]:
    """Every line of a bash block of a page and every command of the table of features, as words without variables."""
    lines = [(page.name, line) for page in PAGES for block in blocks(page, "bash")
             for line in block.replace("\\\n", " ").splitlines()]  # fmt: skip
    table = re.findall(r"^\| .* \| (`.*) \|$", FEATURES.read_text(encoding="utf-8"), flags=re.MULTILINE)
    lines += [(FEATURES.name, command) for cell in table for command in re.findall(r"`([^`]+)`", cell)]
    found = [(page, shlex.split(line, comments=True)) for page, line in lines]
    return [(page, [word for word in words if not re.fullmatch(r"[A-Z_]+=.*", word)]) for page, words in found if words]


RUNS = [(page, words) for page, words in commands() if words[:2] == ["kedro", "run"] and "--help" not in words]


def headers() -> list[tuple[str, list[str]]]:
    """The commands in the comments that open the files of an environment."""
    return [
        (name, shlex.split(re.sub(r"\s{2,}\(.*", "", line[1:]).replace("=D,", "=384,"), comments=True))
        for name in ENVIRONMENTS
        for file in (CONF / name).rglob("*.yml")
        for line in file.read_text(encoding="utf-8").splitlines()
        if line.startswith("#   kedro run")
    ]


@pytest.mark.parametrize(
    ("page", "words"), {" ".join(words): (page, words) for page, words in [*headers(), *RUNS]}.values()
)
def test_a_documented_run_names_what_there_is(page: str, words: list[str]) -> None:
    """Options exist, pipelines and environments are there, parameters parse: everything short of running it."""
    configured()
    options = cli.commands["run"].make_context("run", words[2:]).params
    options["params"].pop("run", None)  # a path that is an example
    names = [options["pipeline"]] if options["pipeline"] else options["pipelines"]
    assert {*names} <= {*PIPELINES, "__default__"}
    layers = [layer(name) for name in (options["env"] or "local").split("+") if name != "local"]
    check_parameters(reduce(merge, [*layers, options["params"]], parameters("base")))


@pytest.mark.parametrize("environment", ENVIRONMENTS)
def test_an_environment_opens_with_its_axis_and_a_command(environment: str) -> None:
    files = [
        file for file in (CONF / environment).rglob("*.yml") if file.name != "globals.yml" or environment == "base"
    ]
    heads = [file.read_text(encoding="utf-8") for file in files]
    assert all(head.startswith("#") for head in heads if environment != "base")
    assert any("kedro run" in head for head in heads)


@pytest.mark.parametrize(
    ("page", "words"), [(page, words) for page, words in commands() if words[0] == "mm-ldlm" and words[1] != "run"]
)
def test_a_documented_command_has_the_options_that_it_names(
    page: str, words: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Arguments and options exist and their values parse: everything short of running it."""
    monkeypatch.setattr(Items, "convert", lambda self, value, param, ctx: value)  # files are examples
    command = console.get_command(console.make_context("mm-ldlm", ["run"]), words[1])
    assert command is not None, (page, words)
    line = words[: words.index("|")] if "|" in words else words
    command.make_context(words[1], line[2:])


def test_documented_make_targets_exist() -> None:
    documented = {words[1] for _, words in commands() if words[0] == "make" and "=" not in words[1]}
    assert {"run", "test"} <= documented
    for target in documented:
        subprocess.run(["make", "--dry-run", target], cwd=PROJECT, check=True, capture_output=True)


def test_documented_modules_exist() -> None:
    runs = [words for _, words in commands() if "-m" in words and words[0] in ("python", "torchrun", "python3")]
    assert not [words for words in runs if not importlib.util.find_spec(words[words.index("-m") + 1])]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_between_pages_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8")):
        assert (page.parent / target).exists(), target


def test_every_page_is_in_the_navigation_of_the_site() -> None:
    navigation = (PROJECT / "mkdocs.yml").read_text(encoding="utf-8")
    pages = {str(page.relative_to(PROJECT)) for page in PAGES if page.parent.name != "decisions"}
    assert pages == {
        page for page in re.findall(r"- (?:\w+: )?(\S+\.md)$", navigation, re.MULTILINE) if "decisions" not in page
    }


@pytest.mark.slow
def test_the_site_is_built_without_a_broken_link_or_a_missing_object() -> None:
    pytest.importorskip("zensical")
    words = ("make", "docs", f"BIN={Path(sys.executable).parent}", "DOCS=")
    subprocess.run(words, cwd=PROJECT, check=True)
    assert "MMLDLM" in (PROJECT / "build/site/docs/reference/index.html").read_text(encoding="utf-8")


def test_pitfall_23_measured_figures_name_the_command_that_gives_them() -> None:
    for section in (PROJECT / "docs/log.md").read_text(encoding="utf-8").split("\n## ")[1:]:
        assert "|" not in section or re.search(r"`[^`]*\b(make|kedro run|python)\b", section), section[:60]


def test_documented_python_runs(finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The Python blocks of a page run one after the other, on the run of `--env=test` in place of the run of base.

    Pages of the families need runs of their own models, as does the block about images. A corpus is generated smaller.
    """
    (tmp_path / "data").symlink_to(finished / "data" / "test")
    pairs = [f"A man plays song {i}.,A man plays a song.,{i % 6}.0" for i in range(12)]
    (tmp_path / "stsb-en-dev.csv").write_text("\n".join(pairs) + "\n")
    bootstrap_project(finished)
    catalog = KedroSession.create(finished, env="test").load_context().catalog
    monkeypatch.chdir(tmp_path)
    export.main(["data", "exported"], standalone_mode=False)
    card = Path("exported/README.md").read_text(encoding="utf-8")
    counts = re.findall(r"\| ([\d,]+) examples: starter ([\d,]+) \|", card)
    assert len(counts) == 3
    assert all(number == of_source for number, of_source in counts)
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / DEFAULT).symlink_to(tmp_path / "exported")
    monkeypatch.setattr(files, "PRETRAINED", tmp_path / "package")
    ran = []
    for page in [PROJECT / "README.md", *sorted(PROJECT.glob("docs/*.md"))]:
        names: dict[str, Any] = {"catalog": catalog, "Path": Path}
        for block in blocks(page, "python"):
            if "data/digits/" not in block:
                code = block.replace("/runs/run-…", "/runs").replace("/runs/NAME", "/runs").replace("48_000", "480")
                exec(compile(code, page.name, "exec"), names)
                ran.append(page.name)
    assert {"README.md", "sampling.md"} <= {*ran}


@pytest.mark.skipif(not pretrained_names(), reason="the package has no model")
def test_the_second_screen_reads_the_sentence_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    section = (PROJECT / "README.md").read_text(encoding="utf-8").split("\n## ")[1]
    (shell,) = re.findall(r"```bash\n(.*?)```", section, flags=re.DOTALL)
    program = f'mm-ldlm() {{ {sys.executable} -m mm_ldlm "$@"; }}\n{shell}'
    done = subprocess.run(["bash", "-e", "-c", program], capture_output=True, text=True, check=True)
    assert [done.stdout] == re.findall(r"```text\n(.*?)```", section, flags=re.DOTALL)


def test_the_components_of_the_page_on_extending_learn_and_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A model, an objective, a schedule and a sampler of another package, from the page and nothing else."""
    page = PROJECT / "docs" / "extending.md"
    (tmp_path / "outside.py").write_text("\n\n".join(blocks(page, "python")))
    monkeypatch.syspath_prepend(str(tmp_path))
    chosen = yaml.safe_load(blocks(page, "yaml")[0])
    root = build_root(
        parse_kind(MODELS, chosen["model"], at="model"), parse_kind(OBJECTIVES, chosen["objective"], at="objective"),
        SHAPE, generator=torch.Generator().manual_seed(0), stores={},
    )  # fmt: skip
    before = {name: value.detach().clone() for name, value in root.named_parameters()}
    optimizer, batch, seen = torch.optim.Adam(root.parameters(), 1e-2), random_batch(examples=32), []
    for step in range(20):
        losses = root(batch, RowGenerator(step % 2, batch.position_B), "text", step)
        loss = losses["text_loss"][0] / batch.global_tokens + losses["length_loss"][0] / batch.global_size
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        seen.append(float(loss.detach()))
    assert sum(seen[-2:]) < sum(seen[:2])
    assert [name for name, value in root.named_parameters() if torch.equal(value, before[name])] == []
    made = root.objective.generative_model(root.model)
    sampler = parse_kind(TEXT_SAMPLERS, chosen["sampling"]["text"], at="sampling.text").override(steps=7)
    canvas_BL = torch.full((2, 7), SHAPE.mask_id)
    with made.evaluating():
        open_BL, draw = canvas_BL == SHAPE.mask_id, RowGenerator(0, torch.arange(2))
        written = made.write(canvas_BL, open_BL, latents_Bd=None, sampler=sampler, generator=draw)
    assert written.steps.tolist() == [[*range(7)]] * 2, "from left to right"
    sys.modules.pop("outside")
