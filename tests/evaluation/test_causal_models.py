"""A causal model that cannot be loaded is one sentence; one that can scores texts on its own device."""

from __future__ import annotations

import re
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from mm_ldlm.core.errors import EvaluationError
from mm_ldlm.evaluation import generative


@pytest.mark.parametrize("error", [OSError("first\nsecond"), ValueError("first\nsecond"), OSError()])
@pytest.mark.parametrize("part", ["AutoTokenizer", "AutoModelForCausalLM"])
def test_a_model_that_cannot_be_loaded_is_one_sentence(
    error: Exception, part: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    import transformers

    def refuse(name: str, **_: Any) -> Any:
        raise error

    monkeypatch.setattr(transformers.AutoTokenizer, "from_pretrained", lambda name, **_: "a tokenizer")
    monkeypatch.setattr(getattr(transformers, part), "from_pretrained", refuse)
    words = re.escape(f"'org/gpt' cannot be loaded ({type(error).__name__}: {str(error)[:5]}). Give a hub name")
    with pytest.raises(EvaluationError, match=words) as refused:
        generative.CausalModel("org/gpt")
    assert "\n" not in str(refused.value)


def test_texts_are_scored_on_the_device_of_the_model() -> None:
    seen: list[Any] = []

    class Model:
        config = SimpleNamespace()

        def __call__(self, *, input_ids: Any, attention_mask: Any) -> Any:
            seen.append(
                (input_ids.device.type, attention_mask.device.type, attention_mask.dtype, torch.is_grad_enabled())
            )
            return SimpleNamespace(logits=torch.zeros(*input_ids.shape, 8, dtype=torch.bfloat16))

    made: Any = generative.CausalModel.__new__(generative.CausalModel)
    made.model, made.name, made.device = Model(), "toy", "meta"

    class Tokenizer:
        bos_token_id = None

        def __call__(self, text: str, *, add_special_tokens: bool) -> Any:
            return {"input_ids": list(range(1, 1 + len(text)))}

    made.tokenizer = Tokenizer()
    nll, count = made.nll(["abc", "ab"])
    assert (nll.tolist(), count.tolist()) == (pytest.approx([2 * np.log(8), np.log(8)]), [2, 1])
    assert seen == [("meta", "meta", torch.int64, False)]
