"""The stores that a configuration needs: those of the objective and of the model, and what they are made from."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from mm_ldlm.data.store.needs import FROM_ENCODER, MADE_FROM, needed_stores


@pytest.mark.parametrize(
    ("fields", "stores", "of_model", "needed"),
    [
        ((), (), (), set()),
        (("latents",), (), (), {"latents"}),
        ((), ("labels", "label_names"), (), {"labels", "label_names"}),
        ((), (), ("token_vectors",), {"token_vectors"}),
        (("images",), ("labels",), ("token_vectors",), {"images", "labels", "token_vectors"}),
        ((), ("token_clusters",), (), {"token_clusters", "token_vectors"}),
        (("token_clusters",), (), ("token_vectors",), {"token_clusters", "token_vectors"}),
    ],
)
def test_each_of_the_three_lists_counts_and_what_a_store_is_made_from(
    fields: tuple[str, ...], stores: tuple[str, ...], of_model: tuple[str, ...], needed: set[str]
) -> None:
    found = needed_stores(
        model=SimpleNamespace(stores=of_model), objective=SimpleNamespace(fields=fields, stores=stores)
    )
    assert found == needed


def test_what_is_made_from_an_encoder_is_made_from_no_other_store() -> None:
    assert set(MADE_FROM.values()) <= FROM_ENCODER
    assert not FROM_ENCODER & set(MADE_FROM)
