"""Nodes of `validation`: check the stores, index the valid examples, fit normaliser and clusters, commit."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from mm_ldlm.core.config import parse
from mm_ldlm.data.store import NOT_NEEDED
from mm_ldlm.pipelines.needs import fields_of, labels_of, not_needed, stores_of, stores_of_objective, used

if TYPE_CHECKING:
    from mm_ldlm.data.corpus.tokenizer import TextTokenizer
    from mm_ldlm.data.latents.normaliser import Normaliser
    from mm_ldlm.data.latents.store import LatentStore
    from mm_ldlm.data.store import Manifest, NotNeeded, ShardStore

Parameters = Any  # a section of the parameters, parsed by the hook
PLOTS = ("norms", "spectrum", "lengths", "neighbours")
"""Figures of the data, each a catalog entry `plot_{name}`."""
LABEL_STORES = ("labels", "label_names", "pair_tokens")
"""Stores of labelled records, each with a workspace; an objective names those that it reads."""


def validate_data(
    records: ShardStore,
    tokens: ShardStore,
    latents: ShardStore | None,
    images: ShardStore | None,
    tokenizer: TextTokenizer,
    encoder: Parameters,
    embedding: Parameters,
    validation: Parameters,
    objective: Parameters,
    evaluation: Parameters,
    seed: int,
    quarantine_workspace: Path,
) -> dict[str, Any]:
    """Check everything that the objective reads; return the report, the failed rows and the plots.

    The report contains failed contracts; `index_valid_examples` raises them after the report was saved.
    """
    from mm_ldlm.data.encoders import parse_encoder
    from mm_ldlm.data.index import write_quarantine
    from mm_ldlm.data.latents import figures
    from mm_ldlm.data.latents.checks import validate
    from mm_ldlm.data.latents.config import ExtractConfig, ValidationConfig
    from mm_ldlm.evaluation.config import EvaluationConfig
    from mm_ldlm.evaluation.sts_sets import load_sts

    sets = parse(EvaluationConfig, evaluation, at="evaluation").sts.sources
    outcome = validate(
        records=records,
        tokens=tokens,
        latents=_field("latents", latents, objective),
        images=_field("images", images, objective),
        tokenizer=tokenizer,
        encoder=parse_encoder(encoder),
        extraction=parse(ExtractConfig, embedding, at="embedding"),
        config=parse(ValidationConfig, validation, at="validation"),
        evaluation_sets={source.name: load_sts(source, seed=seed).sentences for source in sets},
        seed=seed,
    )
    if "labels" in fields_of(objective):
        from mm_ldlm.families.classification.labels import read_labels, with_labels

        key, answers = labels_of(objective)
        outcome = with_labels(outcome, read_labels(records, key=key, answers=answers), key=key)
    return {
        "report": outcome.report,
        "quarantine": write_quarantine(records, outcome.failing, quarantine_workspace),
        "norms": figures.norm_histogram(outcome.statistics),
        "spectrum": figures.spectrum(outcome.statistics),
        "lengths": figures.length_histogram(tokens.ints("length").take(slice(None))),
        "neighbours": figures.neighbour_cosine(outcome.statistics),
    }


def index_valid_examples(
    report: dict[str, Any],
    records: ShardStore,
    tokens: ShardStore,
    latents: ShardStore | None,
    quarantine: ShardStore,
    objective: Parameters,
    index_workspace: Path,
) -> Manifest:
    """Index the examples that are not in quarantine; raise ValidationError if the report has a failed contract."""
    from mm_ldlm.data.index import write_index
    from mm_ldlm.data.latents.findings import enforce

    enforce(report)
    return write_index(records, tokens, _field("latents", latents, objective), quarantine, index_workspace)


def fit_normaliser(
    latents: ShardStore | None, index: ShardStore, objective: Parameters, normaliser: Parameters
) -> Normaliser | NotNeeded:
    """Fit the normaliser to the latents of the valid training examples; calibrate its range on those of validation."""
    if (found := _field("latents", latents, objective)) is None:
        return not_needed("normaliser", f"the objective '{objective.kind}' reads no latents")
    from mm_ldlm.data.index import split_column
    from mm_ldlm.data.latents.normaliser import NormaliserConfig
    from mm_ldlm.data.latents.normaliser_fit import calibrated, fit

    unit_norm = bool(found.manifest.meta["encoder"]["normalised"])
    config = parse(NormaliserConfig, normaliser, at="normaliser")
    fitted = fit(found, rows=split_column(index, "train", "row"), config=config, unit_norm=unit_norm)
    return calibrated(fitted, found, rows=split_column(index, "validation", "row"))


def fit_state_normaliser(
    token_states: ShardStore | None, tokens: ShardStore, index: ShardStore, objective: Parameters
) -> Normaliser | NotNeeded:
    """Fit the normaliser of each dimension to the states of the tokens of the valid training examples."""
    if (found := _field("token_states", token_states, objective)) is None:
        return not_needed("normaliser of token states", f"the objective '{objective.kind}' reads none")
    from mm_ldlm.data.index import split_column
    from mm_ldlm.data.latents.normaliser import NormaliserConfig
    from mm_ldlm.data.latents.normaliser_fit import fit
    from mm_ldlm.families.ccdd import token_states as states

    starts = states.starts(tokens.ints("length").take(slice(None)))
    rows = states.rows_of_tokens(starts, split_column(index, "train", "row"))
    config = NormaliserConfig(kind="standard")
    return fit(found, rows=rows, config=config, unit_norm=False, column=states.COLUMN)


def fit_image_normaliser(
    images: ShardStore | None, index: ShardStore, objective: Parameters, image_normaliser: Parameters
) -> Normaliser | NotNeeded:
    """Fit the normaliser to the images of the valid training examples."""
    if (found := _field("images", images, objective)) is None:
        return not_needed("normaliser of images", f"the objective '{objective.kind}' reads no images")
    from mm_ldlm.data.index import split_column
    from mm_ldlm.data.latents.normaliser import NormaliserConfig
    from mm_ldlm.data.latents.normaliser_fit import fit

    config = parse(NormaliserConfig, image_normaliser, at="image_normaliser")
    return fit(found, rows=split_column(index, "train", "row"), config=config, unit_norm=False)


def cluster_vocabulary(
    tokenizer: TextTokenizer,
    token_vectors: LatentStore | None,
    objective: Parameters,
    token_clusters: Parameters,
    seed: int,
    token_clusters_workspace: Path,
) -> Manifest | NotNeeded:
    """Cluster the words by their token vectors, for an objective that is made from the clusters."""
    if "token_clusters" not in stores_of_objective(objective):
        return not_needed("token clusters", f"the objective '{objective.kind}' is not made from them")
    from mm_ldlm.data.latents.config import TokenClustersConfig
    from mm_ldlm.families.hdlm import token_clusters as clusters

    return clusters.cluster_vocabulary(
        tokenizer,
        used("token_vectors", token_vectors, ("token_vectors",), by="the clustering of tokens"),
        config=parse(TokenClustersConfig, token_clusters, at="token_clusters"),
        seed=seed,
        workspace=token_clusters_workspace,
    )


def index_labels(
    records: ShardStore,
    index: ShardStore,
    tokenizer: TextTokenizer,
    objective: Parameters,
    labels_workspace: Path,
    label_names_workspace: Path,
    pair_tokens_workspace: Path,
) -> dict[str, Manifest | NotNeeded]:
    """Write the class of every record, the names of the classes and the tokens of second texts, where they are used."""
    needed = {*fields_of(objective), *stores_of_objective(objective)}
    found: dict[str, Manifest | NotNeeded] = dict.fromkeys(LABEL_STORES, NOT_NEEDED)
    if not needed & set(LABEL_STORES):
        return found
    from mm_ldlm.families.classification import labels as stores

    key, answers = labels_of(objective)
    read = stores.read_labels(records, key=key, answers=answers)
    if "labels" in needed:
        found["labels"] = stores.write_labels(records, index, read, labels_workspace, key=key)
    if "label_names" in needed:
        found["label_names"] = stores.write_label_names(read, label_names_workspace)
    if "pair_tokens" in needed:
        found["pair_tokens"] = stores.write_pair_tokens(records, tokenizer, pair_tokens_workspace)
    return found


def commit_dataset(
    records: ShardStore,
    tokens: ShardStore,
    index: ShardStore,
    tokenizer: TextTokenizer,
    latents: ShardStore | None,
    normaliser: Normaliser | None,
    images: ShardStore | None,
    image_normaliser: Normaliser | None,
    token_vectors: ShardStore | None,
    token_clusters: ShardStore | None,
    token_states: ShardStore | None,
    state_normaliser: Normaliser | None,
    labels: ShardStore | None,
    label_names: ShardStore | None,
    pair_tokens: ShardStore | None,
    objective: Parameters,
    model: Parameters,
) -> dict[str, Any]:
    """Collect the stores that this objective and model need, by name; the catalog entry `dataset` commits them."""
    stores = {"records": records, "tokens": tokens, "index": index, "tokenizer": tokenizer}
    fields = fields_of(objective)
    if (found := _field("latents", latents, objective)) is not None:
        stores |= {"latents": found, "normaliser": normaliser}
    if (states := _field("token_states", token_states, objective)) is not None:
        stores |= {"token_states": states, "state_normaliser": state_normaliser}
    if (found := _field("images", images, objective)) is not None:
        stores |= {"images": found, "image_normaliser": image_normaliser}
    by = f"model '{model.kind}'"
    if (vectors := used("token_vectors", token_vectors, stores_of(model), by=by)) is not None:
        stores["token_vectors"] = vectors
    by = f"objective '{objective.kind}'"
    if (clusters := used("token_clusters", token_clusters, stores_of_objective(objective), by=by)) is not None:
        stores["token_clusters"] = clusters
    fields = (*fields, *stores_of_objective(objective))
    for name, store in zip(LABEL_STORES, (labels, label_names, pair_tokens), strict=True):
        if store is not None and name in fields:
            stores[name] = store
    return stores | {name: None for name in fields if name not in stores}  # those that only the catalog entry names


def _field(name: str, store: ShardStore | None, objective: Parameters) -> Any:
    return used(name, store, fields_of(objective), by=f"objective '{objective.kind}'")
