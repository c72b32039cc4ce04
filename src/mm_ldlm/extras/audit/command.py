"""Command `mm-ldlm audit`: the pipeline `audit` without a project."""

from pathlib import Path
from typing import Any

import click

from mm_ldlm.app.console import messages_only, refuse_result


@click.command("audit")
@click.argument("vectors")
@click.argument("texts", required=False)
@click.option("--table", help="Table of a database.")
@click.option("--text-column", help="Column of the texts; by default text.")
@click.option("--vector-column", help="Column of the vectors; by default vector.")
@click.option(
    "--run", "model", help="The inverter: a run, an exported run or a model of the package; by default minilm-english."
)
@click.option("--rows", type=int, help="Number of sampled texts that are read from their vectors; by default 2000.")
@click.option("--params", default="", metavar="KEY=VALUE,…", help="Further parameters of the section audit.")
@click.option(
    "--show-texts", is_flag=True, default=None, help="Show the texts on the page, which masks them otherwise."
)
@click.option("--seed", type=int, default=0, show_default=True, help="Seed of the sample and of all draws.")
@click.option("-o", "--output", type=click.Path(), default="audit.html", show_default=True, help="The page.")
@click.option("--overwrite", is_flag=True, help="Replace the output if it exists.")
def audit(vectors: str, texts: str | None, params: str, seed: int, output: str, overwrite: bool, **given: Any) -> None:
    """Measure how much text can be read from VECTORS, and which defences help; write a page, and its numbers as .json.

    VECTORS is a .npy file, whose texts are the lines of TEXTS; a table with texts and vectors (.parquet, .jsonl, .csv);
    a folder of LanceDB; or the address of a PostgreSQL database (postgresql://HOST/DATABASE). Nothing is written to it.
    """
    from mm_ldlm.app.params_option import parse_params
    from mm_ldlm.core import Seed, check, parse, refuse_unwritable

    page = Path(output)
    with messages_only():
        for file, suffix in ((page, ".html"), (page.with_suffix(".json"), "")):
            refuse_result(str(file), overwrite=overwrite, suffix=suffix)
        options = {key: value for key, value in {**given, "texts": texts}.items() if value is not None}
        values = {**parse_params(params), **options, "vectors": vectors}
        refuse_unwritable(values, at="audit")
        from mm_ldlm.extras.audit.config import AuditConfig

        config, seed = parse(AuditConfig, values, at="audit"), check(seed, Seed, name="--seed")
        from mm_ldlm.core.files import write_json, write_text
        from mm_ldlm.extras.audit.audit import audit as measured
        from mm_ldlm.extras.audit.audit import model_of
        from mm_ldlm.extras.audit.page import report

        results = measured(config, model_of(config.model), seed=seed)
        write_json(page.with_suffix(".json"), results)
        write_text(page, report(results)[0])
        exact = results["readable"]["exact"]
        click.echo(
            f"{page}: {exact['value']:.1%} [{exact['low']:.1%}, {exact['high']:.1%}] of the texts are read exactly, up "
            "to case and spaces"
        )
