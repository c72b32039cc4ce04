"""CCDD: what the model receives in training, in a likelihood and in joint sampling, what the sampler promises, the rows of states, and
imported checkpoints."""

import itertools
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.components import random_batch, root_of
from tests.data.encoders.tiny import WORDS as WORDS_OF_TEXTS
from tests.data.encoders.tiny import folder_of
from tests.extras.foreign_checkpoints import ddit
from tests.sampling.toys import MASK, PAD, build, canvas, context, rows
from torch import Tensor

from mm_ldlm import MMLDLM
from mm_ldlm.core import CheckpointError, SamplingError
from mm_ldlm.data.encoders import REGISTRY, LocalEncoderConfig, load_encoder
from mm_ldlm.data.encoders.transformer import TransformerEncoder
from mm_ldlm.data.features import Inputs
from mm_ldlm.data.store import ShardStore
from mm_ldlm.diffusion.random import RowGenerator
from mm_ldlm.diffusion.schedules import Flow
from mm_ldlm.extras.foreign_checkpoints.importing import import_checkpoint
from mm_ldlm.families.ccdd import token_states
from mm_ldlm.families.ccdd.objective import StatesDenoiser
from mm_ldlm.sampling.denoising import Canvas
from mm_ldlm.sampling.gaussian import grid
from mm_ldlm.sampling.registry import text_sampler


@pytest.mark.parametrize("timesteps", ["shared", "separate"])
def test_dropped_states_have_the_same_time_in_training_as_in_a_likelihood(timesteps: str) -> None:
    options = {"condition_dropout": 0.5, "timesteps": timesteps}
    root, batch, calls = root_of("ccdd", options), random_batch(examples=16), list[dict[str, Any]]()
    root.model.register_forward_pre_hook(lambda module, args, named: calls.append(named), with_kwargs=True)
    generator = RowGenerator(0, batch.position_B)
    losses = root(batch, generator, root.objective.kinds[0], 0)
    root.objective.generative_model(root.model).likelihood(
        batch.tokens_BL, latents_Bd=None, draws=1, generator=generator
    )
    training, alone = calls
    dropped_B = training["null_state_B"]
    assert 0 < int(dropped_B.sum()) < 16
    assert bool(alone["null_state_B"].all())
    assert torch.equal(training["t_state_B"][dropped_B], alone["t_state_B"][dropped_B])
    shared = torch.equal(training["t_state_B"][~dropped_B], training["t_text_B"][~dropped_B])
    assert shared == (timesteps == "shared")
    assert int(losses["state_error"][1]) == int(batch.valid_BL[~dropped_B].sum()), "dropped states have no error"


@pytest.mark.parametrize("name", REGISTRY)
def test_the_states_of_a_text_are_those_of_its_own_tokens(name: str) -> None:
    given = {"name": name, "path": str(folder_of(name)), "device": "cpu"}
    encoder = load_encoder(LocalEncoderConfig(**given, batch_tokens=40, truncate_dim=33 if name == "qwen3" else None))
    whole: Any = load_encoder(LocalEncoderConfig(**given))
    assert isinstance(encoder, TransformerEncoder)
    special = {*encoder.tokenizer.all_special_ids} - {encoder.tokenizer.unk_token_id}
    texts = ["", "\u2603 \u2603", *(" ".join(WORDS_OF_TEXTS[:count]) for count in (1, 5, 20))]
    for text, (ids_n, states_nd) in zip(texts, token_states.states_of(encoder, texts), strict=True):
        ((alone_n, alone_nd),) = token_states.states_of(whole, [text])
        inner = [i for i in encoder.tokenise([text])[0] if i not in special]
        assert ids_n.tolist() == alone_n.tolist() == inner
        np.testing.assert_allclose(states_nd, alone_nd[:, : encoder.dim], atol=1e-5)
    assert token_states.states_of(encoder, []) == []


# -- the joint sampler of texts and token states -----------------------------------------------------------------------


DIM, STEPS = 2, 4
SCHEDULE = Flow().build()


def clean(length: int) -> Tensor:
    """States (L, d), each number of which is another one."""
    return torch.arange(float(length * DIM)).view(length, DIM) / 8


def joint(*, dropped: bool = True) -> tuple[StatesDenoiser, list[Any]]:
    """A model whose states are known, and what it receives in each call."""
    seen: list[Any] = []

    def states(tokens: Tensor, z: Tensor, t: Tensor, asked: Tensor) -> tuple[Tensor, Tensor]:
        seen.append((t.tolist(), z.clone(), asked.clone()))
        return torch.zeros(int(asked.sum()), 10), clean(tokens.shape[1]).expand(len(tokens), -1, -1)

    def without(tokens: Tensor, t: Tensor, rows_A: Tensor, asked: Tensor) -> Tensor:
        seen[-1] += (rows_A.tolist(), torch.equal(asked, seen[-1][2]))
        return torch.zeros(int(asked.sum()), 10)

    return StatesDenoiser(logits=without, predict=states, dim=DIM, schedule=SCHEDULE, dropped=dropped), seen


def sampled(
    lengths: list[int], *, numbers: list[int] | None = None, open_BL: Tensor | None = None, **settings: Any
) -> tuple[Any, list[Any]]:
    """Sample texts of these lengths; returns the sample and what the model received in each call."""
    denoise, seen = joint()
    generator = RowGenerator(0, torch.tensor(numbers or list(range(len(lengths)))))
    found = text_sampler("joint_states", steps=STEPS, **settings).sample(
        Canvas(denoise=denoise, tokens=canvas(*lengths), process=build(), generator=generator, open=open_BL)
    )
    return found, seen


def test_each_state_goes_from_noise_to_the_estimate_of_its_own_token() -> None:
    _, seen = sampled([5, 3])
    points = grid(SCHEDULE, steps=STEPS, t_max=1.0)
    first = seen[0][1]
    assert first.shape == (2, 5, DIM)
    assert not torch.equal(seen[-1][1], sampled([5, 3], eta=0.5)[1][-1][1])
    for number, (t, z, _) in enumerate(seen):
        assert t == pytest.approx([1 - number / STEPS] * 2)
        expected = points[number].signal * clean(5) + points[number].noise * first
        torch.testing.assert_close(z, expected.expand(2, -1, -1), atol=1e-5, rtol=1e-5)
    assert len(seen) == STEPS


def test_the_states_of_a_text_do_not_depend_on_the_padding_of_its_batch() -> None:
    whole, together = sampled([5, 3], eta=0.5)
    alone, single = sampled([3], numbers=[1], eta=0.5)
    assert torch.equal(whole.tokens[1, :3], alone.tokens[0])
    for (_, z, _), (_, own, _) in zip(together, single, strict=True):
        torch.testing.assert_close(z[1, :3], own[0])


@pytest.mark.parametrize("guidance", [1.0, 2.0])
def test_the_prediction_without_states_is_asked_for_at_the_same_positions(guidance: float) -> None:
    found, seen = sampled([5, 3], guidance=guidance)
    assert all(call[3:] == (() if guidance == 1.0 else ([0, 1], True)) for call in seen)
    calls = STEPS if guidance == 1.0 else 2 * STEPS
    assert (found.calls_per_row.tolist(), found.model_calls) == ([calls] * 2, calls)


def test_only_open_masks_are_written_and_asked_for() -> None:
    open_BL = torch.tensor([[False, True, True, False, True], [True, False, True, True, True]])
    found, seen = sampled([5, 3], open_BL=open_BL)
    expected = torch.tensor([[False, True, True, False, True], [True, False, True, False, False]])
    assert torch.equal(seen[0][2], expected)
    assert torch.equal(found.steps >= 0, expected)
    assert (found.tokens[0, [0, 3]] == MASK).all()
    assert found.tokens[1, 3:].tolist() == [PAD, PAD]


def test_a_model_without_states_and_guidance_without_dropout_are_refused() -> None:
    sampler = text_sampler("joint_states", steps=STEPS)
    with pytest.raises(SamplingError, match="joint_states"):
        sampler.sample(Canvas(denoise=context(), tokens=canvas(3), process=build(), generator=rows(1)))
    denoise, guided = joint(dropped=False)[0], text_sampler("joint_states", guidance=0.5)
    with pytest.raises(SamplingError, match=r"guidance 0\.5"):
        guided.sample(Canvas(denoise=denoise, tokens=canvas(3), process=build(), generator=rows(1)))
    never = root_of("ccdd", {"condition_dropout": 0.0})
    assert not never.objective.generative_model(never.model).text_denoiser(None, rows(1)).dropped
    assert sampler.sample(Canvas(denoise=denoise, tokens=canvas(3), process=build(), generator=rows(1))).model_calls


# -- the store of token states -----------------------------------------------------------------------------------------


@settings(max_examples=20, deadline=None)
@given(st.lists(st.integers(1, 15), min_size=1, max_size=20), st.integers(1, 12), st.integers(1, 5), st.data())
def test_the_states_of_records_are_those_of_their_tokens_in_shards_of_whole_records(
    tmp_path_factory: pytest.TempPathFactory, write_dataset: Any,
    lengths: list[int], size: int, at_once: int, data: st.DataObject,
) -> None:  # fmt: skip
    folder = tmp_path_factory.mktemp("states")
    texts = [" ".join(f"w{(7 * number + place) % 20}" for place in range(n)) for number, n in enumerate(lengths)]
    made = write_dataset(folder, texts, ["train"] * len(texts), ids=[str(number) for number in range(len(texts))])
    lengths = [min(n, made.tokenizer.max_length) for n in lengths]

    def states_of(encoder: Any, some: list[str]) -> list[Any]:
        """The state of a token is its id, its place and the length of its text."""
        values, offsets = made.tokenizer.encode_base(some)
        rows = [values[first:last] for first, last in itertools.pairwise(offsets)]
        return [(ids, np.stack([ids, np.arange(len(ids)), 0 * ids + len(ids)], 1)) for ids in rows]

    loaded: Any = TransformerEncoder.__new__(TransformerEncoder)
    loaded.dim = 3
    encoder: Any = SimpleNamespace(
        name="e", fingerprint="f", describe=dict, locate=lambda: encoder, load=lambda _: loaded
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(token_states, "states_of", states_of)
        patch.setattr(token_states, "SHARD_TOKENS", size)
        patch.setattr(token_states, "_RECORDS_AT_ONCE", at_once)
        feature = token_states.TokenStates(token_states.CcddSection(), encoder)
        assert token_states.TokenStates(token_states.CcddSection(dtype="float32"), encoder).variant != feature.variant
        feature.make(Inputs(made.records, made.tokens, made.tokenizer, {}), folder / "made")
    store = ShardStore.open(folder / "made")
    assert all(shard.rows <= size or shard.rows in lengths for shard in store.manifest.shards)
    records = data.draw(st.lists(st.integers(0, len(texts) - 1), max_size=8))
    found_BLd = feature.field(store, made.tokens).batch(np.array(records, np.int64))
    expected = states_of(encoder, [texts[record] for record in records])
    assert [row[: lengths[record]].tolist() for row, record in zip(found_BLd, records, strict=True)] == [
        states_nd[: made.tokenizer.max_length].tolist() for _, states_nd in expected
    ]
    assert len(store) == sum(lengths)


# -- imported checkpoints ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("schedule", "scales"),
    [
        ("flow_linear", lambda t: (1 - t, t)),
        ("vp_linear", lambda t: ((1 - t).sqrt(), t.sqrt())),
        ("old", lambda t: (1 - t, ((2 - t) * t).sqrt())),
    ],
    ids=["flow_linear", "vp_linear", "old"],
)
def test_an_imported_checkpoint_has_the_logits_states_and_loss_of_its_definition(
    schedule: str, scales: Callable[[Tensor], Any], tmp_path: Path, refuses: Callable[..., Any]
) -> None:
    clean, t = ddit.clean_and_times()
    noisy, weights = ddit.masked(clean, t[:, None]), ddit.weights(states=6)
    states = torch.randn(*clean.shape, 6, generator=torch.Generator().manual_seed(2))
    logits, predicted = (
        ddit.reference(weights, noisy, t, states_BSd=states, output=layer)
        for layer in ("output_layer", "latent_output_layer")
    )
    loss = ddit.masked_cross_entropy(logits, clean, noisy, t[:, None])
    settings: dict[str, Any] = {
        "model": {"type": "mdit", "diffusion_process": "coevolutionary", "cont_schedule": schedule, "n_heads": 2},
        "training": {"p_drop_continuous": 0.2, "p_u_max": 0.0},
    }
    outputs = {"tokens": noisy, "clean": clean, "t": t, "states": states, "logits": logits, "loss": loss}
    ddit.proves(tmp_path, settings, theirs=weights, predicted_states=predicted, **outputs)
    torch.save({**outputs, "predicted_states": predicted + 0.25}, tmp_path / "theirs" / "reference.pt")
    apart: Any = import_checkpoint(tmp_path / "theirs", tmp_path / "again").differences
    assert apart.predictions == pytest.approx(0.25, abs=1e-4)
    made: Any = MMLDLM.from_run(tmp_path / "run", device="cpu")
    torch.testing.assert_close(tuple(made.model.schedule.scales(t)), scales(t))
    assert [len(text.split()) for text in made.generate(2, length=6, seed=0).texts] == [6, 6]
    assert made.score(["w1 w2"]).likelihood == "given_length"
    incomplete = ddit.folder(tmp_path / "incomplete", weights, {**settings, "training": {}})
    with refuses(CheckpointError, "training.p_drop_continuous"):
        import_checkpoint(incomplete, tmp_path / "none")
