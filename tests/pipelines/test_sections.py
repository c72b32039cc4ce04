"""Every node names a misspelt parameter by the section that it stands in."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from mm_ldlm.pipelines.comparison import nodes as comparison
from mm_ldlm.pipelines.export import nodes as export

from mm_ldlm.core.errors import ConfigurationError
from mm_ldlm.families.classification import labels
from mm_ldlm.pipelines import needs
from mm_ldlm.pipelines.embedding import nodes as embedding
from mm_ldlm.pipelines.evaluation import nodes as evaluation
from mm_ldlm.pipelines.ingestion import nodes as ingestion
from mm_ldlm.pipelines.reporting import nodes as reporting
from mm_ldlm.pipelines.sampling import nodes as sampling
from mm_ldlm.pipelines.sanity import nodes as sanity
from mm_ldlm.pipelines.validation import nodes as validation
from mm_ldlm.training import plan

BAD, HERE, NO = {"nope": 1}, Path("nowhere"), None
ENCODER, SOURCES = {"device": "cpu"}, {"sources": [{"kind": "starter"}]}
MODEL, TEXTS = {"kind": "dit", "dim": 32}, {"kind": "text_diffusion"}
HDLM = {"kind": "text_diffusion", "process": {"kind": "hdlm"}}
LATENTS, IMAGES, STATES = {"kind": "multimodal"}, {"kind": "image_text"}, {"kind": "ccdd"}
PIXELS = {"height": 6, "width": 9, "channels": 1}
MEMBERS = {"members": [{"name": "a", "env": "x"}]}
PLAN = {"sessions": [], "project": "/p", "conf_source": "conf", "reports": "/r"}
MADE = {"made_by": {}}
UNIT = SimpleNamespace(manifest=SimpleNamespace(meta={"encoder": {"normalised": True}}))
SUITE: Any = SimpleNamespace(capabilities=None, parts=SimpleNamespace(checkpoint=HERE))


def validated(**bad: Any) -> Any:
    given = {"encoder": ENCODER, "embedding": {}, "validation": {}, "objective": LATENTS, "evaluation": {}, **bad}
    return validation.validate_data("records", "tokens", "latents", NO, "tokenizer", **given, seed=0,  # type: ignore[arg-type]
                                    quarantine_workspace=HERE)  # fmt: skip


CALLS: list[tuple[str, Any]] = [
    ("ingestion", lambda m: m.prepare_records(BAD, {"max_length": 9}, ENCODER, 0, HERE, HERE, HERE)),
    ("tokenizer", lambda m: m.prepare_records(SOURCES, BAD, ENCODER, 0, HERE, HERE, HERE)),
    ("encoder", lambda m: m.prepare_records(SOURCES, {"max_length": 9}, BAD, 0, HERE, HERE, HERE)),
    ("tokenizer", lambda m: m.make_tokenizer(NO, BAD)),
    ("tokenizer", lambda m: m.make_tokens(NO, NO, SOURCES, BAD, HERE)),
    ("encoder", lambda m: m.embed_records(NO, NO, BAD, {}, LATENTS, HERE)),
    ("embedding", lambda m: m.embed_records(NO, NO, ENCODER, BAD, LATENTS, HERE)),
    ("objective", lambda m: m.embed_records(NO, NO, ENCODER, {}, {**LATENTS, **BAD}, HERE)),
    ("images", lambda m: m.store_images(NO, {**PIXELS, **BAD}, SOURCES, IMAGES, HERE)),
    ("ingestion", lambda m: m.store_images(NO, PIXELS, BAD, IMAGES, HERE)),
    ("encoder", lambda m: m.embed_vocabulary(NO, BAD, MODEL, HDLM, HERE)),
    ("model", lambda m: m.embed_vocabulary(NO, ENCODER, {**MODEL, **BAD}, HDLM, HERE)),
    ("objective", lambda m: m.embed_vocabulary(NO, ENCODER, MODEL, {**HDLM, **BAD}, HERE)),
    ("token_states", lambda m: m.embed_tokens(NO, NO, NO, ENCODER, BAD, STATES, HERE)),
    ("encoder", lambda m: m.embed_tokens(NO, NO, NO, BAD, {}, STATES, HERE)),
    *((name, lambda m, name=name: m.validated(**{name: BAD}))
      for name in ("encoder", "embedding", "validation", "evaluation")),
    ("normaliser", lambda m: m.fit_normaliser(UNIT, NO, LATENTS, BAD)),
    ("image_normaliser", lambda m: m.fit_image_normaliser("images", NO, IMAGES, BAD)),
    ("token_clusters", lambda m: m.cluster_vocabulary(NO, "vectors", HDLM, BAD, 0, HERE)),
    ("sampling", lambda m: m.sampling.load_model({"name": "a"}, HERE, NO, BAD)),
    ("sampling", lambda m: m.sample_l2t(NO, NO, BAD, 0)),
    ("evaluation", lambda m: m.load_model({"name": "a"}, HERE, NO, BAD)),
    ("evaluation", lambda m: m.evaluate_sts(SUITE, BAD, 0)),
    ("comparison", lambda m: m.run_members(PLAN, HERE, {**MEMBERS, **BAD}, {})),
    ("comparison", lambda m: m.collect_results(PLAN, [], {**MEMBERS, **BAD}, {}, 0)),
    ("evaluation", lambda m: m.collect_results(PLAN, [], MEMBERS, BAD, 0)),
    ("reporting", lambda m: m.report_members({}, BAD)),
    ("reporting", lambda m: m.compare_runs({"name": "a"}, HERE, MADE, NO, NO, BAD, {}, 0, {})),
    ("evaluation", lambda m: m.compare_runs({"name": "a"}, HERE, MADE, NO, NO, {}, BAD, 0, {})),
    ("evaluation", lambda m: m._weights(HERE, BAD)),
    ("sanity", lambda m: m.check_configuration(NO, HERE, MODEL, TEXTS, {}, {}, 0, BAD)),
    ("export", lambda m: m.export_layout(NO, NO, NO, BAD, HERE)),
    ("objective", lambda m: m.fields_of({**TEXTS, **BAD})),
    ("objective", lambda m: m.stores_of_objective({**TEXTS, **BAD})),
    ("objective", lambda m: m.labels_of({**TEXTS, **BAD})),
    ("model", lambda m: m.stores_of({**MODEL, **BAD})),
    ("model", lambda m: m.wanted(model={**MODEL, **BAD}, objective=TEXTS)),
    ("objective", lambda m: m.wanted(model=MODEL, objective={**TEXTS, **BAD})),
]  # fmt: skip


class Every:
    """The nodes of all pipelines by name."""

    sampling = sampling

    def __getattr__(self, name: str) -> Any:
        if name == "validated":
            return validated
        for room in (
            ingestion,
            embedding,
            validation,
            evaluation,
            sampling,
            comparison,
            reporting,
            sanity,
            export,
            needs,
        ):
            if hasattr(room, name):
                return getattr(room, name)
        raise AttributeError(name)


@pytest.mark.parametrize(("section", "call"), CALLS, ids=[f"{n}-{section}" for n, (section, _) in enumerate(CALLS)])
def test_a_misspelt_parameter_is_named_by_its_section(section: str, call: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan, "plan", lambda *_, **__: None)
    monkeypatch.setattr(labels, "read_labels", lambda *_, **__: pytest.fail("the parameters are read first"))
    with pytest.raises(ConfigurationError, match=rf"parameter '{section}\.nope' is not known"):
        call(Every())
