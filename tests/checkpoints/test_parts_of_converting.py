"""Transforms of a checkpoint's parameters by hand, and the words about names and options."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch

from mm_ldlm.core.errors import CheckpointError
from mm_ldlm.extras.foreign_checkpoints import converting, formats
from mm_ldlm.extras.foreign_checkpoints.converting import Names, head_dim_of, refuse_other_model, rename
from mm_ldlm.extras.foreign_checkpoints.formats import DDIT, matches, summary
from mm_ldlm.models.layers import EPSILON

SOURCE = Path("theirs.pt")


def test_rotary_halves_become_neighbours_in_queries_and_keys_alone() -> None:
    """Two heads of dimension 4: the rows 0 1 | 2 3 of a head become 0 2 1 3."""
    rows = torch.arange(24.0)[:, None].expand(24, 2)
    turned = [0, 2, 1, 3, 4, 6, 5, 7]
    expected = [*turned, *(8 + row for row in turned), *range(16, 24)]
    assert formats._neighbours([rows], 4)[:, 0].tolist() == expected
    assert formats._neighbours([rows], 4).shape == (24, 2)


def test_what_is_added_to_the_residual_stream_is_scaled_in_double_precision() -> None:
    found = formats._scaled([torch.tensor([1.0, -3.0])], 4)
    factor = math.sqrt(EPSILON / 1e-5)
    assert factor != 1.0
    assert found.dtype == torch.float32
    assert found.tolist() == torch.tensor([factor, -3 * factor], dtype=torch.float64).float().tolist()


@pytest.mark.parametrize("norms", [1, 2])
def test_the_weights_of_norms_are_folded_into_the_scales_behind_them(norms: int) -> None:
    """x·w·(1 + s) + b is x·(1 + s′) + b: shifts and gates stay, for weights (D, C) and for biases (D)."""
    D, names = 2, ["shift", "scale", "gate"][: 2 if norms == 1 else 3] * norms
    weights = [torch.tensor([2.0, 3.0]), torch.tensor([5.0, 7.0])][:norms]
    bias = torch.arange(1.0, len(names) * D + 1)
    matrix = torch.stack([bias, 10 * bias], dim=1)
    for given in (bias, matrix):
        found = formats._with_norms([given, *weights], 4)
        for place, name in enumerate(names):
            rows, part = given[D * place : D * place + D], found[D * place : D * place + D]
            if name != "scale":
                assert torch.equal(part, rows)
                continue
            weight = weights[place // 3]
            expected = weight * (1 + rows) - 1 if given is bias else weight[:, None] * rows
            assert torch.equal(part, expected)


@pytest.mark.parametrize(
    ("pattern", "name", "groups"),
    [
        ("a.{n}.b", "a.12.b", ("12",)), ("a.{n}.b", "a.x.b", None), ("a.{n}.b", "a.1.b.c", None),
        ("a.*", "a.b.c", ()), ("a.*", "a.", ()), ("a.*", "b.a.", None), ("a.b", "axb", None),
        ("*.{n}.{n}", "x.1.2", ("1", "2")), ("a+", "a+", ()), ("a.{n}", "a.-1", None),
    ],
)  # fmt: skip
def test_a_pattern_has_numbers_and_any_text_and_letters_as_they_are(
    pattern: str, name: str, groups: tuple[str, ...] | None
) -> None:
    found = matches(pattern, name)
    assert (None if found is None else found.groups()) == groups
    assert pattern != "*.{n}.{n}" or matches(pattern, name, star="(.*)").groups() == ("x", "1", "2")  # type: ignore[union-attr]


def test_names_are_listed_in_order_and_counted_where_numbers_alone_differ() -> None:
    names = ["b.10.w", "b.2.w", "a.1", "c.3.x", "1.d.4.e", "1.d.5.e", "z"]
    assert summary(names) == "1.d.{n}.e (2), a.1, b.{n}.w (2), c.3.x, z"
    assert summary(names, most=5) == "1.d.{n}.e (2), a.1, b.{n}.w (2), c.3.x, z"
    assert summary(names, most=4) == "1.d.{n}.e (2), a.1, b.{n}.w (2), c.3.x and 1 more"
    assert summary([]) == ""
    assert len(summary(["x" * 5000])) < 110
    assert "\x1b" not in summary(["\x1b[31m"])


@pytest.mark.parametrize(
    ("value", "text"),
    [(True, "true"), (False, "false"), (None, "null"), (0.5, "0.5"), (10_000.0, "10000"), (7, "7"), ("gelu", "gelu")],
)
def test_options_are_written_as_in_a_parameter_file(value: Any, text: str) -> None:
    assert converting._yaml(value) == text


@pytest.mark.parametrize(
    ("tables", "expected"),
    [
        ({}, None), ({"rotary_emb.inv_freq": (4,)}, 8), ({"rotary_emb.cos_cached": (1, 9, 3, 1, 6)}, 6),
        ({"rotary_emb.inv_freq": (4,), "rotary_emb.cos_cached": (1, 6)}, 8), ({"rotary_emb.inv_freq": ()}, None),
        ({"rotary_emb.inv_freq": (), "rotary_emb.cos_cached": (1, 6)}, 6), ({"rotary_emb.inv_freq": (0,)}, 0),
    ],
)  # fmt: skip
def test_the_dimension_of_a_head_is_that_of_the_first_table(
    tables: dict[str, tuple[int, ...]], expected: int | None
) -> None:
    assert head_dim_of({name: torch.zeros(shape) for name, shape in tables.items()}) == expected


def known(**more: torch.Tensor) -> dict[str, torch.Tensor]:
    """Names that the format ddit is recognised by."""
    return dict.fromkeys((mark.replace("{n}", "0") for mark in DDIT.marks), torch.zeros(1)) | more


OPTIONS = {**DDIT.options, "time_conditioning": False, "time_factor": 1000.0, "dim": 32, "heads": 4}


@pytest.mark.parametrize(("half", "heads"), [(4, None), (8, 2), (2, 8), (0, 1)])
def test_another_dimension_of_heads_is_refused_with_the_number_that_fits(half: int, heads: int | None) -> None:
    found = known(**{"rotary_emb.inv_freq": torch.zeros(half)})
    if heads is None:
        refuse_other_model(found, OPTIONS, SOURCE)
        return
    with pytest.raises(CheckpointError) as refused:
        refuse_other_model(found, OPTIONS, SOURCE)
    assert str(refused.value) == (
        f"theirs.pt: expected heads of dimension 8 (model.dim / model.heads), found {2 * half} in the tables of the "
        f"rotary positions. Set model.heads to {heads}."
    )


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"logit_softcap": 30.0}, "model.logit_softcap=null (found 30)"), ({"kind": "mmdit"}, "model.kind=dit (found "
         "mmdit)"), ({"time_conditioning": True}, "model.time_conditioning=false or model.time_factor=1, as it was "
         "trained"), ({"time_conditioning": True, "time_factor": 1.0}, None),
        ({"mlp_bias": False, "qk_norm": True}, "model.mlp_bias=true (found false); model.qk_norm=false (found true)"),
    ],
)  # fmt: skip
def test_options_to_set_are_listed_with_what_they_are(change: dict[str, Any], words: str | None) -> None:
    if words is None:
        refuse_other_model(known(), OPTIONS | change, SOURCE)
        return
    with pytest.raises(CheckpointError) as refused:
        refuse_other_model(known(), OPTIONS | change, SOURCE)
    assert str(refused.value) == f"theirs.pt: expected the options of {DDIT.what}. Set {words}."


@pytest.mark.parametrize("lacking", [(), *((name,) for name in DDIT.zeros), DDIT.zeros])
def test_what_is_zero_in_a_format_is_made_where_the_model_has_it_alone(lacking: tuple[str, ...]) -> None:
    """A checkpoint of one block of dimension 4, for models with and without learned positions and a length prior."""
    D, C = 4, 3
    norms = dict.fromkeys(("blocks.0.norm1.weight", "blocks.0.norm2.weight", "output_layer.norm_final.weight"), (D,))
    matrices = {"vocab_embed.embedding": (5, D), "blocks.0.attn_qkv.weight": (3 * D, D),
                "blocks.0.attn_out.weight": (D, D)}  # fmt: skip
    for name, shape in (("sigma_map.mlp.0", (C, 8)), ("sigma_map.mlp.2", (C, C)), ("blocks.0.mlp.0", (8, D)),
                        ("blocks.0.mlp.2", (D, 8)), ("blocks.0.adaLN_modulation", (6 * D, C)),
                        ("output_layer.adaLN_modulation", (2 * D, C)), ("output_layer.linear", (5, D))):  # fmt: skip
        matrices |= {f"{name}.weight": shape, f"{name}.bias": shape[:1]}
    found = {name: torch.ones(shape) for name, shape in (norms | matrices).items()}
    rows = {"text_embedding.weight": (5, D), "text_head.linear.weight": (5, D), "text_head.linear.bias": (5,)}
    sizes = {"positions.weight": (9, D), "length_prior.logits_N": (9,)}
    here = {name: size for name, size in sizes.items() if name not in lacking}
    targets = {name: torch.Size(size) for name, size in (rows | here).items()}
    options = {**OPTIONS, "dim": D, "heads": 2}
    made = converting.convert(found, targets, options=options, source=SOURCE)
    assert (made.format, made.left_out, len(made.tensors)) == ("ddit", [], 17 + len(here))
    zeros = {name: tuple(value.shape) for name, value in made.tensors.items() if not value.any()}
    assert zeros.items() >= here.items()
    assert not set(lacking) & set(made.tensors)


def test_a_mapping_keeps_names_values_and_what_it_leaves_out() -> None:
    found = {"z.1": torch.tensor([1.0]), "a": torch.tensor([2.0]), "m.7.n.8": torch.tensor([3.0]), "y": torch.ones(9)}
    targets = {name: torch.Size([1]) for name in ("a", "n.8.m.7", "w", "kept.3")}
    names = Names({"z.*": None, "m.{n}.n.{n}": "n.8.m.{n}", "y": None}, ("w", "kept.{n}"))
    made = rename(found, targets, names, source=SOURCE)
    assert (made.format, made.left_out) == (None, ["z.1", "y"])
    assert {name: value.tolist() for name, value in made.tensors.items()} == {"a": [2.0], "n.8.m.7": [3.0]}
    twice = rename({"m.7.n.8": torch.ones(1)}, {"n.7.m.8": torch.Size([1])}, Names({"m.{n}.n.{n}": "n.{n}.m.{n}"}),
                   source=SOURCE)  # fmt: skip
    assert list(twice.tensors) == ["n.7.m.8"], "numbers are carried over in their order"
