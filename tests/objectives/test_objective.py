"""What every objective of the registry has to keep, in steps of each of its kinds."""

import dataclasses
from typing import Any, ClassVar

import pytest
import torch
from tests.components import OBJECTIVES_AND_OPTIONS, SHAPE, configs_of, labelled, model_options, random_batch, root_of
from torch import Tensor

from mm_ldlm.core import ConfigurationError, config, parse_kind
from mm_ldlm.diffusion.process import TextProcessConfig, Vocabulary
from mm_ldlm.diffusion.random import RowGenerator
from mm_ldlm.models.base import MODELS
from mm_ldlm.models.parts import FreezingSnapshot, freeze, tagged_parameters
from mm_ldlm.objectives.base import OBJECTIVES, Batch, Losses
from mm_ldlm.objectives.capabilities import USES
from mm_ldlm.objectives.root import TrainableRoot

each_objective = pytest.mark.parametrize(("kind", "options"), **labelled(OBJECTIVES_AND_OPTIONS))


def losses_of(root: TrainableRoot, batch: Batch, kind: str, *, seed: int = 0, step: int = 50) -> Losses:
    """The losses of a step at a time when every part of an objective takes part."""
    torch.default_generator.manual_seed(0)
    return root(batch, RowGenerator(seed, batch.position_B), kind, step)


def total(root: TrainableRoot, losses: Losses, batch: Batch) -> Tensor:
    """The number that training minimises."""
    objective = root.objective
    return torch.stack([
        weight * losses[name][0] / batch.normaliser(objective.units[name])
        for name, weight in objective.weights.items() if name in losses
    ]).sum()  # fmt: skip


def same(first: Losses, second: Losses, **tolerance: float) -> None:
    assert first.keys() == second.keys()
    for name, pair in first.items():
        for a, b in zip(pair, second[name], strict=True):
            torch.testing.assert_close(
                a.detach().double(), b.detach().double(), **{"rtol": 1e-4, "atol": 1e-5} | tolerance
            )


def part_of(batch: Batch, rows: slice) -> Batch:
    """A micro-batch of a global batch, without columns that are padding only."""
    length = int(batch.valid_BL[rows].sum(1).max())
    fields = {name: value[rows] for name, value in batch.fields.items()}
    return dataclasses.replace(
        batch, tokens_BL=batch.tokens_BL[rows, :length], valid_BL=batch.valid_BL[rows, :length], fields=fields,
        examples_B=batch.examples_B[rows], position_B=batch.position_B[rows],
    )  # fmt: skip


@each_objective
def test_losses_are_sums_and_counts_and_the_trained_ones_alone_have_gradients(
    kind: str, options: dict[str, Any]
) -> None:
    root, batch = root_of(kind, options), random_batch(filling=1)
    before = {name: value.clone() for name, value in batch.tensors.items()}
    moved = batch.to(torch.device("meta")).tensors
    assert {moved[name].device.type for name in (*before, *batch.fields)} == {"meta"}
    state = torch.random.get_rng_state()
    limits = {"tokens": batch.global_tokens, "examples": batch.global_size}
    for step_kind in root.objective.kinds:
        losses = root(batch, RowGenerator(0, batch.position_B), step_kind, 50)
        assert losses.keys() & root.objective.weights.keys()
        for name, (value, count) in losses.items():
            assert (value.shape, count.shape) == ((), ())
            assert bool(value.isfinite())
            assert value.requires_grad == (name in root.objective.weights), name
            if name in root.objective.weights:
                assert value.dtype == torch.float32
                assert float(count) == limits[root.objective.units[name]]
    assert all(torch.equal(value, before[name]) for name, value in batch.tensors.items())
    assert torch.equal(state, torch.random.get_rng_state()), "noise comes from the generator of the rows"


@each_objective
def test_pitfall_05_micro_batches_and_ranks_add_up_to_the_batch(kind: str, options: dict[str, Any]) -> None:
    """So the noise and the losses of an example depend neither on its neighbours nor on columns of padding."""
    root, batch = root_of(kind, options), random_batch(examples=6)
    for step_kind in root.objective.kinds:
        whole = losses_of(root, batch, step_kind)
        parts = [losses_of(root, part_of(batch, rows), step_kind) for rows in (slice(2), slice(2, 3), slice(3, 6))]
        summed = {
            name: (torch.stack([part[name][0] for part in parts]).sum(), sum(part[name][1] for part in parts))
            for name in whole if all(name in part for part in parts)
        }  # fmt: skip
        trained = root.objective.weights.keys() & whole.keys()
        assert trained <= summed.keys()
        same({name: whole[name] for name in trained}, {name: summed[name] for name in trained})


@each_objective
def test_pitfall_09_filling_and_padding_count_nowhere(kind: str, options: dict[str, Any]) -> None:
    root = root_of(kind, options)
    for step_kind in root.objective.kinds:
        filled, alone = random_batch(filling=2), part_of(random_batch(filling=2), slice(4))
        wide = {"tokens_BL": SHAPE.pad_id, "valid_BL": False}
        longer = dataclasses.replace(
            alone,
            **{
                name: torch.nn.functional.pad(getattr(alone, name), (0, 3), value=value) for name, value in wide.items()
            },
        )
        plain = losses_of(root, alone, step_kind)
        same(plain, losses_of(root, filled, step_kind))
        if SHAPE.max_length >= longer.tokens_BL.shape[1]:
            same(plain, losses_of(root, longer, step_kind))


@each_objective
def test_fixed_shapes_change_no_number(kind: str, options: dict[str, Any]) -> None:
    plain = root_of(kind, options)
    try:
        fixed = root_of(kind, options, fixed_shapes=True)
    except ConfigurationError:
        return
    for step_kind in plain.objective.kinds:
        same(*(losses_of(root, random_batch(filling=1), step_kind) for root in (plain, fixed)))


@each_objective
def test_validation_losses_of_all_steps_can_be_compared(kind: str, options: dict[str, Any]) -> None:
    """Whatever changes as training proceeds belongs to training: a ramp would make the first checkpoint the best."""
    root = root_of(kind, options).eval()
    for step_kind in root.objective.kinds:
        same(*(losses_of(root, random_batch(), step_kind, step=step) for step in (0, 50)))


@each_objective
def test_the_first_loss_is_as_announced(kind: str, options: dict[str, Any]) -> None:
    """Up to the first token of a text, which may have one possibility less."""
    root = root_of(kind, options, stirred=False)
    for step_kind in root.objective.kinds:
        losses = losses_of(root, random_batch(examples=64), step_kind)
        for name, expected in root.objective.expected_first_loss().items():
            if name in losses:
                assert float(losses[name][0].detach() / losses[name][1]) == pytest.approx(expected, rel=0.04)


@each_objective
def test_a_nan_stays_a_nan(kind: str, options: dict[str, Any]) -> None:
    """A number in its place would be trained on in silence."""
    root = root_of(kind, options)
    for parameter in root.model.parameters():
        parameter.data.fill_(torch.nan)
    for step_kind in root.objective.kinds:
        batch = random_batch()
        losses = losses_of(root, batch, step_kind)
        assert bool(total(root, losses, batch).isnan())


@each_objective
def test_pitfall_16_no_random_number_is_drawn_twice(
    kind: str, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    root, drawn = root_of(kind, options), []
    original = RowGenerator._next_key

    def next_key(generator: RowGenerator) -> int:
        drawn.append(key := original(generator))
        return key

    monkeypatch.setattr(RowGenerator, "_next_key", next_key)
    for step_kind in root.objective.kinds:
        drawn.clear()
        losses_of(root, random_batch(), step_kind)
        assert len(set(drawn)) == len(drawn)


@each_objective
def test_the_weights_of_the_losses_are_those_of_the_parameters(kind: str, options: dict[str, Any]) -> None:
    plain, _ = configs_of(kind, options)
    names = [name for name in vars(plain) if name == "z_loss" or name.endswith("_weight")]
    numbers = {name: 0.1 + 0.01 * place for place, name in enumerate(names)}
    weights = root_of(kind, {**options, **numbers}).objective.weights
    found = {name: weights.get(name.replace("_weight", "_loss"), number) for name, number in numbers.items()}
    assert found == numbers


@each_objective
def test_steps_on_one_batch_lower_the_loss(kind: str, options: dict[str, Any]) -> None:
    root, batch = root_of(kind, options, stirred=False), random_batch(examples=16)
    optimizer = torch.optim.AdamW([p for p in root.parameters() if p.requires_grad], lr=1e-2)
    for step_kind in root.objective.kinds:
        seen = []
        for _ in range(7):
            loss = total(root, losses_of(root, batch, step_kind), batch)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            seen.append(float(loss.detach()))
        assert seen[-1] < 0.99 * seen[0], step_kind


@each_objective
def test_pitfall_10_frozen_parts_do_not_move_and_all_others_are_trained(kind: str, options: dict[str, Any]) -> None:
    for trained in (False, True):
        root = root_of(kind, options)
        freeze(root, root.objective.frozen_parts(trained=trained), trained=trained)
        snapshot, seen = FreezingSnapshot(root), set[str]()
        optimizer = torch.optim.SGD([p for p in root.parameters() if p.requires_grad], lr=1e-3)
        for seed in range(2):
            for step_kind in root.objective.kinds:
                batch = random_batch(examples=16, seed=seed)
                optimizer.zero_grad()
                total(root, losses_of(root, batch, step_kind, seed=seed), batch).backward()
                seen |= {name for name, p in root.named_parameters() if p.grad is not None and bool(p.grad.any())}
                optimizer.step()
        snapshot.verify(root)
        learnable = [(name, part) for name, part, p in tagged_parameters(root) if p.requires_grad]
        assert seen <= {name for name, _ in learnable}
        idle = {name for name, part in learnable if part.occasional or part.name in root.objective.idle_parts}
        assert {name for name, _ in learnable} - idle <= seen


@each_objective
def test_an_objective_accepts_the_models_of_its_interface_alone(kind: str, options: dict[str, Any]) -> None:
    config, model = configs_of(kind, options)
    assert config.capabilities(model).uses <= set(USES)
    for other in MODELS:
        found = parse_kind(MODELS, model_options(other, {}), at="model")
        if found.interface is not model.interface:
            try:
                config.capabilities(found)
            except ConfigurationError as error:
                assert found.kind in str(error)  # noqa: PT017
            else:
                pytest.fail(f"{kind} accepts {other}")


@pytest.mark.parametrize(("mode", "orders"), [("unconditional", 3), ("mixed", 3), ("l2t", 0), ("t2l", 0)])
def test_texts_and_latents_are_generated_in_every_order_of_trained_steps(mode: str, orders: int) -> None:
    config, model = configs_of("multimodal", {"mode": mode})
    assert len(config.capabilities(model).joint_orders) == orders


@config
class FromStore(TextProcessConfig):
    """A process that is made from a store of the dataset."""

    kind: str = "tests.objectives.test_objective:FromStore"
    stores: ClassVar[tuple[str, ...]] = ("memory",)

    def build(self, vocabulary: Vocabulary, **stores: Any) -> Any:
        return stores["memory"]


@pytest.mark.parametrize("kind", list(OBJECTIVES))
def test_an_objective_asks_for_the_stores_of_its_process_or_refuses_it(kind: str) -> None:
    try:
        config, model = configs_of(kind, {"process": FromStore()})
        config.capabilities(model)
    except ConfigurationError:
        return
    assert "memory" in config.stores
