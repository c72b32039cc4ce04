"""Direct views between the streams, and token tables initialised from the encoder's vectors."""

import pytest
import torch

from mm_ldlm.models.token_vectors import INITIAL_STD, set_token_vectors

PAD, MASK, V, D_LATENT = 0, 1, 23, 6


def only(inputs, **changes):
    return {**inputs(), **changes}


def test_every_position_has_its_own_view_of_the_latent(make, inputs):
    plain, direct = make(stirred=False), make(stirred=False, direct_views=True)
    given = inputs()
    other = {**given, "latents_Bd": given["latents_Bd"] + 1}
    seen = []
    for model in (plain, direct):
        model.blocks[0].register_forward_hook(lambda module, args, out: seen.append(args[0][0]))
        model(**given)
        model(**other)
    assert torch.equal(seen[0], seen[1])  # without views the latent does not stand in the text stream
    moved_BLD = seen[3] - seen[2]
    assert (moved_BLD.abs().amax(-1) > 0).all()
    assert not torch.allclose(moved_BLD[:, 0], moved_BLD[:, 1])


def test_known_tokens_alone_reach_the_latent_stream(make, inputs):
    model, given = make(stirred=False, direct_views=True), inputs()
    seen = []
    model.blocks[0].register_forward_hook(lambda module, args, out: seen.append(args[0][1]))
    model(**given)
    changed = given["tokens_BL"].clone()
    changed[:, 0] = torch.where(changed[:, 0] == 5, 6, 5)
    model(**{**given, "tokens_BL": changed})
    assert (seen[1] - seen[0]).abs().amax((1, 2)).gt(0).all()
    masked = torch.where(given["valid_BL"], MASK, PAD)
    model(**{**given, "tokens_BL": masked})
    padding = torch.where(given["valid_BL"], MASK, 7)  # what stands behind the end is not read
    model(**{**given, "tokens_BL": padding})
    assert torch.equal(seen[2], seen[3])
    nothing = torch.ones(len(masked), dtype=torch.bool)
    model(**given, null_text_B=nothing)
    assert torch.equal(seen[4], seen[2])


def test_tables_start_at_the_encoders_vectors(make, inputs):
    vectors_Vd = torch.randn(V, D_LATENT, generator=torch.Generator().manual_seed(3)) * 7 + 2
    random = make(stirred=False, token_vectors="encoder")
    model = make(stirred=False, token_vectors="encoder", token_table=vectors_Vd)
    for table in (model.text_embedding.table, model.text_head.table):
        set_Vd = table.weight.detach()
        centred = vectors_Vd - vectors_Vd.mean(0)
        assert torch.allclose(set_Vd[2:V], centred[2:] * (INITIAL_STD / centred.std()), atol=1e-6)
    before = random.text_embedding.table.weight
    assert torch.equal(model.text_embedding.table.weight[[PAD, MASK]], before[[PAD, MASK]])
    out = model(**inputs())
    assert torch.equal(out.logits_BLV, torch.zeros_like(out.logits_BLV))  # the loss still starts at log V


def test_tied_tables_are_one(make):
    vectors_Vd = torch.randn(V, D_LATENT)
    model = make(stirred=False, token_vectors="encoder", tied_embeddings=True, token_table=vectors_Vd)
    random = make(stirred=False, token_vectors="encoder", tied_embeddings=True)
    assert model.text_head.table is None
    assert not torch.equal(model.text_embedding.table.weight, random.text_embedding.table.weight)


def test_the_stores_that_initial_values_need_are_named(make):
    assert make(token_vectors="encoder").config.stores == ("token_vectors",)
    assert make(token_vectors="random").config.stores == ()


def test_a_model_with_random_token_embeddings_does_not_read_the_encoders(make):
    with_table = make(stirred=False, token_table=torch.randn(V, D_LATENT)).state_dict()
    without = make(stirred=False).state_dict()
    assert all(torch.equal(with_table[name], without[name]) for name in without)


def test_vectors_that_do_not_fit_are_refused(make, shape):
    with pytest.raises(ValueError, match=r"expected the shape \(23, 6\).*found \(23, 5\)"):
        make(token_vectors="encoder", token_table=torch.randn(V, 5))
    with pytest.raises(ValueError, match=r"expected the shape \(23, 6\).*found \(22, 6\)"):
        set_token_vectors([], torch.randn(22, D_LATENT), shape=shape)


def test_vectors_that_are_all_the_same_set_every_word_to_zero(shape):
    table = torch.nn.Embedding(V + 2, D_LATENT)
    before = table.weight.detach().clone()
    set_token_vectors([table], torch.full((V, D_LATENT), 0.25), shape=shape)
    assert not bool(table.weight[2:V].any())
    assert torch.equal(table.weight[[PAD, MASK, V, V + 1]], before[[PAD, MASK, V, V + 1]])
