"""Rows of the states of tokens, each token of each record once, and the information of a state about its token."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mm_ldlm.families.ccdd import token_states
from mm_ldlm.families.ccdd.token_identity import Classifier, identity_bits

lengths = st.lists(st.integers(1, 9), min_size=1, max_size=20)


@given(lengths, st.data())
def test_the_rows_of_records_are_those_of_their_tokens(found: list[int], data: st.DataObject) -> None:
    records = data.draw(st.lists(st.integers(0, len(found) - 1), max_size=8))
    starts_n = token_states.starts(np.array(found))
    expected = [sum(found[:record]) + place for record in records for place in range(found[record])]
    assert token_states.rows_of_tokens(starts_n, np.array(records, np.int64)).tolist() == expected
    assert starts_n[-1] == sum(found)


@given(lengths, st.integers(1, 12))
def test_shards_divide_the_records_and_are_no_longer_than_asked_or_one_record(found: list[int], size: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(token_states, "SHARD_TOKENS", size)
        cuts = token_states._cuts(token_states.starts(np.array(found)))
    assert [record for first, last in cuts for record in range(first, last)] == list(range(len(found)))
    assert all(sum(found[first:last]) <= size or last == first + 1 for first, last in cuts)


# -- the information of a state about its token ------------------------------------------------------------------------


def states(count: int, *, seed: int, distance: float) -> tuple[np.ndarray, np.ndarray]:
    """States of two tokens, equally frequent: ±distance on the first axis, with a deviation of 1 on all three."""
    draw = np.random.default_rng(seed)
    ids_n = draw.integers(0, 2, count)
    centre_nd = np.outer(2 * ids_n - 1, [distance, 0, 0])
    return centre_nd + draw.standard_normal((count, 3)), ids_n


def exact_bits(distance: float) -> float:
    """Mutual information of a fair sign and ±distance + N(0, 1): 1 − E[log2(1 + exp(−2·distance·z))], z ~ N(distance, 1)."""
    z_n = np.linspace(distance - 9, distance + 9, 40_001)
    density_n = np.exp(-((z_n - distance) ** 2) / 2)
    return float(1 - (density_n * np.logaddexp(0, -2 * distance * z_n)).sum() / density_n.sum() / np.log(2))


@pytest.mark.parametrize("distance", [0.5, 1.0, 3.0])
@pytest.mark.parametrize(("signal", "noise"), [(1.0, 0.0), (0.6, 0.8), (0.0, 1.0)])
def test_the_bits_of_a_gaussian_state_are_those_of_its_closed_form(
    distance: float, signal: float, noise: float
) -> None:
    classifier = Classifier(*states(20_000, seed=1, distance=distance), vocab_size=2)
    found = identity_bits(classifier, *states(20_000, seed=2, distance=distance), signal=signal, noise=noise, seed=3)
    expected = exact_bits(signal * distance / np.sqrt(signal**2 + noise**2))
    assert found.bits == pytest.approx(expected, abs=0.02)
    assert found.entropy_bits == pytest.approx(1, abs=0.01)
    assert found.accuracy >= 0.5 - 0.02
