"""What the model is given of texts whose states are dropped, in training and afterwards."""

from typing import Any

import torch
from tests.components import random_batch, root_of

from mm_ldlm.diffusion.random import RowGenerator


def test_dropped_states_have_the_same_time_in_training_as_in_a_likelihood() -> None:
    root, batch, calls = root_of("ccdd", {"condition_dropout": 0.5}), random_batch(examples=16), list[dict[str, Any]]()
    root.model.register_forward_pre_hook(lambda module, args, named: calls.append(named), with_kwargs=True)
    generator = RowGenerator(0, batch.position_B)
    root(batch, generator, root.objective.kinds[0], 0)
    root.objective.generative_model(root.model).likelihood(
        batch.tokens_BL, latents_Bd=None, draws=1, generator=generator
    )
    training, alone = calls
    dropped_B = training["null_state_B"]
    assert 0 < int(dropped_B.sum()) < 16
    assert bool(alone["null_state_B"].all())
    assert torch.equal(training["t_state_B"][dropped_B], alone["t_state_B"][dropped_B])
    assert torch.equal(training["t_state_B"][~dropped_B], training["t_text_B"][~dropped_B])
