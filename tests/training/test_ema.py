"""The average of the weights by its closed form, in float32, and its use in the place of the weights."""

import torch
from torch import nn

from mm_ldlm.training.config import EmaConfig
from mm_ldlm.training.counters import TrainingState
from mm_ldlm.training.ema import Ema


def test_pitfall_20_the_average_has_its_closed_form_in_float32() -> None:
    model = nn.Linear(3, 2).to(torch.bfloat16)
    model.bias.requires_grad_(False)
    ema = Ema(model, EmaConfig(decay=0.9))
    assert {value.dtype for value in ema.values.values()} == {torch.float32}
    expected, frozen, state = model.weight.detach().double(), model.bias.detach().clone(), TrainingState(step=7)
    for update in range(40):
        with torch.no_grad():
            model.weight += 0.01 * torch.randn_like(model.weight)
            model.bias += 1
        ema.update(state)
        decay = min(0.9, (1 + update) / (10 + update))
        expected = decay * expected + (1 - decay) * model.weight.detach().double()
    torch.testing.assert_close(ema.values["weight"].double(), expected, atol=1e-6, rtol=1e-5)
    assert torch.equal(ema.values["bias"], frozen.float())


def test_averages_take_the_place_of_the_weights_and_give_it_back() -> None:
    model = nn.Linear(3, 2)
    ema = Ema(model, EmaConfig())
    before = model.weight.detach().clone()
    ema.values["weight"].fill_(7.0)
    try:
        with ema.swapped():
            assert bool((model.weight == 7).all())
            raise KeyboardInterrupt
    except KeyboardInterrupt:
        assert torch.equal(model.weight, before)


def test_a_run_without_averages_has_none() -> None:
    ema = Ema(nn.Linear(3, 2), EmaConfig(enabled=False))
    ema.update(TrainingState())
    with ema.swapped():
        assert ema.values == {}
