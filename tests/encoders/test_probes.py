"""Distances of probe vectors, and fingerprints that were cut or belong to other numbers of sentences."""

from __future__ import annotations

import numpy as np
import pytest

from mm_ldlm.extras.http_encoder import probes

COUNT = len(probes.SENTENCES)
REFERENCE = np.random.default_rng(0).normal(size=(COUNT, 200)).astype(np.float32) * np.arange(1, COUNT + 1)[:, None]


@pytest.mark.parametrize("changed", range(COUNT))
def test_one_sentence_with_another_vector_decides(changed: int) -> None:
    """A model may differ from the earlier one in a single language; its distance is relative to the earlier length."""
    now = REFERENCE.copy()
    now[changed] *= 1.5
    assert probes.relative_distance(now, REFERENCE) == pytest.approx(0.5)
    assert probes.relative_distance(REFERENCE, now) == pytest.approx(1 / 3)
    found = probes.fingerprint("abc", REFERENCE)
    assert probes.distance_to(found, REFERENCE) < 1e-3
    assert probes.distance_to(found, now) == pytest.approx(0.5, abs=1e-3)
    now[changed] = REFERENCE[changed - 1]
    assert probes.distance_to(found, now) > probes.allowed_distance(0.9)


def test_a_fingerprint_that_was_cut_is_of_no_service() -> None:
    found = probes.fingerprint("abc", REFERENCE)
    assert probes.identity_of(found) == "abc"
    for end in range(len(found)):
        cut = found[:end]
        if probes.identity_of(cut) is not None:
            assert probes.distance_to(cut, REFERENCE) == np.inf
    fewer = probes.fingerprint("abc", REFERENCE[:1])
    assert probes.identity_of(fewer) == "abc"
    assert probes.distance_to(fewer, REFERENCE) == np.inf
    for other in ("", "http--", "http-abc-", f"other-abc-{found.rsplit('-', 1)[1]}", "http-abc-AAAAAA=="):
        assert probes.identity_of(other) is None, other


def test_distance_and_cosine_of_unit_vectors() -> None:
    for cosine in (1.0, 0.999, 0.5, -1.0):
        assert probes.cosine_at(probes.allowed_distance(cosine)) == pytest.approx(cosine)
    assert probes.cosine_at(50.0) == -1.0
