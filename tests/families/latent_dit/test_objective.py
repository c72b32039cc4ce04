"""Texts given latents: the latent reaches every word, the learned null latent replaces it, and guidance compares both."""

from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from tests.components import SHAPE, configs_of, inputs_of, model_of, random_batch, root_of, stir
from tests.extras.comparison.test_plan import flat, resolved
from tests.extras.foreign_checkpoints import ddit

from mm_ldlm import MMLDLM
from mm_ldlm.core import SamplingError
from mm_ldlm.diffusion.random import RowGenerator

KINDS = ("latent_dit", "latent_dit_adaln", "latent_dit_cross")
BATCH = random_batch(examples=3)


@pytest.mark.parametrize(("kind", "options"), [*((kind, {}) for kind in KINDS), (KINDS[1], {"unit_latents": True})])
def test_every_word_and_the_length_depend_on_the_latent_and_not_on_one_that_is_dropped(
    kind: str, options: dict[str, Any]
) -> None:
    model, other_Bd = model_of(kind, options), torch.randn(3, SHAPE.dim("latents"))
    given = inputs_of(model, BATCH) | {"null_latent_B": torch.tensor([True, False, False])}
    first, second = (model(**given | {"latents_Bd": latents_Bd}) for latents_Bd in (given["latents_Bd"], other_Bd))
    for name in ("logits", "length_logits"):
        one, two = getattr(first, name), getattr(second, name)
        assert torch.equal(one[0], two[0])
        assert bool(((one - two)[1:].abs().amax(-1) > 1e-4).all())
    torch.testing.assert_close(model.length_logits(other_Bd, given["null_latent_B"]), second.length_logits)
    reads = [block.streams[0].cross is not None for block in model_of(kind, {"depth": 3}).blocks]
    assert reads == [crosses := kind == "latent_dit_cross", False, crosses]


@pytest.mark.parametrize(
    ("dropout", "able", "unable"),
    [(0.0, "l2t", "unconditional"), (1.0, "unconditional", "l2t"), (0.5, "search", "t2l")],
)
def test_the_uses_of_a_run_follow_from_its_dropout(dropout: float, able: str, unable: str) -> None:
    config, model = configs_of("latent_conditioned", {"condition_dropout": dropout})
    found = config.capabilities(model)
    assert able in found
    assert unable not in found
    assert ("l2t" in found and "l2t" in found.guided) == (dropout == 0.5), "guidance needs both"


def test_a_text_without_latent_needs_a_null_latent(refuses: Any) -> None:
    tokens_BL, draw = BATCH.tokens_BL, RowGenerator(0, torch.arange(3))
    with refuses(SamplingError, "objective.condition_dropout"):
        _generation(0.0).likelihood(tokens_BL, latents_Bd=None, draws=1, generator=draw)
    without = _generation(0.5).likelihood(tokens_BL, latents_Bd=None, draws=1, generator=draw).nll_KB
    given = _generation(0.5).likelihood(tokens_BL, latents_Bd=BATCH.fields["latents"], draws=1, generator=draw).nll_KB
    assert not torch.allclose(without, given)
    asked = tokens_BL, torch.full((3,), 0.5), torch.arange(3), BATCH.valid_BL
    guided, plain = (_generation(0.5).text_denoiser(each, draw) for each in (BATCH.fields["latents"], None))
    assert torch.equal(guided.unconditional(*asked), plain.logits(*asked)), "guidance compares with the null latent"
    assert plain.unconditional is None, "guidance needs a latent"
    last = guided.logits(tokens_BL[2:], asked[1][2:], torch.tensor([2]), BATCH.valid_BL[2:])
    torch.testing.assert_close(last, guided.logits(*asked)[-len(last) :])


def test_a_checkpoint_of_arxiv_2602_11047_has_the_outputs_of_its_definition(tmp_path: Any) -> None:
    nn, D, proj = torch.nn, ddit.D, lambda: torch.nn.ModuleDict({"proj": torch.nn.Linear(ddit.D, 2 * ddit.D)})
    parts: Any = stir(nn.ModuleDict({
        "token_embed": nn.Embedding(ddit.V, D), "pos_embed": nn.Embedding(ddit.LENGTH, D), "final_norm": proj(),
        "cond_proj": nn.Sequential(nn.Linear(3, D), nn.GELU(), nn.Linear(D, D)),
        "blocks": nn.ModuleList([nn.ModuleDict({
            "adaln1": proj(), "attn": nn.MultiheadAttention(D, 2, batch_first=True), "adaln2": proj(),
            "ff": nn.Sequential(nn.Linear(D, 9), nn.GELU(), nn.Identity(), nn.Linear(9, D)),
        })]),
        "output_proj": nn.Linear(D, ddit.V, bias=False),
    }))  # fmt: skip
    clean, t = ddit.clean_and_times()
    noisy, vectors = ddit.masked(clean, t[:, None]), torch.randn(4, 3)
    x, c = parts.token_embed(noisy) + parts.pos_embed.weight, parts.cond_proj(nn.functional.normalize(vectors))

    def read(norm: Any) -> torch.Tensor:
        return nn.functional.layer_norm(x, [D]) * (1 + norm.proj(c)[:, None, :D]) + norm.proj(c)[:, None, D:]

    x = x + parts.blocks[0].attn(*3 * [read(parts.blocks[0].adaln1)])[0]
    x = x + parts.blocks[0].ff(read(parts.blocks[0].adaln2))
    logits = parts.output_proj(read(parts.final_norm))
    ddit.proves(
        tmp_path, {}, theirs=parts.state_dict(), tokens=noisy, clean=clean, t=t, latents=vectors, logits=logits,
        loss=ddit.masked_cross_entropy(logits, clean, noisy, t[:, None]),
        file={
            "name": "best_ema.safetensors",
            "save": lambda tensors, path: path.with_name("config.yaml").unlink() or save_file(
                tensors, path, {"config_json": '{"model": {"num_heads": 2, "mask_token_id": 21}}'}
            ),
        },
    )  # fmt: skip
    made = MMLDLM.from_run(tmp_path / "run", device="cpu")
    # the embedding is read with length 1
    assert made.invert(vectors, length=5).tokens == made.invert(3 * vectors, length=5).tokens
    assert made.score(["w1 w2"], latents=vectors[0]).likelihood == "given_length"


def _generation(dropout: float) -> Any:
    root = root_of("latent_conditioned", {"condition_dropout": dropout})
    return root.objective.generative_model(root.model)


def test_the_comparison_trains_one_model_in_one_and_in_all_directions() -> None:
    both, one = (flat({key: resolved("compare_latent")[name][key] for key in ("model", "objective")})
                 for name in ("multimodal", "l2t"))  # fmt: skip
    assert {key for key in both if both[key] != one[key]} == {"objective.mode"}
