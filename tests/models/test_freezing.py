"""Freezing by tags, its refusals, and the proof that a mode trained what it says."""

import pytest
import torch
from torch import nn

from mm_ldlm.errors import FreezingError
from mm_ldlm.models.freezing import (
    PARTS,
    FreezingSnapshot,
    apply_mode_freezing,
    frozen_parts,
    tag,
    tagged_parameters,
    verify_parameter_freezing,
)

OPTIONS = [{}, {"cross_modal_blocks": 1}, {"direct_views": True, "token_vectors": "encoder"}]
HEADS = {"l2t": ("text", "length"), "t2l": ("latent",)}


def train(model, inputs, *, mode, steps=3, lr=0.05):
    """A few steps on the mode's losses, with a snapshot that watches; returns the snapshot."""
    snapshot = FreezingSnapshot(model)
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=lr)
    for seed in range(steps):
        batch = inputs(seed=seed)
        out = model(**batch, heads=HEADS.get(mode, ("text", "latent", "length")))
        loss = sum(x.square().mean() for x in out if x is not None) + sum(x.sum() for x in out if x is not None) * 0.1
        optimizer.zero_grad()
        loss.backward()
        snapshot.observe(model)
        optimizer.step()
    return snapshot


def test_every_parameter_has_one_part_and_all_parts_are_used(make):
    for options in ({}, {"tied_embeddings": True, "cross_modal_blocks": 1, "self_condition": True, **OPTIONS[-1]}):
        model = make(**options)
        tagged = list(tagged_parameters(model))
        assert len(tagged) == len(list(model.parameters()))
        assert [name for name, _, _ in tagged] == [name for name, _ in model.named_parameters()]
        assert {part for _, part, _ in tagged} == PARTS


def test_an_untagged_layer_is_found(make):
    model = make()
    model.extra = nn.Linear(2, 2)
    with pytest.raises(FreezingError, match=r"extra\.weight has no tag"):
        list(tagged_parameters(model))
    with pytest.raises(FreezingError, match="unknown part 'text_hed'"):
        tag(model.extra, "text_hed")


def test_tags_do_not_depend_on_names(make):
    """Renamed and wrapped, the parts stay."""
    model = make()
    wrapped = nn.Sequential(model)
    model.something_else = model.latent_head
    del model.latent_head
    apply_mode_freezing(wrapped, "l2t")
    assert not any(p.requires_grad for p in model.something_else.parameters())


@pytest.mark.parametrize(
    ("mode", "trained", "frozen"),
    [
        ("unconditional", set(), set()),
        ("mixed", {"latent_encoder", "text_embedding"}, set()),
        ("sequential", set(), set()),
        ("l2t", set(), {"latent_head", "null_text"}),
        ("l2t", {"latent_encoder"}, {"latent_head", "null_text", "latent_encoder"}),
        ("t2l", set(), {"text_head", "length_head", "null_latent"}),
        ("t2l", {"text_embedding"}, {"text_head", "length_head", "null_latent", "text_embedding"}),
    ],
)
def test_modes_freeze_what_the_table_says(make, mode, trained, frozen):
    model = make()
    assert frozen_parts(mode, trained_parts=frozenset(trained)) == frozen
    assert apply_mode_freezing(model, mode, trained_parts=frozenset(trained)) == frozen
    assert {part for _, part, p in tagged_parameters(model) if not p.requires_grad} == frozen
    assert {part for _, part, p in tagged_parameters(model) if p.requires_grad} == PARTS - frozen


def test_another_mode_thaws(make):
    model = make()
    apply_mode_freezing(model, "l2t")
    apply_mode_freezing(model, "mixed")
    assert all(p.requires_grad for p in model.parameters())


@pytest.mark.parametrize("part", ["latent_encoder", "text_embedding"])
def test_pitfall_10_a_frozen_random_input_layer_is_refused(make, part):
    model = make()
    with pytest.raises(FreezingError, match=f"{part}, which is randomly initialised.*Load trained weights for {part}"):
        apply_mode_freezing(model, "l2t", extra=frozenset({part}))
    assert all(p.requires_grad for p in model.parameters()), "nothing was changed"
    assert part in apply_mode_freezing(model, "l2t", extra=frozenset({part}), trained_parts=frozenset({part}))


def test_unknown_modes_and_parts_are_refused(make):
    with pytest.raises(FreezingError, match="unknown mode 'l2tt'"):
        apply_mode_freezing(make(), "l2tt")
    with pytest.raises(FreezingError, match="unknown parts"):
        apply_mode_freezing(make(), "l2t", extra=frozenset({"latent_hed"}))


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("mode", ["l2t", "t2l", "mixed"])
def test_pitfall_10_each_mode_trains_what_it_says_and_moves_nothing_else(make, inputs, mode, options):
    model = make(**options).train()
    apply_mode_freezing(model, mode)
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    table = verify_parameter_freezing(model, train(model, inputs, mode=mode))
    for row in table.rows:
        moved = not torch.equal(before[row.name], dict(model.named_parameters())[row.name])
        if row.part not in ("null_text", "null_latent"):
            assert moved == row.trains, row
    text = str(table)
    assert "latent_head" in text
    assert table.by_part()["latent_head"]["trains" if mode != "l2t" else "frozen"] > 0


def test_verification_fails_on_each_fault(make, inputs):
    model = make().train()
    apply_mode_freezing(model, "l2t")
    snapshot = train(model, inputs, mode="l2t")
    verify_parameter_freezing(model, snapshot)

    with torch.no_grad():
        model.latent_head.linear.bias[0] += 1e-7
    with pytest.raises(FreezingError, match=r"latent_head\.linear\.bias \(latent_head\) is frozen and has moved"):
        verify_parameter_freezing(model, snapshot)
    with torch.no_grad():
        model.latent_head.linear.bias.copy_(snapshot.values["latent_head.linear.bias"])

    model.latent_head.linear.bias.requires_grad_(True)
    with pytest.raises(FreezingError, match="was frozen at the start and is trainable now"):
        verify_parameter_freezing(model, snapshot)
    model.latent_head.linear.bias.requires_grad_(False)

    model.text_head.linear.weight.requires_grad_(False)
    with pytest.raises(FreezingError, match="was trainable at the start and is frozen now"):
        verify_parameter_freezing(model, snapshot)
    model.text_head.linear.weight.requires_grad_(True)

    snapshot.had_gradient.discard("text_embedding.table.weight")
    with pytest.raises(FreezingError, match=r"text_embedding\.table\.weight .* has had no gradient"):
        verify_parameter_freezing(model, snapshot)
    verify_parameter_freezing(model, snapshot, check_gradients=False)
    verify_parameter_freezing(model, snapshot, idle_parts=frozenset({"text_embedding"}))


def test_a_gradient_of_zeros_is_no_gradient(make, inputs):
    model = make(stirred=False)
    snapshot = FreezingSnapshot(model)
    sum(x.square().sum() for x in model(**inputs())).backward()
    snapshot.observe(model)
    with pytest.raises(FreezingError, match="has had no gradient"):
        verify_parameter_freezing(model, snapshot)
