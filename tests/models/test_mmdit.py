"""MMDiT: identity at the start, masks, null embeddings, optional heads, and an effect of every option."""

import math

import pytest
import torch
from torch.nn import functional as F

from mm_ldlm.models.base import count_parameters
from mm_ldlm.models.layers import Block
from mm_ldlm.models.timestep_embedding import sinusoid

PAD, MASK, V = 0, 1, 23


def same(a, b, *, atol=1e-5):
    return all(torch.allclose(x, y, atol=atol) for x, y in zip(a, b, strict=True) if x is not None)


# -- the start --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("cross_modal_blocks", [None, 1])
def test_pitfall_02_every_block_is_the_identity_at_the_start(make, inputs, cross_modal_blocks):
    model, seen = make(stirred=False, cross_modal_blocks=cross_modal_blocks), []
    for block in model.blocks:
        block.register_forward_hook(lambda module, args, out: seen.append((args[0], out)))
    model(**inputs())
    assert len(seen) == 3
    for before, after in seen:
        assert all(torch.equal(x, y) for x, y in zip(before, after, strict=True))


def test_pitfall_02_heads_are_passed_on(make, inputs):
    """The number of heads changes the shapes of the scales, and the output at equal weights."""
    four, two = make(heads=4), make(heads=2)
    assert four.blocks[0].streams[0].qk_norm.scale.shape == (2, 4, 8)
    assert two.blocks[0].streams[0].qk_norm.scale.shape == (2, 2, 16)
    four, two = make(heads=4, qk_norm=False), make(heads=2, qk_norm=False)
    two.load_state_dict(four.state_dict())
    assert not same(four(**inputs()), two(**inputs()))


def test_loss_starts_at_log_v_and_the_latent_at_zero(make, inputs):
    for tied in (False, True):
        out = make(stirred=False, tied_embeddings=tied)(**inputs())
        logits_NV = out.logits_BLV.flatten(0, 1)
        nll = -F.log_softmax(logits_NV, dim=-1).mean()  # of targets drawn evenly, without the noise of a draw
        assert float(nll.detach()) == pytest.approx(math.log(V), rel=0.02)
        assert (out.latent_Bd == 0).all()
        assert (out.length_logits_BN == 0).all()


def test_initial_values_are_a_function_of_the_generator_alone(make):
    before = torch.random.get_rng_state()
    a, b, c = (make(stirred=False, seed=seed).state_dict() for seed in (1, 1, 2))
    assert all(torch.equal(a[name], b[name]) for name in a)
    assert not torch.equal(a["text_embedding.table.weight"], c["text_embedding.table.weight"])
    assert torch.equal(before, torch.random.get_rng_state())


@pytest.mark.parametrize("options", [{}, {"tied_embeddings": True, "qk_norm": False, "self_condition": True}])
def test_every_parameter_and_buffer_is_initialised(make, monkeypatch, options):
    """Memory is poisoned before the values are drawn: nothing may keep the poison."""
    original = torch.nn.Module.to_empty

    def poisoned(self, **kwargs):
        out = original(self, **kwargs)
        for tensor in [*out.parameters(), *out.buffers()]:
            tensor.data.fill_(torch.nan)
        return out

    monkeypatch.setattr(torch.nn.Module, "to_empty", poisoned)
    model = make(stirred=False, **options)
    for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
        assert torch.isfinite(tensor).all(), name


# -- padding ----------------------------------------------------------------------------------------------------------


ALL = {"direct_views": True, "token_vectors": "encoder", "self_condition": True, "tied_embeddings": True}


@pytest.mark.parametrize("options", [{}, {"cross_modal_blocks": 1}, {"logit_softcap": 5.0}, ALL])
def test_pads_never_change_a_valid_output(make, inputs, options):
    model, batch = make(**options), inputs(B=3, L=8, lengths=(8, 5, 2))
    out = model(**batch)
    for i, length in enumerate((8, 5, 2)):
        row = {key: value[i : i + 1] for key, value in batch.items()}
        row |= {"tokens_BL": row["tokens_BL"][:, :length], "valid_BL": None}
        alone = model(**row)
        assert torch.allclose(alone.logits_BLV[0], out.logits_BLV[i, :length], atol=1e-5)
        assert torch.allclose(alone.latent_Bd[0], out.latent_Bd[i], atol=1e-5)
    garbage = batch | {"tokens_BL": torch.where(batch["valid_BL"], batch["tokens_BL"], 7)}
    other = model(**garbage)
    assert torch.equal(other.logits_BLV[batch["valid_BL"]], out.logits_BLV[batch["valid_BL"]])


@pytest.mark.parametrize("attention", ["fused", "unfused"])
def test_a_fully_padded_row_is_finite_forward_and_backward(make, inputs, attention):
    model, batch = make(attention=attention), inputs(B=2, lengths=(8, 1))
    batch["valid_BL"][1] = False
    out = model(**batch)
    sum(x.square().sum() for x in out).backward()
    assert all(torch.isfinite(x).all() for x in out)
    assert all(torch.isfinite(p.grad).all() for p in model.parameters() if p.grad is not None)


def test_no_padding_needs_no_mask(make, inputs):
    model, batch = make(), inputs(lengths=(8, 8, 8, 8))
    assert same(model(**batch), model(**batch | {"valid_BL": None}), atol=0)


# -- what the inputs do -----------------------------------------------------------------------------------------------


def test_text_positions_matter_and_latent_tokens_have_positions(make, inputs):
    model, batch = make(), inputs(lengths=(8, 8, 8, 8))
    out = model(**batch).logits_BLV
    turned = model(**batch | {"tokens_BL": batch["tokens_BL"].flip(1)}).logits_BLV
    assert not torch.allclose(out, turned.flip(1), atol=1e-3)


@pytest.mark.parametrize("key", ["t_text_B", "t_latent_B", "latents_Bd"])
def test_each_input_reaches_both_modalities(make, inputs, key):
    model, batch = make(), inputs()
    out, moved = model(**batch), model(**batch | {key: batch[key] * 0.5})
    assert not torch.allclose(out.logits_BLV, moved.logits_BLV, atol=1e-4)
    assert not torch.allclose(out.latent_Bd, moved.latent_Bd, atol=1e-4)


def test_rows_do_not_know_each_other(make, inputs):
    model, batch = make(), inputs(B=4)
    out = model(**batch)
    part = model(**{key: value[1:3] for key, value in batch.items()})
    assert torch.allclose(part.logits_BLV, out.logits_BLV[1:3], atol=1e-5)


WAYS = [{}, {"direct_views": True}, {"cross_modal_blocks": 1}, {"token_vectors": "encoder", "direct_views": True}]
"""Options by which one modality reaches the other"""


@pytest.mark.parametrize("options", WAYS, ids=str)
def test_null_latent_hides_the_latent(make, inputs, options):
    model, batch = make(**options), inputs(B=2)
    null = torch.tensor([True, False])
    out = model(**batch, null_latent_B=null)
    other = model(**batch | {"latents_Bd": batch["latents_Bd"] + 3}, null_latent_B=null)
    assert all(torch.allclose(a[0], b[0], atol=1e-6) for a, b in zip(out, other, strict=True))
    assert not torch.allclose(out.logits_BLV[1], other.logits_BLV[1], atol=1e-3)
    zero = model(**batch | {"latents_Bd": torch.zeros_like(batch["latents_Bd"])})
    assert not torch.allclose(out.logits_BLV[0], zero.logits_BLV[0], atol=1e-3), "the null is learned, not zero"


def test_null_length_is_for_the_length_head_alone(make, inputs):
    model, batch = make(), inputs(B=2)
    plain = model(**batch)
    out = model(**batch, null_length_B=torch.tensor([True, True]))
    assert torch.equal(plain.logits_BLV, out.logits_BLV)
    assert torch.allclose(out.length_logits_BN[0], out.length_logits_BN[1], atol=1e-6)  # kernels may treat rows apart
    assert not torch.allclose(plain.length_logits_BN, out.length_logits_BN, atol=1e-3)


@pytest.mark.parametrize("options", WAYS, ids=str)
def test_null_text_hides_the_text_and_its_length(make, inputs, options):
    model, batch = make(**options), inputs(B=2, lengths=(8, 3))
    null = torch.tensor([True, True])
    row = {key: value[:1].expand(2, *value.shape[1:]) for key, value in batch.items()}
    row |= {"tokens_BL": batch["tokens_BL"], "valid_BL": batch["valid_BL"]}
    out = model(**row, null_text_B=null)
    assert torch.allclose(out.latent_Bd[0], out.latent_Bd[1], atol=1e-6)
    assert not torch.allclose(model(**row).latent_Bd[0], out.latent_Bd[0], atol=1e-3)
    without = model(**row | {"valid_BL": None}, null_text_B=null)
    assert torch.allclose(out.latent_Bd, without.latent_Bd, atol=1e-6)


def test_logits_at_chosen_positions(make, inputs):
    model, batch = make(), inputs()
    at = batch["valid_BL"] & (torch.arange(8) % 2 == 0)
    assert torch.allclose(model(**batch, logits_at=at).logits_BLV, model(**batch).logits_BLV[at], atol=1e-5)


@pytest.mark.parametrize("heads", [("text",), ("latent",), ("length",), ("text", "length"), ("latent", "text")])
@pytest.mark.parametrize("cross_modal_blocks", [None, 1])
def test_heads_on_demand_are_the_same_numbers(make, inputs, heads, cross_modal_blocks):
    model, batch = make(cross_modal_blocks=cross_modal_blocks), inputs()
    everything, some = model(**batch), model(**batch, heads=heads)
    names = {"text": "logits_BLV", "latent": "latent_Bd", "length": "length_logits_BN"}
    for head, field in names.items():
        if head in heads:
            assert torch.allclose(getattr(some, field), getattr(everything, field), atol=1e-6)
        else:
            assert getattr(some, field) is None


def test_too_long_a_text_is_refused(make, inputs):
    with pytest.raises(ValueError, match="expected texts of at most 10 tokens, found 11"):
        make()(**inputs(L=11))


# -- options, each with its effect ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("qk_norm", False),
        ("logit_softcap", 0.5),
        ("tied_embeddings", True),
        ("cross_modal_blocks", 1),
        ("condition_on_latent", False),
        ("rope_theta", 50.0),
        ("heads", 2),
        ("latent_tokens", 5),
        ("depth", 2),
        ("dim", 64),
        ("mlp_ratio", 2.0),
        ("conditioning_dim", 16),
        ("self_condition", True),
        ("direct_views", True),
        ("token_vectors", "encoder"),
    ],
)
def test_pitfall_01_every_option_changes_the_output(make, inputs, option, value):
    batch = inputs()
    assert not torch.allclose(make()(**batch).logits_BLV, make(**{option: value})(**batch).logits_BLV, atol=1e-4)


def test_pitfall_01_qk_norm_bounds_the_attention_logits(make, inputs):
    """Q and K blown up a thousandfold: with the norm the logits stay, without it they follow."""
    biggest = {}
    for qk_norm in (True, False):
        model, seen = make(qk_norm=qk_norm), []
        with torch.no_grad():
            for block in model.blocks:
                for stream in block.streams:
                    stream.qkv.weight.mul_(1e3)
                block.attention.register_forward_hook(
                    lambda module, args, out, seen=seen: seen.append((args[0] @ args[1].mT).detach().abs().max())
                )
        model(**inputs())
        biggest[qk_norm] = float(max(seen))
    assert biggest[True] < 50
    assert biggest[False] > 1e4


def test_softcap_bounds_what_one_key_can_weigh(make, inputs):
    batch = inputs()
    model = make(logit_softcap=1e6)
    assert same(model(**batch), make(attention="unfused")(**batch), atol=1e-3), "a far cap changes nothing"


def test_tied_embeddings_share_the_matrix(make, inputs):
    tied, own = make(tied_embeddings=True), make()
    assert count_parameters(own) - count_parameters(tied) == V * 32
    tied(**inputs(), heads=("text",)).logits_BLV[..., 5].sum().backward()
    assert tied.text_embedding.table.weight.grad[5].abs().sum() > 0


def test_self_conditioning_is_read(make, inputs):
    model, batch = make(self_condition=True), inputs()
    previous = torch.randn_like(batch["latents_Bd"])
    zeros = model(**batch, self_condition_Bd=torch.zeros_like(previous))
    assert same(model(**batch), zeros, atol=0)
    assert not torch.allclose(zeros.latent_Bd, model(**batch, self_condition_Bd=previous).latent_Bd, atol=1e-4)


def test_dropout_acts_in_training_only(make, inputs):
    model, batch = make(dropout=0.5), inputs()
    assert same(model(**batch), make()(**batch))
    model.train()
    torch.manual_seed(0)
    assert not torch.allclose(model(**batch).logits_BLV, model(**batch).logits_BLV, atol=1e-3)


@pytest.mark.parametrize("options", [{}, {"cross_modal_blocks": 1, "dropout": 0.2}])
def test_gradient_checkpointing_gives_the_same_gradients_by_running_blocks_twice(make, inputs, options):
    gradients, runs = [], []
    for checkpointing in (False, True):
        model = make(gradient_checkpointing=checkpointing, **options).train()
        count = [0]
        model.blocks[0].register_forward_pre_hook(lambda *_, count=count: count.__setitem__(0, count[0] + 1))
        torch.manual_seed(0)
        sum(x.square().sum() for x in model(**inputs())).backward()
        gradients.append({n: p.grad for n, p in model.named_parameters() if p.grad is not None})
        runs.append(count[0])
    assert runs == [1, 2]
    assert gradients[0].keys() == gradients[1].keys()
    for name, gradient in gradients[0].items():
        assert torch.allclose(gradient, gradients[1][name], rtol=1e-4, atol=1e-4), name


def test_fused_attention_is_the_unfused_one(make, inputs):
    batch = inputs()
    assert same(make()(**batch), make(attention="unfused")(**batch), atol=1e-4)


def test_single_stream_blocks_have_half_the_weights(make):
    two, one = make().blocks[-1], make(cross_modal_blocks=2).blocks[-1]
    assert (len(two.streams), len(one.streams)) == (2, 1)
    assert count_parameters(two) == 2 * count_parameters(one)


# -- precision --------------------------------------------------------------------------------------------------------


def test_pitfall_03_parameters_are_float32_and_small_updates_survive(make, inputs):
    model = make()
    assert {p.dtype for p in model.parameters()} == {torch.float32}
    weight = torch.nn.Parameter(torch.full((1,), 0.5))
    with torch.no_grad():
        weight.add_(5e-5)
    assert float(weight.detach()) != 0.5
    assert float(weight.detach().bfloat16() + 5e-5) == float(torch.tensor(0.5).bfloat16())


@pytest.mark.parametrize("options", [{}, {"token_vectors": "encoder"}, ALL], ids=str)
def test_pitfall_03_autocast_leaves_norms_softmax_and_gradients_in_float32(make, inputs, options):
    model, batch = make(**options), inputs()
    exact = model(**batch)
    conditioning, streams = [], set()
    model.conditioning.register_forward_hook(lambda module, args, out: conditioning.append(out.dtype))
    for block in model.blocks:
        block.register_forward_hook(lambda module, args, out: streams.update(x.dtype for x in (*args[0], *out)))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = model(**batch)
    assert conditioning == [torch.float32]
    assert streams == {torch.float32}
    assert out.latent_Bd.dtype == out.length_logits_BN.dtype == torch.float32
    assert out.logits_BLV.dtype == torch.bfloat16, "the matrix products do run in bfloat16"
    assert torch.allclose(out.logits_BLV.float(), exact.logits_BLV, atol=0.3)
    (out.logits_BLV.float().square().sum() + out.latent_Bd.square().sum()).backward()
    assert {p.grad.dtype for p in model.parameters() if p.grad is not None} == {torch.float32}


def test_pitfall_04_time_is_scaled_and_float32():
    t = torch.tensor([0.5, 0.501])
    with torch.autocast("cpu", dtype=torch.bfloat16):
        a, b = sinusoid(t)
    assert a.dtype == torch.float32
    assert float((a - b).abs().max()) > 0.4, "a thousandth of time must be visible"
    assert float(sinusoid(torch.tensor([1.0]))[0, 0]) == pytest.approx(math.cos(1000.0), abs=1e-3)
    coarse = sinusoid(t.bfloat16())
    assert torch.equal(coarse[0], coarse[1]), "what bf16 times would do"


def test_modulation_starts_at_zero_and_has_six_vectors(make):
    block = make(stirred=False).blocks[0]
    assert isinstance(block, Block)
    for stream in block.streams:
        assert stream.modulation.out_features == 6 * 32
        assert not stream.modulation.weight.any()


# -- learning ---------------------------------------------------------------------------------------------------------


def test_overfits_one_batch_in_both_directions(make, inputs):
    model = make(stirred=False, depth=2, latent_tokens=2).train()
    batch = inputs(B=8, lengths=(8,) * 8)
    target, latents = batch["tokens_BL"], batch["latents_Bd"]
    to_text = batch | {
        "tokens_BL": torch.full_like(target, MASK),
        "t_text_B": torch.ones(8),
        "t_latent_B": torch.zeros(8),
    }
    to_latent = batch | {
        "latents_Bd": torch.zeros_like(latents),
        "t_text_B": torch.zeros(8),
        "t_latent_B": torch.ones(8),
    }
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
    for _ in range(100):
        text = F.cross_entropy(model(**to_text, heads=("text",)).logits_BLV.flatten(0, 1), target.flatten())
        latent = F.mse_loss(model(**to_latent, heads=("latent",)).latent_Bd, latents)
        optimizer.zero_grad()
        (text + latent).backward()
        optimizer.step()
    assert float(text.detach()) < 0.1
    assert float(latent.detach()) < 0.05
