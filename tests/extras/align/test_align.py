"""Adapters: a run reads the vectors of another encoder after a few pairs, and wrong pairs are refused."""

import dataclasses
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Dense, Normalize, Pooling, Transformer
from tests.damage import refused_or_harmless
from tests.data.encoders.tiny import WORDS, bert
from tests.inference.runs import DIM, write_run

from mm_ldlm import MMLDLM
from mm_ldlm.core import EncoderError, SamplingError, StoreError, to_dict
from mm_ldlm.data.encoders import LocalEncoderConfig
from mm_ldlm.data.latents.normaliser import Normaliser, norms, typical_of
from mm_ldlm.data.latents.recognition import unit
from mm_ldlm.extras.align.adapter import Adapter, adapted
from mm_ldlm.extras.align.command import align
from mm_ldlm.extras.align.fitting import Choice, Pairs, fit_adapter

M = 9


def pairs(count: int, m: int, d: int, *, rank: int | None = None, seed: int = 0) -> tuple[Any, Any]:
    """Draw x (count, m) of norm 1 and y (count, d), a linear function of x of this rank, with a little noise."""
    random = np.random.default_rng(seed)
    x = unit(random.normal(size=(count, m)) + 1)
    way = random.normal(size=(m, rank or m)) @ random.normal(size=(rank or m, d)) / m**0.5
    return x, x @ way + 3 + random.normal(size=(count, d)) * 1e-3


def plain(d: int) -> Normaliser:
    return Normaliser("standard", np.full(d, 3.0), np.ones(d), False)


@settings(max_examples=20)
@given(st.integers(4, 40), st.integers(2, 40), st.sampled_from([None, 2]), st.integers(0, 99))
def test_a_linear_relation_is_found_and_inverted(m: int, d: int, rank: int | None, seed: int) -> None:
    x, y = pairs(400, m, d, rank=rank, seed=seed)
    adapter, tried = fit_adapter(x[:300], y[:300] - 3, normaliser=plain(d), encoder="other")
    assert adapter.about.cosine == max(tried.values()) > 0.98
    assert len({choice.kind for choice in tried}) == len(tried), "the best of each kind"
    assert len({choice.penalty for choice in tried if choice.kind != "orthogonal"}) == 1
    assert (adapter.about.pairs, adapter.signature is None) == (300, False)
    assert adapter.about.typical == pytest.approx(typical_of(norms(plain(d).standardise(adapter.to_own(x[:300])))))
    np.testing.assert_allclose(adapter.mean_m, x[:300].mean(axis=0), err_msg="the last fit uses all pairs")
    np.testing.assert_allclose(adapter.to_other(adapter.bias_d[None]), unit(adapter.mean_m[None]))
    np.testing.assert_allclose(adapter.to_own(x[300:]), y[300:] - 3, atol=0.1)
    if d >= m and rank is None:
        np.testing.assert_allclose(np.linalg.norm(adapter.to_other(y[300:] - 3), axis=1), 1)
        assert (adapter.to_other(y[300:] - 3) * x[300:]).sum(axis=1).mean() > 0.9


@given(st.integers(4, 30), st.integers(3, 30))
def test_each_map_is_that_of_its_definition(count: int, m: int) -> None:
    x, y = (each - each.mean(axis=0) for each in pairs(count, m, 5))
    ridge = np.linalg.solve(x.T @ x + 0.1 * np.square(x).sum() / min(count - 1, m) * np.eye(m), x.T @ y)
    np.testing.assert_allclose(Pairs(x, y).fit(Choice("ridge", 0.1)), ridge, atol=1e-9)
    left, size, right = np.linalg.svd(x @ ridge, full_matrices=False)
    kept = x @ Pairs(x, y).fit(Choice("low_rank", 0.1, 2))
    np.testing.assert_allclose(kept, left[:, :2] * size[:2] @ right[:2], atol=1e-9)
    turned = 3 * x @ np.linalg.qr(np.random.default_rng(0).normal(size=(m, m)))[0]
    np.testing.assert_allclose(x @ Pairs(x, turned).fit(Choice("orthogonal")), turned, atol=1e-9)


def test_few_pairs_of_a_rotation_choose_an_orthogonal_map() -> None:
    random = np.random.default_rng(0)
    x = unit(random.normal(size=(300, 40)))
    y = unit(x @ np.linalg.qr(random.normal(size=(40, 40)))[0] + 0.05 * random.normal(size=(300, 40)))
    found, _ = fit_adapter(x[:50], y[:50], normaliser=plain(40), encoder="other")
    x[0] *= 2  # not all of norm 1
    more, _ = fit_adapter(x[:179], y[:179], normaliser=plain(40), encoder="other")
    assert found.about.kind == "orthogonal"
    assert more.about.cosine > found.about.cosine
    assert [(each.about.unit_norms[0], each.signature) for each in (found, more)] == [(True, None), (False, None)]


def test_wrong_pairs_are_refused(refuses: Any) -> None:
    x, y = pairs(200, 20, 12)
    with refuses(SamplingError, "order"):
        fit_adapter(x, np.random.default_rng(0).permutation(y), normaliser=plain(12), encoder="other")
    with refuses(SamplingError, "49"):
        fit_adapter(x[:49], y[:49], normaliser=plain(12), encoder="other")


# --- the command ------------------------------------------------------------------------------------------------------


class Other:
    """The other encoder: the vectors of the run's in other coordinates and of another dimension."""

    dim = M

    def __init__(self, own: Any) -> None:
        self.own, self.calls = own, 0
        self.way = np.linalg.qr(np.random.default_rng(0).normal(size=(M, DIM)))[0].T

    def encode(self, sentences: Any) -> Any:
        self.calls += len(sentences)
        return (self.own.encode(sentences) @ self.way).astype(np.float32)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run, texts, their vectors by another encoder, and the aligned run."""
    place = tmp_path_factory.mktemp("align")
    bert(place / "base")
    dense = Dense(32, DIM, activation_function=torch.nn.Identity())
    modules = [Transformer(str(place / "base"), max_seq_length=24), Pooling(32, "mean"), dense, Normalize()]
    SentenceTransformer(modules=modules, device="cpu").save(str(place / "encoder"))
    own = LocalEncoderConfig(name="me/own", path=str(place / "encoder"))
    run = write_run(place / "run", encoder=to_dict(own), fingerprints={"encoder": own.locate().fingerprint})
    words = np.random.default_rng(0).choice(WORDS, size=(200, 6))
    (place / "texts.txt").write_text("\n".join(map(" ".join, words)), encoding="utf-8")
    texts = (place / "texts.txt").read_text(encoding="utf-8").split("\n")
    np.save(place / "other.npy", Other(MMLDLM.from_run(run).encoder).encode(texts))
    done = command(place, "--vectors", str(place / "other.npy"), "-o", str(place / "aligned"), "--name", "theirs")
    assert done.exit_code == 0, done.output
    return place


def command(place: Path, *words: str) -> Any:
    return CliRunner().invoke(align, ["--run", str(place / "run"), "--texts", str(place / "texts.txt"), *words])


def test_an_aligned_run_inverts_the_vectors_of_the_other_encoder(place: Path) -> None:
    own, aligned = MMLDLM.from_run(place / "run"), MMLDLM.from_pretrained(place / "aligned")
    texts = (place / "texts.txt").read_text(encoding="utf-8").split("\n")[:8]
    raw_nd, given_nm = own.encode(texts), np.load(place / "other.npy")[:8]
    assert aligned.invert(given_nm).texts == own.invert(raw_nd).texts
    assert aligned.embed(["w1 w2"], steps=2).latents.shape == (1, M)
    assert (aligned.parts.encoder, aligned.normaliser.signature is None) == ("theirs", False)
    more = dataclasses.replace(own.parts, normalisers={**own.parts.normalisers, "more": own.normaliser})
    assert adapted(more, place / "aligned" / "adapter").normalisers.keys() == {"normaliser", "more"}
    with pytest.raises(SamplingError):
        aligned.invert(raw_nd)


def test_search_compares_in_the_space_of_the_run_or_by_the_other_encoder_if_it_is_given(place: Path) -> None:
    own, loaded = MMLDLM.from_run(place / "run"), MMLDLM.from_pretrained(place / "aligned")
    aligned = MMLDLM(dataclasses.replace(loaded.parts, load_own=lambda: own.encoder))  # its path is not exported
    other = Other(own.encoder)
    given = MMLDLM.from_pretrained(place / "aligned", encoder=other)  # type: ignore[arg-type]
    texts = ["a b c", "d e f g"]
    raw_nd, given_nm = own.encode(texts), other.encode(texts)
    expected = own.invert(raw_nd, search=True)
    calls = other.calls
    for model, of_other in ((aligned, False), (given, True)):
        found = model.invert(given_nm, search=True)
        assert found.texts == expected.texts
        np.testing.assert_allclose(found.cosines, expected.cosines, atol=1e-3)
        assert (other.calls > calls) == of_other
    assert given.encode(texts).shape == (2, M)
    with pytest.raises(SamplingError, match="adapter"):
        aligned.encode(texts)


def test_a_damaged_adapter_is_refused(place: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(place / "aligned" / "adapter", tmp_path / "adapter")

    def read() -> tuple[int, ...]:
        return Adapter.load(folder).matrix_md.shape

    refused_or_harmless(folder / "adapter.json", read, folder)
    (folder / "adapter.safetensors").write_bytes(b"damaged")
    with pytest.raises(StoreError):
        read()


def test_pairs_of_files_that_do_not_match_are_refused(place: Path, tmp_path: Path) -> None:
    np.save(tmp_path / "short.npy", np.load(place / "other.npy")[:150])
    for words in (["--vectors", str(tmp_path / "short.npy")], [], ["--encoder", "{kind: nonsense}"]):
        done = command(place, *words, "-o", str(tmp_path / "made"))
        assert done.exit_code
        assert not isinstance(done.exception, EncoderError)
        assert not (tmp_path / "made").exists()
