"""The comparison of the models that write a text given its latent."""

from tests.extras.comparison.test_plan import flat, resolved


def test_it_trains_one_model_in_one_and_in_all_directions() -> None:
    both, one = (flat({key: resolved("compare_latent")[name][key] for key in ("model", "objective")})
                 for name in ("multimodal", "l2t"))  # fmt: skip
    assert {key for key in both if both[key] != one[key]} == {"objective.mode"}
