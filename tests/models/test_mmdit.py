"""MMDiT: null conditions, heads on demand, ways from one modality to the other, encoder vectors, and learning."""

from typing import Any

import pytest
import torch
from tests.components import SHAPE, inputs_of, model_of, random_batch

from mm_ldlm.core import ConfigurationError, parse_kind
from mm_ldlm.models.base import MODELS

WAYS: list[dict[str, Any]] = [
    {}, {"direct_views": True}, {"cross_modal_blocks": 1}, {"token_vectors": "encoder", "direct_views": True}
]  # fmt: skip
each_way = pytest.mark.parametrize("options", WAYS, ids=str)
BATCH = random_batch(examples=2)
NULL = torch.tensor([True, False])


def inputs(model: Any) -> dict[str, Any]:
    return inputs_of(model, BATCH)


@each_way
def test_a_null_latent_hides_the_latent(options: dict[str, Any]) -> None:
    model = model_of("mmdit", options)
    given = inputs(model)
    out = model(**given, null_latent_B=NULL)
    other = model(**given | {"latents_Bd": given["latents_Bd"] + 3}, null_latent_B=NULL)
    zero = model(**given | {"latents_Bd": torch.zeros_like(given["latents_Bd"])})
    for name in ("logits", "latent_Bd", "length_logits"):
        assert torch.allclose(getattr(out, name)[0], getattr(other, name)[0], atol=1e-6)
        assert not torch.allclose(getattr(out, name)[1], getattr(other, name)[1], atol=1e-3)
    assert not torch.allclose(out.logits[0], zero.logits[0], atol=1e-3), "the null is learned, not zero"
    plain, alone = model(**given), model(**given, null_length_B=NULL)
    assert torch.equal(plain.logits, alone.logits), "null_length_B is for the length head alone"
    assert not torch.allclose(plain.length_logits[0], alone.length_logits[0], atol=1e-3)
    assert torch.allclose(out.length_logits[0], alone.length_logits[0], atol=1e-6)


@each_way
def test_a_null_text_hides_the_text_and_its_length(options: dict[str, Any]) -> None:
    model = model_of("mmdit", options)
    given = {name: value[:1].expand(2, *value.shape[1:]) for name, value in inputs(model).items()}
    given |= {"tokens_BL": BATCH.tokens_BL, "valid_BL": BATCH.valid_BL}
    found = model(**given, null_text_B=torch.tensor([True, True])).latent_Bd
    assert torch.allclose(found[0], found[1], atol=1e-6)
    assert not torch.allclose(model(**given).latent_Bd[0], found[0], atol=1e-3)
    unpadded = model(**given | {"valid_BL": None}, null_text_B=torch.tensor([True, True])).latent_Bd
    assert torch.allclose(found, unpadded, atol=1e-6)


@pytest.mark.parametrize("heads", [("text",), ("latent",), ("length",), ("text", "length"), ("latent", "text")])
@pytest.mark.parametrize("cross_modal_blocks", [None, 1])
def test_heads_on_demand_are_the_same_numbers(heads: tuple[str, ...], cross_modal_blocks: int | None) -> None:
    model = model_of("mmdit", {"cross_modal_blocks": cross_modal_blocks})
    everything, some = model(**inputs(model)), model(**inputs(model), heads=heads)
    for head, name in {"text": "logits", "latent": "latent_Bd", "length": "length_logits"}.items():
        if head in heads:
            assert torch.allclose(getattr(some, name), getattr(everything, name), atol=1e-6)
        else:
            assert getattr(some, name) is None
    lengths = model.length_logits(inputs(model)["latents_Bd"])
    assert torch.allclose(lengths, everything.length_logits, atol=1e-6)


def test_the_previous_estimate_is_read_and_zero_without_one() -> None:
    model = model_of("mmdit", {"self_condition": True})
    given, previous_Bd = inputs(model), torch.randn(2, SHAPE.dim("latents"))
    none, zeros, some = (
        model(**given | {"self_condition_Bd": x}).latent_Bd for x in (None, torch.zeros_like(previous_Bd), previous_Bd)
    )
    assert torch.equal(none, zeros)
    assert not torch.allclose(zeros, some, atol=1e-4)


def test_in_a_single_stream_the_latent_stands_at_position_0() -> None:
    model, seen = model_of("mmdit", {"cross_modal_blocks": 1}), list[Any]()
    model.blocks[-1].register_forward_pre_hook(lambda module, args: seen.append(args[2]))
    model(**inputs(model))
    text, latent = model.rope_L2e, model.rope_L2e[:1].expand(model.config.latent_tokens, -1, -1)
    assert torch.equal(seen[0][0], torch.cat([text, latent]))


def count_parameters(model: Any) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def test_single_stream_blocks_have_half_the_weights_and_tied_embeddings_one_matrix() -> None:
    two, one = model_of("mmdit", {}).blocks[-1], model_of("mmdit", {"cross_modal_blocks": 1}).blocks[-1]
    assert count_parameters(two) == 2 * count_parameters(one)
    tied = model_of("mmdit", {"tied_embeddings": True})
    assert count_parameters(model_of("mmdit", {})) - count_parameters(tied) == SHAPE.vocab_size * 16
    tied(**inputs(tied), heads=("text",)).logits[..., 3].sum().backward()
    assert bool(tied.text_embedding.table.weight.grad[3].any())


def encoder_model(vectors_Vd: torch.Tensor, **options: Any) -> Any:
    given = {"kind": "mmdit", "dim": 16, "depth": 1, "heads": 2, "token_vectors": "encoder", **options}
    config = parse_kind(MODELS, given, at="model")
    assert config.stores == ("token_vectors",)
    return config.build(SHAPE, generator=torch.Generator().manual_seed(0), token_vectors=vectors_Vd)


def test_tables_start_at_the_encoders_vectors() -> None:
    """Centred, with deviation 0.1; [PAD] and [MASK], which the encoder does not know, stay random."""
    vectors_Vd = torch.randn(SHAPE.vocab_size, SHAPE.dim("latents")) * 5 + 3
    model = encoder_model(vectors_Vd.half())
    assert model.text_embedding.known(torch.arange(SHAPE.vocab_size), SHAPE).nonzero()[:, 0].tolist() == SHAPE.word_ids
    table = model.text_embedding.table.weight.detach()
    words, centred = SHAPE.word_ids, vectors_Vd.half().float() - vectors_Vd.half().float().mean(0)
    torch.testing.assert_close(table[words], (centred * 0.1 / centred.std())[words], rtol=1e-3, atol=1e-6)
    assert torch.equal(model.text_head.table.weight[words], table[words])
    same = encoder_model(torch.ones(SHAPE.vocab_size, SHAPE.dim("latents"))).text_embedding.table.weight
    assert not bool(same[words].any())
    assert torch.equal(table[[SHAPE.pad_id, SHAPE.mask_id]], same[[SHAPE.pad_id, SHAPE.mask_id]])
    assert bool(table[[SHAPE.pad_id, SHAPE.mask_id]].any(1).all())


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"dim": 18, "heads": 4}, "dim"), ({"dim": 12, "heads": 4}, "heads"), ({"cross_modal_blocks": 3}, 3),
        ({"token_vectors": "encodr"}, "encodr"),
    ],
)  # fmt: skip
def test_sizes_that_do_not_fit_one_another_are_refused(options: dict[str, Any], named: Any, refuses: Any) -> None:
    with refuses(ConfigurationError, named):
        model_of("mmdit", options)
