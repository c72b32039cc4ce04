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

from mm_ldlm.core import ConfigurationError, StoreError
from mm_ldlm.data.features import FEATURES, Field, feature_of, fit_all, make_all, needed, open_all, planned, sections
from mm_ldlm.data.latents.normaliser import Normaliser, NormaliserConfig
from mm_ldlm.data.store import ShardStore, fixed_lists, write_store


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


def test_a_store_that_was_not_made_is_named(write_dataset: Any, tmp_path: Path, refuses: Any) -> None:
    latents = np.random.default_rng(0).normal(size=(121, 4))
    made = write_dataset(tmp_path, [f"w{i}" for i in range(121)], ["train"] * 120 + ["validation"], latents=latents)
    typed = {**reading("latents", stores=("token_vectors",)), "normaliser": NormaliserConfig(), "encoder": None}
    plan, store = planned(typed), made.require("latents")
    assert list(plan) == ["latents", "token_vectors"]
    for given_latents, missing in ((store, "token_vectors"), (None, "latents")):
        with refuses(StoreError, f"'{missing}'", "--pipeline=embedding"):
            open_all(plan, latents=given_latents, folder=tmp_path / "none")
    only = {"latents": plan["latents"]}
    nothing: Any = SimpleNamespace()
    make_all(only, nothing, folder=tmp_path / "none")  # `embed_records` makes them
    opened = open_all(only, latents=store, folder=tmp_path / "none")
    store.manifest.meta["encoder"] = {"normalised": False}
    found = fit_all(only, opened, tokens=made.tokens, index=made.index)
    np.testing.assert_allclose(found["normaliser"].mean_d, latents[:120].mean(0), rtol=1e-4, atol=1e-6)
    assert found["normaliser"].rows == 120, "training rows only"
    assert found["normaliser"].typical is None, "one row of validation shows no range"
