"""Command `mm-ldlm new`: write the package of a new component, which works before anything in it is changed."""

import importlib.util
import keyword
import os
import re
from pathlib import Path

import click

from mm_ldlm.app.console import messages_only
from mm_ldlm.core import ConfigurationError, Registry, import_object, show
from mm_ldlm.core.files import new_directory, write_text

KINDS = {
    "process": (
        "mm_ldlm.diffusion.process:TEXT_PROCESSES",
        "sampling.unconditional.text.kind=ancestral,objective.process.kind",
    ),
    "objective": ("mm_ldlm.objectives.base:OBJECTIVES", "objective.kind"),
    "model": ("mm_ldlm.models.base:MODELS", "model.kind"),
    "sampler": ("mm_ldlm.sampling.registry:TEXT_SAMPLERS", "sampling.unconditional.text.kind"),
}
"""Component → its registry, and the parameter that chooses it, after the parameters by which it fits `--env=mdlm`"""


@click.command("new")
@click.argument("what", type=click.Choice(list(KINDS)))
@click.argument("name")
@click.argument("folder", required=False)
def new(what: str, name: str, folder: str | None) -> None:
    """Write a package with a new process, objective, model or sampler, its test and its README.

    The package works as generated: once it is installed, parameters can choose the kind NAME. FOLDER is a new folder,
    by default NAME next to the current folder.
    """
    import jinja2

    registry_path, parameter = KINDS[what]
    target = Path(folder or Path("..", name))
    with messages_only():
        registry: Registry = import_object(registry_path, what)
        usable = re.fullmatch("[a-z][a-z0-9_]*", name) and not keyword.iskeyword(name)
        if not usable or name in registry or importlib.util.find_spec(name):
            raise ConfigurationError(
                f"NAME: expected a new name of lower-case letters, digits and underscores, found {show(name)}, which "
                f"has others or is taken by a {what} or a Python module. Write for example my_{what}."
            )
        if os.path.lexists(target):
            raise ConfigurationError(f"FOLDER: expected a new folder, found {show(str(target))}. Name a new folder.")
        command = f"kedro run --env=mdlm+test --params {parameter}={name}"
        words = {"what": what, "name": name, "group": registry.group, "command": command}
        words["class"] = "".join(part.title() for part in name.split("_"))
        loader = jinja2.PackageLoader("mm_ldlm.extras.scaffold")
        templates = jinja2.Environment(loader=loader, undefined=jinja2.StrictUndefined, keep_trailing_newline=True)
        files = {
            "pyproject.toml": "pyproject.toml", "README.md": "README.md", f"{name}.py": f"{what}.py",
            f"tests/test_{name}.py": "test.py",
        }  # fmt: skip
        with new_directory(target) as made:
            (made / "tests").mkdir()
            for file, template in files.items():
                write_text(made / file, templates.get_template(f"{template}.j2").render(words))
    click.echo(f"{target}: {', '.join(files)}. Install and train it:")
    click.echo(f"pip install -e {target}\n{command}")
