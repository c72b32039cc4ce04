"""Initial weights of a run with another vocabulary: refused, or moved so that every row stays with its token."""

from __future__ import annotations

import dataclasses
import random
from pathlib import Path
from typing import Any

import helpers
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from mm_ldlm.training.tracker import Silent
from parts import Heard
from tokenizers import Tokenizer, models, pre_tokenizers

from mm_ldlm.core.errors import CheckpointError, ConfigurationError
from mm_ldlm.data.corpus.tokenizer import TextTokenizer
from mm_ldlm.models.base import DataShape
from mm_ldlm.training import initial
from mm_ldlm.training.build import _initial_root
from mm_ldlm.training.checkpoints import folder
from mm_ldlm.training.checkpoints.folder import Contents
from mm_ldlm.training.checkpoints.identity import identity_of
from mm_ldlm.training.data import Data
from mm_ldlm.training.initial import common_tokens, initialise, refuse_other_vocabulary

SPECIALS = ("[PAD]", "[MASK]", "[UNK]")
KINDS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "mmdit": ({"kind": "mmdit", "dim": 16, "depth": 1, "heads": 2, "latent_tokens": 2}, {"kind": "multimodal"}),
    "mmdit, tied": (
        {"kind": "mmdit", "dim": 16, "depth": 1, "heads": 2, "latent_tokens": 2, "tied_embeddings": True},
        {"kind": "multimodal"},
    ),
    "dit": ({"kind": "dit", "dim": 16, "depth": 1, "heads": 2}, {"kind": "text_diffusion"}),
    "causal": ({"kind": "causal", "dim": 16, "depth": 1, "heads": 2}, {"kind": "autoregressive"}),
}


def tokenizer(words: list[str]) -> TextTokenizer:
    """A tokenizer whose ids are the places of the words; the special tokens may be anywhere among them."""
    base = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="[UNK]"))
    base.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    base.add_special_tokens(list(SPECIALS))
    return TextTokenizer(base, max_length=8)


def shape_of(found: TextTokenizer) -> DataShape:
    return DataShape(
        vocab_size=found.vocab_size, pad_id=found.pad_id, mask_id=found.mask_id, max_length=8, latent_dim=helpers.DIM
    )


def built(kind: str, found: TextTokenizer, *, seed: int) -> tuple[Any, Any]:
    """A root whose parameters all differ, and the function that builds it for another shape."""
    model, objective = KINDS[kind]
    spec = helpers.spec(model=model, objective=objective, seed=seed)
    data = Data(train=helpers.Rows(), validation=None, shape=shape_of(found), folders={})

    def build(shape: DataShape) -> Any:
        return _initial_root(dataclasses.replace(spec, shape=shape), data, shape, None)

    root = build(data.shape)
    with torch.no_grad():
        for p in root.parameters():
            p.copy_(torch.randn(p.shape, generator=torch.Generator().manual_seed(seed)))
    return root, build


def checkpoint(directory: Path, kind: str, found: TextTokenizer) -> tuple[Path, Any]:
    root, _ = built(kind, found, seed=1)
    found.save(directory / "tokenizer")
    model, objective = KINDS[kind]
    spec = helpers.spec(model=model, objective=objective)
    identity = identity_of(
        model=spec.model, shape=shape_of(found), objective=spec.objective, fingerprints={"tokenizer": found.fingerprint}
    )
    contents = Contents(
        {"model.safetensors": {name: p.detach().clone() for name, p in root.named_parameters()}},
        {"training_state.json": {"identity": identity}},
        {"tokenizer": directory / "tokenizer"},
    )
    return folder.write(directory / "checkpoints", 1, contents), root


def started(directory: Path, kind: str, theirs: TextTokenizer, ours: TextTokenizer, how: str) -> tuple[Any, Any, Any]:
    """(root of the checkpoint, root before, root initialised from the checkpoint)."""
    path, source = checkpoint(directory / "source", kind, theirs)
    ours.save(directory / "mine")
    root, build = built(kind, ours, seed=2)
    before = {name: p.detach().clone() for name, p in root.named_parameters()}
    initialise(
        root,
        path,
        vocabulary=how,
        tokenizer=directory / "mine",
        shape=shape_of(ours),
        build=build,
        tracker=Silent(),
        options=KINDS[kind][0],
    )
    return dict(source.named_parameters()), before, dict(root.named_parameters())


WORDS = [f"w{i}" for i in range(12)]
OTHER = ["[MASK]", "w7", "new1", "w2", "[PAD]", "w11", "[UNK]", "new2", "w0"]


@settings(max_examples=40, deadline=None, derandomize=True)
@given(seed=st.integers(0, 10**6), there=st.integers(0, 12), here=st.integers(0, 12))
def test_common_tokens_have_the_same_spelling_or_the_same_role(seed: int, there: int, here: int) -> None:
    draw = random.Random(seed)
    one, two = (tokenizer(draw.sample([*draw.sample(WORDS, n), *SPECIALS], n + 3)) for n in (there, here))
    theirs, ours = common_tokens(one, two)
    assert [one.token(i) for i in theirs.tolist()] == [two.token(i) for i in ours.tolist()]
    spelled = [{each.token(i) for i in range(each.vocab_size)} for each in (one, two)]
    assert {two.token(i) for i in ours.tolist()} == spelled[0] & spelled[1]
    assert len(set(ours.tolist())) == len(ours)


@pytest.mark.parametrize("kind", KINDS)
def test_rows_follow_their_tokens_and_new_tokens_keep_their_own(kind: str, tmp_path: Path) -> None:
    theirs, ours = tokenizer([*SPECIALS, *WORDS]), tokenizer(OTHER)
    source, before, after = started(tmp_path, kind, theirs, ours, "by_token")
    there = {theirs.token(i): i for i in range(theirs.vocab_size)}
    moved = [name for name, p in after.items() if p.shape != source[name].shape]
    assert len(moved) >= (1 if "tied" in kind or kind == "dit" else 2)
    for name, p in after.items():
        if name not in moved:
            assert torch.equal(p, source[name]), name
            continue
        dim = next(d for d in range(p.ndim) if p.shape[d] != source[name].shape[d])
        rows = p.detach().movedim(dim, 0), source[name].detach().movedim(dim, 0), before[name].movedim(dim, 0)
        for i in range(ours.vocab_size):
            word = ours.token(i)
            expected = rows[1][there[word]] if word in there else rows[2][i]
            assert torch.equal(rows[0][i], expected), (name, word)
        for i in range(ours.vocab_size, len(rows[0])):  # the begin token of an autoregressive model
            assert torch.equal(rows[0][i], rows[1][theirs.vocab_size + i - ours.vocab_size]), name


def test_the_same_text_has_the_same_logits_in_another_vocabulary(tmp_path: Path) -> None:
    theirs, ours = tokenizer([*SPECIALS, *WORDS]), tokenizer(OTHER)
    path, source = checkpoint(tmp_path / "source", "causal", theirs)
    ours.save(tmp_path / "mine")
    root, build = built("causal", ours, seed=2)
    initialise(
        root, path, vocabulary="by_token", tokenizer=tmp_path / "mine", shape=shape_of(ours), build=build,
        tracker=Silent(), options=KINDS["causal"][0],
    )  # fmt: skip
    text = ["w7 w2 w0 w11 w2"]
    logits = [each.model(torch.tensor(own.encode(text))) for each, own in ((source, theirs), (root, ours))]
    here, there = common_tokens(ours, theirs)
    found = [x[0] if isinstance(x, tuple) else getattr(x, "logits", x) for x in logits]
    torch.testing.assert_close(found[1][..., here], found[0][..., there])


def test_a_permuted_vocabulary_of_the_same_size_is_refused_and_can_be_remapped(tmp_path: Path) -> None:
    theirs, ours = tokenizer([*SPECIALS, *WORDS]), tokenizer([*SPECIALS, *WORDS[::-1]])
    with pytest.raises(CheckpointError, match=r"one of 15 tokens: 15 of them are in this run, 3 under the same"):
        started(tmp_path / "a", "mmdit", theirs, ours, "same")
    source, _, after = started(tmp_path / "b", "mmdit", theirs, ours, "by_token")
    name = "model.text_embedding.table.weight"
    assert torch.equal(after[name][3:], source[name][3:].flip(0))
    same = started(tmp_path / "c", "mmdit", theirs, tokenizer([*SPECIALS, *WORDS]), "same")
    assert torch.equal(same[2][name], same[0][name])


def test_a_vocabulary_without_common_words_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="found none besides pad, mask and unknown"):
        started(tmp_path, "dit", tokenizer([*SPECIALS, "a", "b"]), tokenizer([*SPECIALS, "c", "d"]), "by_token")


def test_the_plan_refuses_another_vocabulary_before_any_worker(tmp_path: Path) -> None:
    helpers.write_stores(tmp_path)
    words = ["[PAD]", "[MASK]", "[UNK]", *(f"w{i}" for i in range(3, helpers.VOCAB))]
    for name, order in (("same", words), ("permuted", [*words[:3], *words[3:][::-1]])):
        found = tokenizer(order)
        found.save(tmp_path / name)
        found = TextTokenizer.load(tmp_path / "tokenizer") if name == "same" else found
        contents = Contents({}, {"training_state.json": {"identity": {"tokenizer": found.fingerprint}}})
        folder.write(tmp_path / "runs" / name / "checkpoints", 1, contents)
    helpers.planned(tmp_path, init_from="same")
    helpers.planned(tmp_path, init_from="permuted", init_vocabulary="by_token")
    with pytest.raises(CheckpointError, match=r"expected the vocabulary of this run \(24 tokens\)"):
        helpers.planned(tmp_path, init_from="permuted")


def test_the_option_is_read_only_with_init_from_and_keeps_the_names_of_other_runs() -> None:
    with pytest.raises(ConfigurationError, match="init_vocabulary is read only with init_from"):
        helpers.spec(init_vocabulary="by_token")
    names = [helpers.spec(run_name=None, **more).name for more in ({}, {"init_from": "x"},
             {"init_from": "x", "init_vocabulary": "by_token"})]  # fmt: skip
    assert len(set(names)) == 3


def test_options_of_models_that_were_added_keep_the_names_of_runs() -> None:
    model = {"kind": "dit", "dim": 16, "depth": 1, "heads": 2}
    name = helpers.spec(run_name=None, model=model, objective={"kind": "text_diffusion"}).name
    assert name == "run-0f23c8a8984f"  # before the options existed
    for option in ({"mlp_bias": True}, {"mlp_activation": "gelu_tanh"}, {"time_factor": 1.0}):
        assert helpers.spec(run_name=None, model=model | option, objective={"kind": "text_diffusion"}).name != name


@pytest.mark.parametrize(
    "name", ["logs", "training_spec.json", ".x", ".", "", "a/b", "a\\b", "a\nb", "x" * 201, "é" * 101]
)
def test_names_that_no_run_can_have_are_refused(name: str) -> None:
    with pytest.raises(ConfigurationError, match="run_name must be a single folder name"):
        helpers.spec(run_name=name)


# -- checkpoints of other trainers -------------------------------------------------------------------------------------


def test_weights_of_another_trainer_with_the_names_of_the_model(tmp_path: Path) -> None:
    """With prefixes, in bfloat16, and with the parameters of the objective under their own names."""
    words = tokenizer([*SPECIALS, *WORDS])
    root, build = built("dit", words, seed=2)
    source, _ = built("dit", words, seed=1)
    weights = {f"module._orig_mod.{name}": p.detach().bfloat16() for name, p in source.named_parameters()}
    torch.save({"model_state_dict": weights}, tmp_path / "checkpoint.pt")
    words.save(tmp_path / "mine")
    start = {"vocabulary": "same", "tokenizer": tmp_path / "mine", "shape": shape_of(words), "build": build}
    initialise(root, tmp_path, tracker=Silent(), options=KINDS["dit"][0], **start)
    for name, p in source.named_parameters():
        assert torch.equal(dict(root.named_parameters())[name], p.bfloat16().float()), name
    torch.save({**weights, "module.head.bias": torch.ones(2)}, tmp_path / "checkpoint.pt")
    with pytest.raises(CheckpointError, match=r"Unknown: \['model\.head\.bias'\]"):
        initialise(root, tmp_path / "checkpoint.pt", tracker=Silent(), options=KINDS["dit"][0], **start)


def test_an_exported_tokenizer_is_compared(tmp_path: Path) -> None:
    theirs, ours = tokenizer([*SPECIALS, *WORDS]), tokenizer(OTHER)
    torch.save({"a": torch.ones(1)}, tmp_path / "model.pt")
    refuse_other_vocabulary(tmp_path, ours)  # without a tokenizer there is nothing to compare
    theirs.save(tmp_path / "tokenizer")
    refuse_other_vocabulary(tmp_path, theirs)
    for path in (tmp_path, tmp_path / "model.pt"):
        with pytest.raises(CheckpointError, match="expected the vocabulary of this run"):
            refuse_other_vocabulary(path, ours)


def test_a_checkpoint_without_what_by_token_needs_is_refused(tmp_path: Path) -> None:
    """Its tokenizer, and the shape of its data."""
    words = tokenizer([*SPECIALS, *WORDS])
    root, build = built("dit", words, seed=2)
    words.save(tmp_path / "mine")
    given: dict[str, Any] = {"vocabulary": "by_token", "tokenizer": tmp_path / "mine", "shape": shape_of(words),
                             "build": build, "tracker": Silent(), "options": KINDS["dit"][0]}  # fmt: skip
    tensors = {"model.safetensors": {name: p.detach().clone() for name, p in root.named_parameters()}}
    bare = folder.write(tmp_path / "bare", 1, Contents(tensors, {"training_state.json": {"identity": None}}))
    with pytest.raises(CheckpointError, match="expected the tokenizer of the checkpoint, to remap its weights"):
        initialise(root, bare, **given)
    described = folder.write(
        tmp_path / "described", 1,
        Contents(tensors, {"training_state.json": {"identity": {}}}, {"tokenizer": tmp_path / "mine"}),
    )  # fmt: skip
    with pytest.raises(CheckpointError, match=r"expected the shape of its data in training_state\.json"):
        initialise(root, described, **given)
    with pytest.raises(CheckpointError, match=r"parameter 'training\.init_from': .*no complete checkpoint"):
        initialise(root, tmp_path / "nowhere", **given)


def test_what_was_remapped_is_recorded(tmp_path: Path) -> None:
    theirs, ours = tokenizer([*SPECIALS, *WORDS]), tokenizer(OTHER)
    path, _ = checkpoint(tmp_path / "source", "dit", theirs)
    ours.save(tmp_path / "mine")
    root, build = built("dit", ours, seed=2)
    heard = Heard()
    initialise(
        root, path, vocabulary="by_token", tokenizer=tmp_path / "mine", shape=shape_of(ours), build=build,
        tracker=heard, options=KINDS["dit"][0],
    )  # fmt: skip
    assert heard.events == [(0, "init_vocabulary", {"kept": 7, "new": 2, "source": str(path)})]


@pytest.mark.parametrize(("behind_theirs", "behind_ours"), [(0, 0), (1, 1), (0, 1), (1, 0), (2, 1)])
def test_rows_behind_all_ids_are_copied_where_both_have_as_many(behind_theirs: int, behind_ours: int) -> None:
    """Theirs has the tokens 0 to 3 and ours 0 to 4; token 3 is 1 here. Ids of the noise count as ids."""
    their_shape = DataShape(vocab_size=4, pad_id=0, mask_id=1, max_length=8, noise_ids=1)
    our_shape = dataclasses.replace(their_shape, vocab_size=5)
    both = initial.Vocabularies(torch.tensor([0, 3]), torch.tensor([0, 1]), their_shape, our_shape)
    theirs = torch.arange(4.0 + 1 + behind_theirs) + 100
    ours = torch.arange(5.0 + 1 + behind_ours)
    expected = ours.clone()
    expected[0], expected[1] = 100, 103
    if behind_theirs == behind_ours == 1:
        expected[6] = 105
    assert initial._moved(theirs, ours, both, dim=0).tolist() == expected.tolist()
    turned = initial._moved(theirs.repeat(2, 1), ours.repeat(2, 1), both, dim=1)
    assert turned.tolist() == [expected.tolist()] * 2
    other = torch.ones(3, 9)
    assert initial._moved(other, ours.repeat(2, 1), both, dim=1) is other, "another model is refused later"
