"""Models on other devices than the CPU, as far as a CPU can show it: what they make is on the device of their inputs,
whatever the default device is, and which kernel of attention a GPU takes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from every_model import KINDS, outputs
from test_definitions import SHAPE, VALID, B, L, build, inputs, stirred
from torch import Tensor
from torch.nn import functional as F

from mm_ldlm.families.atat.importance import ImportanceConfig, ImportanceEstimator
from mm_ldlm.families.autoregressive.model import CausalAttention
from mm_ldlm.models.layers import Attention

NULL = torch.tensor([False, True, False])
OPTIONS: dict[str, list[dict[str, Any]]] = {
    "mmdit": [{}, {"direct_views": True, "self_condition": True}, {"cross_modal_blocks": 1, "logit_softcap": 3.0}],
}


def same(found: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        assert found[name].device.type == "cpu", name
        assert torch.equal(found[name].nan_to_num(neginf=-9e9), value.nan_to_num(neginf=-9e9)), name


CASES = [(kind, options) for kind in (*KINDS, "causal", "latent_mlp") for options in OPTIONS.get(kind, [{}])]


@torch.no_grad()
@pytest.mark.parametrize(("kind", "options"), CASES, ids=str)
def test_a_model_answers_on_the_device_of_its_inputs(kind: str, options: dict[str, Any]) -> None:
    model, given = build(kind, **options), inputs()
    expected = outputs(kind, model, given)
    with torch.device("meta"):  # tensors without a device have no values
        same(outputs(kind, model, given), expected)


@torch.no_grad()
@pytest.mark.parametrize("kind", ["mmdit", "image_mmdit", "image_mmdit_continuous"])
@pytest.mark.parametrize("valid", [VALID, None], ids=["padded", "whole"])
def test_a_dropped_text_is_on_the_device_of_the_others(kind: str, valid: Tensor | None) -> None:
    model, given = build(kind), inputs()
    second = "images_BP" if "image" in kind else "latents_Bd"
    keys = {
        "t_text_B": given["t"], second: given["image" if "image" in kind else "latent"], "null_text_B": NULL,
        "t_image_B" if "image" in kind else "t_latent_B": given["s"],
    }  # fmt: skip

    def asked() -> dict[str, Tensor]:
        return {name: x for name, x in model(given["tokens"], valid_BL=valid, **keys)._asdict().items()}

    expected = asked()
    with torch.device("meta"):
        same(asked(), expected)


@torch.no_grad()
def test_the_cache_and_the_estimator_are_on_the_device_of_the_tokens() -> None:
    model, tokens = build("causal"), inputs()["tokens"].clamp(max=22)
    estimator = stirred(ImportanceEstimator(ImportanceConfig(dim=16, depth=1, heads=2), SHAPE))
    some = VALID & torch.tensor([[True], [True], [False]])  # one row has no token

    def asked() -> dict[str, Tensor]:
        cache = model.start()
        steps = {f"step {place}": model.step(cache, tokens[:, place]) for place in range(3)}
        return {**steps, "importance": estimator(tokens, some)}

    for parameter in estimator.parameters():
        parameter.data = 0.1 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(0))
    expected = asked()
    with torch.device("meta"):
        same(asked(), expected)


# -- attention on a GPU ------------------------------------------------------------------------------------------------


class OnGpu(Tensor):
    """A tensor of the CPU that says that it is on a GPU."""

    is_cuda = True  # type: ignore[assignment]


def heads_of(positions: int, *, gpu: bool) -> list[Tensor]:
    draw = torch.Generator().manual_seed(positions)
    made = [torch.randn(B, 2, positions, 4, generator=draw) for _ in range(3)]
    return [x.as_subclass(OnGpu) for x in made] if gpu else made


@pytest.mark.parametrize("gpu", [True, False])
@pytest.mark.parametrize("masked", [True, False])
@pytest.mark.parametrize(("fused", "softcap"), [(True, None), (True, 3.0), (False, None), (False, 3.0)])
def test_the_causal_kernel_of_a_gpu_is_taken_for_whole_texts_without_a_softcap(
    gpu: bool, masked: bool, fused: bool, softcap: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, plain = list[bool](), F.scaled_dot_product_attention
    q, k, v = heads_of(L, gpu=gpu)
    mask = torch.ones(L, L, dtype=torch.bool).tril().expand(B, 1, -1, -1) if masked else None

    def kernel(*args: Any, **keys: Any) -> Tensor:
        asked.append(keys.get("is_causal", False))
        return plain(*args, **keys)

    monkeypatch.setattr(F, "scaled_dot_product_attention", kernel)
    found = CausalAttention(fused=fused, softcap=softcap)(q, k, v, mask)
    assert asked == ([True] if gpu and masked and fused and softcap is None else [])
    expected = Attention(fused=False, softcap=softcap)(*heads_of(L, gpu=False), mask)
    torch.testing.assert_close(found.as_subclass(Tensor), expected, rtol=1e-4, atol=1e-5)
