"""What all objectives share: batches, and the mode of a model while it answers requests."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from mm_ldlm.core.errors import SamplingError
from mm_ldlm.models.base import DataShape
from mm_ldlm.objectives.base import Batch
from mm_ldlm.objectives.generation import GenerativeModel


class Nothing(GenerativeModel):
    """A model that answers no request."""

    def default_sampler(self, *, conditional: bool) -> Any:
        """Not asked."""

    def write(self, *args: Any, **keys: Any) -> Any:
        """Not asked."""

    def likelihood(self, *args: Any, **keys: Any) -> Any:
        """Not asked."""


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("fails", [True, False])
def test_a_model_answers_without_dropout_and_gradients_and_is_then_as_before(training: bool, fails: bool) -> None:
    layer = nn.Sequential(nn.Linear(2, 2), nn.Dropout(0.5)).train(training)
    made = Nothing(layer, DataShape(vocab_size=5, pad_id=0, mask_id=1, max_length=4))

    def answer() -> None:
        with made.evaluating():
            assert not layer.training
            assert not layer[1].training
            assert not layer(torch.ones(1, 2)).requires_grad
            if fails:
                raise KeyError

    if fails:
        with pytest.raises(KeyError):
            answer()
    else:
        answer()
    assert layer.training == layer[1].training == training
    assert layer(torch.ones(1, 2)).requires_grad


def test_what_a_model_does_not_provide_is_refused_by_its_name() -> None:
    made = Nothing(nn.Linear(2, 2), DataShape(vocab_size=5, pad_id=0, mask_id=1, max_length=4))
    some: Any = None
    for what, ask in {
        "a distribution over lengths": lambda: made.length_log_probs(None, rows=1),
        "log-probabilities of single tokens": lambda: made.token_log_probs(some, latents_Bd=some, generator=some),
        "latents": lambda: made.latents_given_texts(some, sampler=None, generator=some),
        "latents.": lambda: made.latents_given_lengths(some, sampler=None, generator=some),
        "latents. ": lambda: made.both(some, text=None, latent=None, generator=some),
        "classes": lambda: made.class_logits(some),
    }.items():
        with pytest.raises(SamplingError, match=f"^Nothing does not provide {what}.*Check `capabilities`"):
            ask()
    assert made.dim == 0


def test_a_batch_names_divides_pins_and_moves_all_of_its_tensors(monkeypatch: pytest.MonkeyPatch) -> None:
    tokens_BL = torch.tensor([[2, 3], [4, 0], [0, 0]])
    batch = Batch(
        tokens_BL, tokens_BL != 0, {"latents": torch.ones(3, 2), "labels": torch.zeros(3, 1)}, torch.tensor([7, 8, -1]),
        torch.tensor([4, 5, 6]), global_size=11, global_tokens=13,
    )  # fmt: skip
    assert (batch.normaliser("tokens"), batch.normaliser("examples")) == (13, 11)
    assert batch.real_B.tolist() == [True, True, False]
    assert set(batch.tensors) == {"tokens", "valid", "examples", "position", "latents", "labels"}
    assert all(batch.tensors[name] is value for name, value in batch.fields.items())
    assert batch.tensors["position"].tolist() == [4, 5, 6]
    monkeypatch.setattr(Tensor, "pin_memory", lambda tensor: tensor + 1)
    assert all(torch.equal(tensor, batch.tensors[name] + 1) for name, tensor in batch.pinned().tensors.items())
    moved = batch.to(torch.device("meta"))
    assert {tensor.device.type for tensor in moved.tensors.values()} == {"meta"}
    assert (moved.global_size, moved.global_tokens) == (11, 13)


def test_a_batch_is_moved_without_waiting_for_the_copies(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[Any, Any]] = []
    monkeypatch.setattr(Tensor, "to", lambda tensor, *args, **keys: asked.append((args, keys)) or tensor)
    tokens_BL = torch.tensor([[2, 3]])
    batch = Batch(
        tokens_BL, tokens_BL != 0, {"latents": torch.ones(1, 2)}, torch.tensor([7]), torch.tensor([4]), global_size=1,
        global_tokens=2,
    )  # fmt: skip
    device = torch.device("meta")
    assert batch.to(device).tensors.keys() == batch.tensors.keys()
    assert asked == [((device,), {"non_blocking": True})] * len(batch.tensors)


def test_the_device_of_a_generative_model_is_that_of_its_parameters() -> None:
    for device in ("cpu", "meta"):
        made = Nothing(nn.Linear(2, 2, device=device), DataShape(vocab_size=5, pad_id=0, mask_id=1, max_length=4))
        assert made.device.type == device
