"""Every feature of the registry: its plan, its place after what it is made from, and fields that follow the records."""

import dataclasses
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.data.latents.toy import DIM, ToyEncoderConfig

from mm_ldlm.core import ConfigurationError, StoreError
from mm_ldlm.data import features as module
from mm_ldlm.data.features import (
    FEATURES,
    Feature,
    Field,
    Inputs,
    feature_of,
    fit_all,
    make_all,
    needed,
    open_all,
    planned,
    sections,
)
from mm_ldlm.data.latents.normaliser import Normaliser, NormaliserConfig, calibrated
from mm_ldlm.data.store import Manifest, ShardStore, fixed_lists, write_store


@dataclasses.dataclass(frozen=True)
class Doubled(Feature):
    """Token vectors times two, of rows in another order."""

    name, kind, row_of, variant = "doubled", "toy", "token", "v"  # type: ignore[assignment]
    made_from, normaliser_folder = ("token_vectors",), "of_doubled"
    standardisation = NormaliserConfig(kind="one_scale")  # type: ignore[assignment]

    def make(self, inputs: Inputs, workspace: Path) -> Manifest:
        values = 2 * inputs.features["token_vectors"].fixed("latent").take(slice(None))
        schema = pa.schema([("value", pa.list_(pa.float32(), values.shape[1]))])
        return write_store(workspace, [{"value": fixed_lists(values)}], kind="toy", schema=schema)

    @classmethod
    def unit_norm(cls, store: ShardStore) -> bool:
        return True

    @classmethod
    def field(cls, store: ShardStore, tokens: ShardStore) -> Field:
        found = Field(store, column="value", shape=(DIM, 1))
        found.rows = lambda records: 22 - records % 23  # type: ignore[method-assign]
        return found


def reading(*names: str, stores: tuple[str, ...] = ()) -> dict[str, Any]:
    return {"objective": SimpleNamespace(fields=names, stores=()), "model": SimpleNamespace(stores=stores)}


@pytest.mark.parametrize("name", list(FEATURES))
def test_a_feature_is_a_dataclass_of_sections_with_a_kind_of_store(name: str) -> None:
    cls = feature_of(name)
    assert dataclasses.is_dataclass(cls)
    assert cls.name == name
    assert cls.kind
    assert {field.name for field in dataclasses.fields(cls)} <= {*sections()}
    assert all(other in FEATURES for other in cls.made_from)


@given(st.lists(st.sampled_from(list(FEATURES)), unique=True))
def test_a_feature_follows_what_it_is_made_from(names: list[str]) -> None:
    order = needed(**reading(*names))
    assert {*names} <= {*order}
    assert len(order) == len({*order})
    for place, name in enumerate(order):
        assert {*feature_of(name).made_from} <= {*order[:place]}


def test_a_name_that_is_no_feature_is_refused_with_the_known_ones(refuses: Any) -> None:
    with refuses(ConfigurationError, "'latnets'", "latents", "mm_ldlm.features"):
        needed(**reading("latnets"))


@settings(max_examples=20)
@given(st.lists(st.integers(0, 11), min_size=1), st.integers(1, 5))
def test_a_field_reads_the_rows_of_its_records_standardised_where_it_has_a_normaliser(
    tmp_path_factory: pytest.TempPathFactory, records: list[int], shard_rows: int
) -> None:
    values = np.random.default_rng(0).normal(size=(12, 3)).astype(np.float16)
    schema = pa.schema([("value", pa.list_(pa.float16(), 3))])
    folder = tmp_path_factory.mktemp("f")
    write_store(folder, [{"value": fixed_lists(values)}], kind="toy", schema=schema, shard_rows=shard_rows)
    field, chosen = Field(ShardStore.open(folder), column="value"), np.array(records)
    assert field.shape == (3,)
    np.testing.assert_array_equal(field.batch(chosen), values[records])
    normaliser = Normaliser("standard", np.full(3, 0.5), np.full(3, 2.0), unit_norm=False)
    found = field.batch(chosen, normaliser=normaliser)
    np.testing.assert_allclose(found, (values[records].astype(np.float64) - 0.5) / 2, rtol=1e-6)
    assert found.dtype == np.float32


def test_stores_are_made_of_others_and_normalisers_fitted_to_the_training_rows(
    write_dataset: Any, tmp_path: Path, refuses: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    toy = dataclasses.replace(FEATURES, core={**FEATURES.core, "doubled": f"{__name__}:Doubled"})
    monkeypatch.setattr(module, "FEATURES", toy)
    latents, splits = np.random.default_rng(0).normal(size=(240, 4)), ["train", "validation"] * 120
    made = write_dataset(tmp_path, [f"w{i}" for i in range(240)], splits, latents=latents)
    typed = {**reading("latents"), "normaliser": NormaliserConfig(), "encoder": ToyEncoderConfig()}
    typed["objective"].stores = ("doubled",)
    plan, store = planned(typed), made.require("latents")
    assert list(plan) == ["latents", "token_vectors", "doubled"]
    for given_latents, missing in ((store, "token_vectors"), (None, "latents")):
        with refuses(StoreError, f"'{missing}'", "--pipeline=embedding"):
            open_all(plan, latents=given_latents, folder=tmp_path / "none")
    make_all(plan, Inputs(made.records, made.tokens, made.tokenizer, {}), folder=tmp_path / "f")  # but the latents
    assert {path.name for path in (tmp_path / "f").iterdir()} == {"token_vectors", "doubled-v"}
    opened = open_all(plan, latents=store, folder=tmp_path / "f")
    store.manifest.meta["encoder"] = {"normalised": False}
    assert not feature_of("latents").unit_norm(store)
    store.manifest.meta["encoder"] = {"normalised": True}
    found = fit_all(plan, opened, tokens=made.tokens, index=made.index)
    own, toy, train = found["normaliser"], found["of_doubled"], made.rows("train")
    expected = calibrated(own, store.fixed("latent"), rows=made.rows("validation"), fitted=train)
    np.testing.assert_allclose(own.mean_d, latents[::2].mean(0), rtol=1e-4, atol=1e-6)
    assert (own.typical, own.unit_norm) == (expected.typical, True)
    assert (toy.typical, toy.unit_norm, toy.kind) == (None, True, "one_scale")
    assert (own.signature.axes_kd == expected.signature.axes_kd).all()  # type: ignore[union-attr]
    doubled = 2 * opened["token_vectors"].fixed("latent").take(22 - train % 23)
    np.testing.assert_allclose(toy.mean_d, doubled.mean(0), rtol=1e-5)
    assert plan["doubled"].field(opened["doubled"], made.tokens).shape == (DIM, 1)
