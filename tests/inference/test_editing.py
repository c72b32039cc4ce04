"""What an edit masks, paths between latents, and neighbours: in closed form, on vectors of any length."""

from __future__ import annotations

import contextlib
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from mm_ldlm.core.errors import SamplingError
from mm_ldlm.diffusion.random import RowGenerator
from mm_ldlm.inference.editing import neighbours, remask, slerp

MASK, PAD = 21, 20


class Graded:
    """A model to which a token with a larger id is less likely."""

    shape, device = SimpleNamespace(pad_id=PAD, mask_id=MASK, vocab_size=MASK + 1), "cpu"
    evaluating = contextlib.nullcontext

    def token_log_probs(self, tokens_BL, *, latents_Bd, generator):
        return -tokens_BL.double(), 3


@pytest.mark.parametrize("batch_tokens", [1, 100])
def test_the_tokens_that_are_least_likely_are_masked(batch_tokens):
    writer = SimpleNamespace(
        model=Graded(), batch_tokens=batch_tokens, generator=lambda rows, seed: RowGenerator(seed, torch.tensor(rows))
    )
    texts = [[1, 9, 2, 8], [5, 4, 3], [7]]
    canvases, calls = remask(
        writer, texts, latents_nd=torch.zeros(3, 6), strength=0.6, which="least_likely", seed=0
    )  # fmt: skip
    assert canvases == [[1, MASK, 2, MASK], [MASK, MASK, 3], [MASK]]
    assert calls.tolist() == [3, 3, 3]


@pytest.mark.parametrize(("strength", "canvas"), [(0, [1, 9]), (1, [MASK, MASK])])
def test_no_or_every_token_is_chosen_without_a_model_call(strength, canvas):
    writer = SimpleNamespace(
        model=Graded(), batch_tokens=9, generator=lambda rows, seed: RowGenerator(seed, torch.tensor(rows))
    )
    found, calls = remask(
        writer, [[1, 9]], latents_nd=torch.zeros(1, 6), strength=strength, which="least_likely", seed=0
    )  # fmt: skip
    assert (found, calls.tolist()) == ([canvas], [0])


@pytest.mark.parametrize("fraction", [0.0, 0.25, 0.5, 1.0])
def test_a_great_circle_interpolates_the_angle_and_the_norm_separately(fraction):
    """Two pairs: from angle 0 and norm 2 to angle π/2 and norm 6, and from 1 and 5 to 1.7 and 1."""

    def at(angles, norms):
        return np.stack([norms * np.cos(angles), norms * np.sin(angles)], axis=1)

    angles, norms = (np.array([0.0, 1.0]), np.array([np.pi / 2, 1.7])), (np.array([2.0, 5.0]), np.array([6.0, 1.0]))
    expected = [(1 - fraction) * start + fraction * end for start, end in (angles, norms)]
    found = slerp(at(angles[0], norms[0]), at(angles[1], norms[1]), fraction)
    np.testing.assert_allclose(found, at(*expected), atol=1e-12)


def test_each_path_is_straight_where_its_own_ends_are_parallel():
    starts = np.array([[2.0, 0.0], [1.0, 1.0], [3.0, 0.0], [0.0, 0.0]])
    ends = np.array([[0.0, 6.0], [3.0, 3.0], [-1.0, 0.0], [0.0, 2.0]])
    found = slerp(starts, ends, 0.25)
    for row in range(4):
        np.testing.assert_allclose(found[row], slerp(starts[row : row + 1], ends[row : row + 1], 0.25)[0])
    np.testing.assert_allclose(found[0], 3 * np.array([np.cos(np.pi / 8), np.sin(np.pi / 8)]))
    np.testing.assert_allclose(found[1:3], [[1.5, 1.5], [2.0, 0.0]])


@pytest.mark.parametrize("chunk", [1, 8, 49, 50, 1000])
def test_neighbours_do_not_depend_on_the_chunks_in_which_the_store_is_read(chunk):
    draw = np.random.default_rng(0)
    store, queries = draw.normal(size=(50, 6)) * draw.uniform(0.1, 9, size=(50, 1)), 3 * draw.normal(size=(5, 6))
    cosines = (queries @ store.T) / np.linalg.norm(queries, axis=1)[:, None] / np.linalg.norm(store, axis=1)
    order = np.argsort(-cosines, axis=1)[:, :7]
    found = neighbours(queries, store, k=7, chunk=chunk)
    assert found.rows.tolist() == order.tolist()
    assert [list(row) for row in found.ids] == [[str(i) for i in row] for row in order]
    np.testing.assert_allclose(found.cosines, np.take_along_axis(cosines, order, axis=1), rtol=1e-9)


@pytest.mark.parametrize("chunk", [2, 3, 100])
def test_the_row_of_a_store_that_is_not_finite_is_that_of_the_store(chunk: int) -> None:
    store = np.arange(1.0, 15.0).reshape(7, 2)
    assert neighbours(np.ones((1, 2)), store, k=7, chunk=chunk).rows.shape == (1, 7), "as many as there are"
    store[5, 1] = np.nan
    with pytest.raises(SamplingError, match="row 5 of the store contains a number that is not finite"):
        neighbours(np.ones((1, 2)), store, k=2, chunk=chunk)
    with pytest.raises(SamplingError, match="k must lie between 1 and the store's 7 rows, found 8"):
        neighbours(np.ones((1, 2)), store, k=8, chunk=chunk)
    with pytest.raises(SamplingError, match="expected latents of dimension 2, as in the store, found 3"):
        neighbours(np.ones((1, 3)), store, k=1, chunk=chunk)
