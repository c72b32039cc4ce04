"""One trainable root: whatever learns in the model, the objective, the process and the schedules is trained and kept."""

import dataclasses
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.components import random_batch
from torch import Tensor, nn

from mm_ldlm.core import ConfigurationError, config, parse, parse_kind
from mm_ldlm.data.dataset_manifest import Dataset
from mm_ldlm.diffusion.random import RowGenerator
from mm_ldlm.inference.loading import load_run
from mm_ldlm.models.base import MODELS, DataShape, build_on_meta
from mm_ldlm.models.dit import DiT, DiTConfig
from mm_ldlm.models.parts import tag, tagged_parameters
from mm_ldlm.objectives.base import OBJECTIVES, Losses
from mm_ldlm.objectives.generation import DenoiserGeneration, GenerativeModel
from mm_ldlm.objectives.root import TrainableRoot, build_root
from mm_ldlm.objectives.text_diffusion import TextDiffusion, TextDiffusionConfig
from mm_ldlm.training.checkpoints import folder
from mm_ldlm.training.config import TrainingConfig
from mm_ldlm.training.spec import plan
from mm_ldlm.training.worker import train

SHAPE = DataShape(vocab_size=12, pad_id=0, mask_id=1, max_length=6, fields={"latents": (4,)})
DIT = DiTConfig(dim=8, depth=1, heads=2)
LEARNED = {
    "kind": "multimodal", "mode": "unconditional", "latent_schedule": {"kind": "learned_noise:AngleConfig"},
    "process": {"kind": "absorbing", "schedule": {"kind": "learned_noise:PowerConfig"}},
}  # fmt: skip
NAMES = ("objective.process.schedule.log_power", "objective.modality.schedule.log_power")


@pytest.fixture(autouse=True)
def outside(monkeypatch: pytest.MonkeyPatch, project: Path) -> Iterator[None]:
    """Components of another package, by import path."""
    monkeypatch.syspath_prepend(str(project / "tests" / "toy"))
    yield
    sys.modules.pop("learned_noise", None)


@pytest.fixture
def dataset(tmp_path: Path, write_dataset: Callable[..., Dataset]) -> Dataset:
    draw = np.random.default_rng(0)
    texts = [" ".join(f"w{i}" for i in draw.integers(0, 20, draw.integers(2, 8))) for _ in range(48)]
    splits = ["train"] * 40 + ["validation"] * 8
    return write_dataset(tmp_path, texts, splits, latents=draw.standard_normal((48, 4)).astype(np.float32))


def run(dataset: Dataset, name: str, *, objective: dict[str, Any] = LEARNED) -> Path:
    runs = dataset.directory.parent / "runs"
    spec = plan(
        dataset, runs=runs, seed=3, encoder={},
        model=parse_kind(MODELS, {"kind": "mmdit", "dim": 16, "depth": 1, "heads": 2}, at="model"),
        objective=parse_kind(OBJECTIVES, objective, at="objective"),
        training=_training(name),
    )  # fmt: skip
    train(spec, root=runs)
    return runs / name


def _training(name: str) -> Any:
    return parse(
        TrainingConfig,
        {"max_steps": 10, "batch": {"examples": 16}, "optimizer": {"lr": 1e-2, "warmup_steps": 2}, "device": "cpu",
         "checkpoint": {"every_steps": 5, "background": False}, "preflight": False, "run_name": name,
         "show_every_seconds": None, "ema": {"decay": 0.5}, "validate_every": 0},
        at="training",
    )  # fmt: skip


def weights(run: Path, step: int, name: str = "model") -> dict[str, Tensor]:
    return folder.tensors(folder.find(run, which=str(step)), f"{name}.safetensors")


def test_pitfall_37_a_learned_schedule_is_trained_averaged_saved_sampled_and_scored(dataset: Dataset) -> None:
    made = run(dataset, "whole")
    for name in NAMES:
        first, last, average = weights(made, 5)[name], weights(made, 10)[name], weights(made, 10, "ema")[name]
        assert not torch.equal(first, last)
        assert not torch.equal(average, last)
    loaded = load_run(made).model
    process: Any = loaded.process
    assert torch.equal(process.schedule.log_power, weights(made, 10, "ema")[NAMES[0]])
    assert torch.equal(loaded.modality.schedule.log_power, weights(made, 10, "ema")[NAMES[1]])  # type: ignore[attr-defined]
    untrained = parse_kind(OBJECTIVES, LEARNED, at="objective").process.schedule.build()
    untrained.init_weights(torch.Generator())
    canvas_BL, generator = torch.full((3, 5), loaded.shape.mask_id), RowGenerator(0, torch.arange(3))

    def results() -> list[Tensor]:
        with loaded.evaluating():
            sampler = loaded.default_sampler(conditional=False).override(steps=3)
            everywhere = torch.ones_like(canvas_BL, dtype=torch.bool)
            text = loaded.write(canvas_BL, everywhere, latents_Bd=None, sampler=sampler, generator=generator).tokens
            return [text, loaded.likelihood(text, latents_Bd=None, draws=2, generator=generator).nll_KB]

    trained = results()
    assert bool(torch.isfinite(trained[1]).all())
    assert int((trained[0] == loaded.shape.mask_id).sum()) == 0
    process.schedule = untrained  # sampling and scoring read the schedule of the process and no other
    assert not torch.equal(results()[1], trained[1])


# -- components that are refused by name --------------------------------------------------------------------------------


def build(objective: Any, model: Any = DIT) -> TrainableRoot:
    return build_root(model, objective, SHAPE, generator=torch.Generator().manual_seed(0), stores={})


def first_losses(root: TrainableRoot, kind: str = "text") -> Losses:
    found: Losses = root(random_batch(SHAPE), RowGenerator(0, torch.arange(4)), kind, 0)
    return found


@pytest.mark.parametrize("on_meta", [True, False])
def test_a_model_with_memory_that_nobody_has_set_is_refused_by_name(on_meta: bool, refuses: Any) -> None:
    class Forgetful(DiTConfig):
        def build(self, shape: DataShape, *, generator: torch.Generator, **_: Any) -> Any:
            def make() -> nn.Module:
                model = DiT(self, shape)
                model.gain = nn.Parameter(torch.empty(3))
                tag(model, "text")
                return model

            return build_on_meta(make, generator) if on_meta else make()

    with refuses(ConfigurationError, "model.gain" if on_meta else "none of model."):
        build(TextDiffusionConfig(), Forgetful(**dataclasses.asdict(DIT)))


WHOLE = nn.Parameter(torch.zeros(3))


def places(parameter: nn.Parameter) -> dict[str, tuple[Any, Callable[[Any], Tensor]]]:
    """Places of a parameter that `parameters()` does not find, and how the forward pass takes it from there."""
    tensor = torch.zeros(2, requires_grad=True)
    return {
        "list": ([parameter], lambda kept: kept[0]), "tuple": ((1, (parameter,)), lambda kept: kept[1][0]),
        "dict": ({"rate": parameter}, lambda kept: kept["rate"]), "tensor": (tensor, lambda kept: kept),
        "object": (dataclasses.make_dataclass("Holder", ["rate"])(parameter), lambda kept: kept.rate),
        "modules": ([nn.Linear(2, 2)], lambda kept: kept[0].weight), "closure": (lambda: parameter, lambda kept: kept()),
        "global": (None, lambda _: WHOLE), "class": (type("Holder", (), {"rate": parameter})(), lambda kept: kept.rate),
    }  # fmt: skip


@pytest.mark.parametrize("way", places(WHOLE))
def test_pitfall_31_a_parameter_outside_the_root_is_refused_by_its_path(way: str, refuses: Any) -> None:
    kept, take = places(nn.Parameter(torch.zeros(3)))[way]
    outside = {"text_loss": (take(kept).sum(), torch.ones(()))}
    root = build(with_losses(lambda losses: losses | (outside if root.checked_kinds else {})))
    object.__setattr__(root.objective.process, "kept", kept)
    first_losses(root, "kind of steps without it")
    with refuses(ConfigurationError, "of shape (3,)" if way in ("global", "class") else "objective.process.kept"):
        first_losses(root)


def test_tensors_that_nothing_holds_may_get_gradients() -> None:
    time = (torch.ones((), requires_grad=True) * 2, torch.ones(()))
    assert first_losses(build(with_losses(lambda losses: losses | {"text_loss": time})))["text_loss"] is time


def test_a_model_that_does_not_fit_the_objective_is_refused_by_its_inputs_and_its_outputs(refuses: Any) -> None:
    with refuses(ConfigurationError, "DiT.forward() got an unexpected keyword argument 'time_B'"):
        first_losses(build(broken(condition=lambda *_: {"time_B": torch.ones(4)})))
    root: Any = build(broken())
    root.call_as(lambda *args, **keys: (made := root.model(*args, **keys))._replace(logits=made.logits[..., 1:]))
    with refuses(ConfigurationError, "shape.vocab_size"):
        first_losses(root)


def test_an_objective_whose_inference_lacks_a_method_does_not_train() -> None:
    unfinished: Any = DenoiserGeneration
    with pytest.raises(TypeError, match="text_denoiser"):
        build(broken(generative_model=lambda model: unfinished(model, SHAPE, None, None)))


def broken(**changes: Any) -> Any:
    """The configuration of an objective with these attributes in place of its own."""

    class Broken(TextDiffusion):
        def __init__(self, *args: Any, **keys: Any) -> None:
            super().__init__(*args, **keys)
            vars(self).update(changes)

    return _built_as(Broken)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"weights": {}}, "Broken"),
        ({"weights": {"text_loss": 0.0}}, "Broken"),
        ({"units": {"text_loss": "tokens"}}, "length_loss"),
        ({"units": dict.fromkeys(("text_loss", "length_loss", "z_loss"), "token")}, "'token'"),
    ],
)
def test_an_objective_without_a_trained_loss_or_its_unit_is_refused(
    changes: dict[str, Any], named: str, refuses: Any
) -> None:
    objective = broken(**changes)
    with refuses(ConfigurationError, named):
        build(objective)


def _built_as(made: Any) -> Any:
    @config
    class Config(TextDiffusionConfig):
        def build(self, shape: DataShape, **stores: Tensor) -> Any:
            return made(self, shape)

    return Config()


def with_losses(change: Callable[[Losses], Any]) -> Any:
    """The configuration of an objective whose losses are changed."""

    class Changed(TextDiffusion):
        def forward(self, *args: Any, **keys: Any) -> Any:
            return change(super().forward(*args, **keys))

    return _built_as(Changed)


@pytest.mark.parametrize("weights", [{"text_los": 1.0}, {"text_loss": 1.0}])
def test_a_loss_without_weight_is_refused_at_the_first_step(weights: dict[str, float], refuses: Any) -> None:
    root = build(broken(weights=weights, units=dict.fromkeys(weights, "tokens")))
    with refuses(ConfigurationError, "length_loss"):
        first_losses(root)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (lambda losses: losses | {"text_los": losses.pop("text_loss")}, "text_los"),
        (lambda losses: {}, "none"),
        (lambda losses: losses | {"own_loss": tuple(x.detach() for x in losses["text_loss"])}, "own_loss"),
        (lambda losses: losses | {"text_loss": losses["text_loss"][0]}, "text_loss"),
        (lambda losses: losses | {"text_loss": (losses["text_loss"][0], 3)}, "text_loss"),
        (lambda losses: losses | {"text_loss": (losses["text_loss"][0][None], losses["text_loss"][1])}, "text_loss"),
    ],
)
def test_losses_that_cannot_be_trained_are_refused_at_the_first_step(
    change: Callable[[Losses], Any], named: str, refuses: Any
) -> None:
    with refuses(ConfigurationError, named):
        first_losses(build(with_losses(change)))


def test_parameters_of_an_objective_belong_to_its_part_unless_they_have_their_own() -> None:
    class Extra(TextDiffusion):
        def __init__(self, *args: Any, **keys: Any) -> None:
            super().__init__(*args, **keys)
            self.head = tag(nn.Linear(2, 2), "head")
            self.scale = nn.Parameter(torch.ones(1))

    root = build(_built_as(Extra))
    parts = {name: str(part) for name, part, _ in tagged_parameters(root) if name.startswith("objective.")}
    assert parts == {"objective.head.weight": "head", "objective.head.bias": "head", "objective.scale": "objective"}
    assert isinstance(root.objective.generative_model(root.model), GenerativeModel)
