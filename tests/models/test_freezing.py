"""Freezing by parts: the frozen parts of each mode, refusals, and the check of what was trained."""

import pytest
import torch
from torch import nn

from mm_ldlm.core.errors import FreezingError
from mm_ldlm.models.freezing import FreezingSnapshot, freeze, verify_parameter_freezing
from mm_ldlm.models.parts import tagged_parameters
from mm_ldlm.objectives.multimodal import MultimodalConfig

OPTIONS = [{}, {"cross_modal_blocks": 1}, {"direct_views": True, "token_vectors": "encoder"}]
HEADS = {"l2t": ("text", "length"), "t2l": ("latent",)}
PARTS = {
    "text_embedding", "text_head", "latent_encoder", "latent_head", "length_head", "backbone", "conditioning",
    "null_text", "null_latent",
}  # fmt: skip


@pytest.fixture
def frozen_in(shape):
    """frozen_in(mode, trained=...): the parts that the multimodal objective freezes in a mode."""
    return lambda mode, *, trained=False: MultimodalConfig(mode=mode).build(shape).frozen_parts(trained=trained)


def frozen(model):
    return {part.name for _, part, p in tagged_parameters(model) if not p.requires_grad}


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


def test_freezing_does_not_depend_on_names(make, frozen_in):
    """Renamed and wrapped, the parts stay."""
    model = make()
    wrapped = nn.Sequential(model)
    model.something_else = model.latent_head
    del model.latent_head
    freeze(wrapped, frozen_in("l2t"))
    assert not any(p.requires_grad for p in model.something_else.parameters())


@pytest.mark.parametrize(
    ("mode", "trained", "expected"),
    [
        ("unconditional", False, set()),
        ("unconditional", True, set()),
        ("mixed", False, set()),
        ("mixed", True, set()),
        ("sequential", False, set()),
        ("sequential", True, set()),
        ("l2t", False, {"latent_head", "null_text"}),
        ("l2t", True, {"latent_head", "null_text", "latent_encoder"}),
        ("t2l", False, {"text_head", "length_head", "null_latent"}),
        ("t2l", True, {"text_head", "length_head", "null_latent", "text_embedding"}),
    ],
)
def test_modes_freeze_the_parts_of_the_table(make, frozen_in, mode, trained, expected):
    model = make()
    assert frozen_in(mode, trained=trained) == expected
    freeze(model, frozen_in(mode, trained=trained), trained=trained)
    assert frozen(model) == expected
    assert {part.name for _, part, p in tagged_parameters(model) if p.requires_grad} == PARTS - expected


def test_another_mode_thaws(make, frozen_in):
    model = make()
    freeze(model, frozen_in("l2t"))
    freeze(model, frozen_in("mixed"))
    assert all(p.requires_grad for p in model.parameters())


@pytest.mark.parametrize("part", ["latent_encoder", "text_embedding"])
def test_pitfall_10_a_frozen_random_input_layer_is_refused(make, part):
    model = make()
    with pytest.raises(FreezingError, match=f"{part} would be frozen at random initial values.*Load trained weights"):
        freeze(model, {"latent_head", part})
    assert all(p.requires_grad for p in model.parameters()), "nothing was changed"
    freeze(model, {"latent_head", part}, trained=True)
    assert frozen(model) == {"latent_head", part}


def test_unknown_parts_are_refused_with_the_models_own(make):
    model = make()
    with pytest.raises(FreezingError, match=r"of the model \(backbone, conditioning.*found \['latent_hed'\]\."):
        freeze(model, {"latent_hed", "latent_head"})
    assert all(p.requires_grad for p in model.parameters()), "nothing was changed"


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("mode", ["l2t", "t2l", "mixed"])
def test_pitfall_10_each_mode_trains_its_parts_and_moves_nothing_else(make, inputs, frozen_in, mode, options):
    model = make(**options).train()
    freeze(model, frozen_in(mode))
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    table = verify_parameter_freezing(model, train(model, inputs, mode=mode))
    for row in table.rows:
        moved = not torch.equal(before[row.name], dict(model.named_parameters())[row.name])
        if row.part not in ("null_text", "null_latent"):
            assert moved == row.trains, row
    assert {row.trains for row in table.rows if row.part == "latent_head"} == {mode != "l2t"}


def test_verification_fails_on_each_fault(make, inputs, frozen_in):
    model = make().train()
    freeze(model, frozen_in("l2t"))
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


def test_a_frozen_parameter_that_had_a_gradient_is_found(make):
    model = make()
    freeze(model, {"latent_head"})
    snapshot = FreezingSnapshot(model)
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    model.text_head.linear.bias.grad.zero_()
    snapshot.observe(model)
    with pytest.raises(FreezingError, match=r"latent_head\.linear\.bias \(latent_head\) is frozen and had a gradient"):
        verify_parameter_freezing(model, snapshot, check_gradients=False)
    assert "text_head.linear.bias" not in snapshot.had_gradient


def test_a_parameter_frozen_after_the_start_is_found_before_it_had_a_gradient(make):
    model = make()
    snapshot = FreezingSnapshot(model)
    model.text_head.linear.weight.requires_grad_(False)
    with pytest.raises(FreezingError, match="was trainable at the start and is frozen now"):
        verify_parameter_freezing(model, snapshot, check_gradients=False)


def test_a_gradient_of_zeros_is_no_gradient(make, inputs):
    model = make(stirred=False)
    snapshot = FreezingSnapshot(model)
    sum(x.square().sum() for x in model(**inputs())).backward()
    snapshot.observe(model)
    with pytest.raises(FreezingError, match="has had no gradient"):
        verify_parameter_freezing(model, snapshot)


def test_of_many_faults_the_first_ten_are_listed_and_the_others_counted(make):
    model = make()
    snapshot = FreezingSnapshot(model)
    names = [name for name, _ in model.named_parameters()]
    for count, more in ((10, None), (13, "\n  … and 3 more")):
        for number, parameter in enumerate(model.parameters()):
            parameter.requires_grad_(number >= count)
        with pytest.raises(FreezingError) as raised:
            verify_parameter_freezing(model, snapshot, check_gradients=False)
        first, *lines = str(raised.value).split("\n")
        assert first.startswith(f"{count} faults: parameters are not trained or frozen as configured:")
        assert [line.split()[0] for line in lines[:10]] == names[:10]
        assert str(raised.value).endswith(
            more or f"({lines[-1].split('(')[1].split(')')[0]}) was trainable at the start and is frozen now"
        )


def test_an_unknown_part_is_refused_with_its_nearest(make):
    with pytest.raises(FreezingError, match=r"found \['text_hed'\]\. Did you mean 'text_head'"):
        freeze(make(), {"text_hed"})


def test_the_table_has_a_row_for_every_parameter_with_what_happened_to_it(make):
    model = make(depth=1)
    freeze(model, {"latent_head"})
    snapshot = FreezingSnapshot(model)
    for name, parameter in model.named_parameters():
        parameter.grad = torch.ones_like(parameter) if name.startswith("text_head") else None
    snapshot.observe(model)
    table = verify_parameter_freezing(model, snapshot, check_gradients=False)
    assert [row.name for row in table.rows] == [name for name, _ in model.named_parameters()]
    for row, (name, part, parameter) in zip(table.rows, tagged_parameters(model), strict=True):
        assert (row.name, row.part, row.shape) == (name, part.name, tuple(parameter.shape))
        assert row.trains is (row.part != "latent_head")
        assert row.had_gradient is name.startswith("text_head")
        assert row.moved is False


def test_a_gradient_once_seen_stays_seen_and_a_later_one_is_added(make):
    model = make(depth=1)
    snapshot = FreezingSnapshot(model)
    assert not snapshot.values
    for part in ("text_head", "latent_head", None):
        for name, parameter in model.named_parameters():
            parameter.grad = torch.ones_like(parameter) if part is not None and name.startswith(part) else None
        snapshot.observe(model)
    names = [name for name, _ in model.named_parameters()]
    assert snapshot.had_gradient == {name for name in names if name.startswith(("text_head", "latent_head"))}
    freeze(model, {"backbone"})
    assert set(FreezingSnapshot(model).values) == {name for name in names if name.startswith("blocks.")} - {
        name for name, part, _ in tagged_parameters(model) if part.name != "backbone"
    }
