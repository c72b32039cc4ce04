"""Trainers of CCDD whose checkpoints can be imported; tables as in `extras.foreign_checkpoints.trainers`.

The authors' network `mdit`, which has one stream, is read; their networks with two streams compute other functions.
"""

from typing import Any

_IN, _OUT, _ADALN = "latent_embed.", "latent_output_layer.", "adaLN_modulation."


def _trainer(cont_schedule: str, **state_schedule: Any) -> dict[str, Any]:
    """Return the table for a schedule of the states."""
    return {
        "when": {"model.diffusion_process": ("coevolutionary",), "model.cont_schedule": (cont_schedule,)},
        "needs": ("model.cont_schedule", "training.p_drop_continuous"),
        "keys": (
            ("model.type", "the network", ("mdit",)),
            ("model.use_continuous_output_norm", "a norm of the predicted states", (False,)),
            ("training.p_u_max training.p_u_min", "uniform noise of the text", (0,)),
            ("model.cont_schedule", "objective.state_schedule"),
            ("training.p_drop_continuous", "objective.condition_dropout"),
            ("model.latent_dim", "the shapes of the tensors"),
            ("model.pretrained_model_name model.contextualize_vae model.vae_normalize model.layer",
             "the encoder of the states, which `encoder` sets for the data here"),
            ("model.gamma", "uniform noise of the text, which is 0"),
            ("model.share_adaln model.n_single_list model.num_experts* model.norm_topk_prob",
             "read only by networks with two streams"),
        ),
        "model": {"kind": "ccdd", "state_adaln": True},
        "objective": {
            "kind": "ccdd", "process": {"schedule": {"kind": "log_linear", "epsilon": 0.0}},
            "state_schedule": state_schedule, "condition_dropout": "$training.p_drop_continuous",
        },
        "timesteps": "plain",
        "reads": {"t_text_B": "t", "t_state_B": "t", "states_BLd": "states"},
        "predicts": {"states_BLd": "predicted_states"},
        "fields": {"token_states": _IN + "linear.weight"},
        "rules": {
            "state_modulation.weight": ("with_norms", _IN + _ADALN + "weight", _IN + "norm_final.weight"),
            "state_modulation.bias": ("with_norms", _IN + _ADALN + "bias", _IN + "norm_final.weight"),
            "state_encoder.weight": ("scaled", _IN + "linear.weight"),
            "state_encoder.bias": ("scaled", _IN + "linear.bias"),
            "state_head.modulation.weight": ("with_norms", _OUT + _ADALN + "weight", _OUT + "norm_final.weight"),
            "state_head.modulation.bias": ("with_norms", _OUT + _ADALN + "bias", _OUT + "norm_final.weight"),
            "state_head.linear.weight": ("same", _OUT + "linear.weight"),
            "state_head.linear.bias": ("same", _OUT + "linear.bias"),
            "state_time.inner.weight": ("same", "sigma_map.mlp.0.weight"),
            "state_time.inner.bias": ("same", "sigma_map.mlp.0.bias"),
        },
        "zeros": ("null_state.value", "state_time.outer.weight", "state_time.outer.bias"),
    }  # fmt: skip


FLOW = _trainer("flow_linear", kind="flow")
LINEAR = _trainer("vp_linear", kind="power", exponent=1.0)
SQUARE = _trainer("old", kind="power", exponent=2.0)
