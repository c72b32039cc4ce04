"""Multimodal objective: diffusion of a text and of its latent, each with its own timestep.

The text follows a discrete process (masking), the latent a Gaussian one. The modes are those of docs/modes.md; a
timestep of 0 means that a modality is given.

B examples, L positions, M scored positions, V vocabulary, d latent dimension.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from mm_ldlm.core.config import config
from mm_ldlm.core.errors import ConfigurationError
from mm_ldlm.diffusion import gaussian
from mm_ldlm.diffusion.random import RowGenerator
from mm_ldlm.models.base import DataShape
from mm_ldlm.objectives.base import Batch, Losses, Unit, require_interface
from mm_ldlm.objectives.capabilities import Capabilities, Use
from mm_ldlm.objectives.condition_dropout import dropped
from mm_ldlm.objectives.cycle import CYCLE_UNITS, estimate_latent, latent_cycle, ramped
from mm_ldlm.objectives.gaussian_loss import gaussian_loss
from mm_ldlm.objectives.multimodal_generation import MultimodalGeneration
from mm_ldlm.objectives.multimodal_options import MultimodalOptions
from mm_ldlm.objectives.text_generation import by_use, untrained_lengths
from mm_ldlm.objectives.text_loss import length_loss, positions_of_logits, text_losses
from mm_ldlm.objectives.training_times import latent_times, shared_draw, text_times

# mode → (parts that have no loss in this mode, input parts that are frozen if they start from trained weights)
_FROZEN: dict[str, tuple[frozenset[str], frozenset[str]]] = {
    "l2t": (frozenset({"latent_head", "null_text"}), frozenset({"latent_encoder"})),
    "t2l": (frozenset({"text_head", "length_head", "null_latent"}), frozenset({"text_embedding"})),
}

_GUIDED: tuple[Use, ...] = ("l2t", "unconditional", "infill_given_latent", "edit", "interpolate")
"""Uses whose texts can be guided, where the null latent is learned and a latent is given"""


@config
class MultimodalConfig(MultimodalOptions):
    """Kind `multimodal`: text and latent with separate timesteps, in the modes l2t, t2l and unconditional."""

    @property
    def fields(self) -> tuple[str, ...]:
        return ("latents",)

    @property
    def stores(self) -> tuple[str, ...]:
        return ()

    def noise_ids(self, shape: DataShape) -> int:
        return 0

    @property
    def identity(self) -> dict[str, Any]:
        return {
            "parameterisation": self.parameterisation,
            "process": self.process.kind,
            "latent_schedule": self.latent_schedule.name,
        }

    def capabilities(self, model: Any) -> Capabilities:
        """See `objectives.base.ObjectiveConfig.capabilities`."""
        require_interface(self, model, "text_and_latent_denoiser")
        if self.process.stores:
            raise ConfigurationError(
                f"parameter 'objective.process.kind' is {self.process.kind!r}, which is made from the stores "
                f"{', '.join(self.process.stores)}; the objective 'multimodal' has processes without stores only, such "
                "as 'absorbing'. Choose one of them, or the objective 'text_diffusion'."
            )
        if model.self_condition != self.self_condition:
            raise ConfigurationError(
                f"parameter 'objective.self_condition' is {self.self_condition}, but 'model.self_condition' is "
                f"{model.self_condition}. Set both to the same value: a model can read its previous estimate only if "
                "the objective trains it to."
            )
        # A mode whose condition is always dropped is never trained with it.
        given = set(self.modes) if self.condition_dropout < 1 else set(self.modes) & {"unconditional"}
        both = "unconditional" in self.modes
        unknown_latent, unknown_text = both or self.trains_null_latent, both or self.trains_null_text
        orders = {
            "together": both,
            "latent_first": unknown_text and bool(given & {"l2t", "unconditional"}),
            "text_first": unknown_latent and bool(given & {"t2l", "unconditional"}),
        }
        no_lengths, no_lengths_given = (untrained_lengths(self, given_latents=latents) for latents in (False, True))
        uses: dict[Use, bool] = {
            "l2t": "l2t" in given,
            "t2l": bool(given & {"t2l", "unconditional"}),
            "unconditional": any(orders.values()),
            "infill": unknown_latent,
            "infill_given_latent": "l2t" in given,
            "edit": "l2t" in given,
            "interpolate": "l2t" in given,
            "search": "l2t" in given,
            "score": unknown_latent and no_lengths is None,
            "score_given_latent": "l2t" in given and no_lengths_given is None,
        }
        return Capabilities(
            uses=frozenset(use for use, able in uses.items() if able),
            likelihood="bound",
            untrained_lengths=by_use(
                {
                    "l2t": no_lengths_given,
                    "interpolate": no_lengths_given,
                    "together": no_lengths,
                    "text_first": no_lengths,
                    # A learned null text needs no length, which is then drawn given the latent.
                    "latent_first": no_lengths_given if self.trains_null_text else no_lengths,
                }
            ),
            joint_orders=tuple(name for name, able in orders.items() if able),
            reads_latents=True,
            process=self.process.traits,
            guided=frozenset(_GUIDED if self.trains_null_latent else ()),
            trained_as=f"objective multimodal, modes {', '.join(self.modes)}",
        )

    def build(self, shape: DataShape, *, fixed_shapes: bool = False) -> MultimodalObjective:
        return MultimodalObjective(self, shape, fixed_shapes=fixed_shapes)


class MultimodalObjective:
    """Losses of text, latent and length for one mode per step (`objectives.base.Objective`)."""

    def __init__(self, config: MultimodalConfig, shape: DataShape, *, fixed_shapes: bool = False) -> None:
        self.config, self.shape, self.fixed_shapes = config, shape, fixed_shapes
        self.process = config.process.build(
            vocab_size=shape.vocab_size, pad_id=shape.pad_id, mask_id=shape.mask_id
        )  # fmt: skip
        if config.cycle.latent_weight > 0 and self.process.predicts_scores:
            raise ConfigurationError(
                "parameter 'objective.cycle.latent_weight': the cycle needs a process whose model predicts the tokens, "
                f"found '{config.process.kind}', whose model predicts scores. Set it to 0, or choose 'absorbing'."
            )
        self.fields = config.fields
        self.weights: dict[str, float] = {
            "text_loss": config.text_weight,
            "latent_loss": config.latent_weight,
            "length_loss": config.length_weight,
            "z_loss": config.z_loss,
            **config.cycle.weights,
        }
        self.units: dict[str, Unit] = {
            "text_loss": "tokens", "latent_loss": "examples", "length_loss": "examples", "z_loss": "tokens",
            **{name: CYCLE_UNITS[name] for name in config.cycle.weights},
        }  # fmt: skip
        self.kinds: tuple[str, ...] = config.modes
        weights = [
            float(getattr(config.loss_type_weights, name)) if len(self.kinds) > 1 else 1.0 for name in self.kinds
        ]
        self._edges = [(name, sum(weights[: i + 1]) / sum(weights)) for i, name in enumerate(self.kinds)]

    # -- queries of the training loop ---------------------------------------------------------------------------------

    def kind(self, generator: RowGenerator, *, step: int) -> str:
        """Choose the mode of a step, the same on all ranks and in all micro-batches."""
        if len(self.kinds) == 1:
            return self.kinds[0]
        if self.config.mode == "sequential":
            return self.kinds[(step // self.config.sequential_steps) % len(self.kinds)]
        drawn = shared_draw(generator, "mode")
        return next((name for name, edge in self._edges if drawn < edge), self.kinds[-1])

    def frozen_parts(self, *, trained: bool) -> frozenset[str]:
        """Return the parts that a single mode does not train (docs/modes.md)."""
        always, when_trained = _FROZEN.get(self.config.mode, (frozenset(), frozenset()))
        return always | when_trained if trained else always

    @property
    def idle_parts(self) -> frozenset[str]:
        return frozenset({"length_head"}) if self.config.length_weight == 0 else frozenset()

    def expected_first_loss(self) -> dict[str, float]:
        """Return log V per scored token, V without [MASK] and [PAD]: the text head starts at 0."""
        return {"text_nll": math.log(len(self.shape.word_ids))}

    def generative_model(self, model: nn.Module) -> MultimodalGeneration:
        return MultimodalGeneration(model, self.shape, self.config)

    # -- the losses of a micro-batch ----------------------------------------------------------------------------------

    def __call__(self, model: nn.Module, batch: Batch, generator: RowGenerator, *, kind: str, step: int) -> Losses:
        noise_text, noise_latent = kind != "t2l", kind != "l2t"
        dropped_B = dropped(generator, self.config.condition_dropout)
        zeros_B = torch.zeros(len(batch.examples_B), device=batch.examples_B.device)

        # -- text: noised at its own timestep; in t2l given, or replaced by the learned null text ---------------------
        tokens_BL, t_text_B = batch.tokens_BL, zeros_B
        if noise_text:
            t_text_B = text_times(self.process, batch, generator.fork("text_time"))
            tokens_BL = self.process.corrupt(
                batch.tokens_BL, batch.valid_BL, t_text_B, generator.fork("text_noise")
            )  # fmt: skip

        # -- latent: noised at its own timestep; in l2t given, or replaced by the learned null latent -----------------
        x0_Bd, t_latent_B = batch.fields["latents"], zeros_B
        x_t_Bd, noise_Bd = x0_Bd, None
        if noise_latent:
            t_latent_B = latent_times(batch, generator.fork("latent_time"), t_min=self.config.t_min)
            noise_Bd = generator.fork("latent_noise").normal(x0_Bd.shape[1], dtype=torch.float32)
            signal_B, scale_B = self._signal(t_latent_B)
            x_t_Bd = gaussian.add_noise(x0_Bd, noise_Bd, signal_B=signal_B, noise_scale_B=scale_B)

        inputs: dict[str, Any] = {
            "valid_BL": batch.valid_BL, "t_text_B": t_text_B, "latents_Bd": x_t_Bd, "t_latent_B": t_latent_B,
        }  # fmt: skip
        if kind == "l2t":
            inputs["null_latent_B"] = dropped_B
        elif kind == "t2l":
            inputs["null_text_B"] = dropped_B
        # The length head reads the clean latent, whatever the trunk reads. Where the condition is dropped, the head
        # learns the marginal distribution of lengths. `mixed` trains the head in every step; t2l alone freezes it.
        inputs["length_latents_Bd"], inputs["null_length_B"] = x0_Bd, dropped_B
        if self.config.self_condition and noise_latent:
            inputs["self_condition_Bd"] = self._self_condition(model, tokens_BL, inputs, generator)
        want_length = self.config.length_weight > 0 and (noise_text or self.config.mode == "mixed")
        wanted = {"text": noise_text, "latent": noise_latent, "length": want_length}
        inputs["heads"] = tuple(name for name, here in wanted.items() if here)
        scored_BL = self.process.scored(tokens_BL, batch.valid_BL) if noise_text else None
        if scored_BL is not None:
            inputs["logits_at"] = positions_of_logits(scored_BL, fixed_shapes=self.fixed_shapes)
        out = model(tokens_BL, **inputs)

        losses: Losses = {}
        if scored_BL is not None:
            losses |= text_losses(
                self.process, out.logits_BLV, batch, tokens_BL, scored_BL, t_text_B,
                gathered=inputs["logits_at"] is not None, word_id=self.shape.word_ids[0], z_loss=self.config.z_loss > 0,
            )  # fmt: skip
        if noise_latent:
            assert noise_Bd is not None
            losses |= self._latent_loss(out.latent_Bd, x0_Bd, x_t_Bd, noise_Bd, t_latent_B, batch.real_B)
        if want_length:
            losses |= length_loss(out.length_logits_BN, batch)
        ramp = self.config.cycle.ramp(step)
        if kind == "l2t" and self.config.cycle.text_weight > 0 and ramp > 0:
            losses |= self._text_cycle(model, batch, inputs, tokens_BL, generator.fork("text_cycle"), ramp=ramp)
        if kind == "t2l" and self.config.cycle.latent_weight > 0 and ramp > 0:
            total, count = latent_cycle(
                model, batch, generator.fork("latent_cycle"), process=self.process,
                schedule=self.config.latent_schedule, parameterisation=self.config.parameterisation,
                shape=self.shape,
            )  # fmt: skip
            losses |= ramped("cycle_latent", total, count, ramp=ramp)
        return losses

    def _text_cycle(
        self, model: nn.Module, batch: Batch, inputs: dict[str, Any], noisy_BL: Tensor, generator: RowGenerator, *,
        ramp: float,
    ) -> Losses:  # fmt: skip
        """Compute the text loss of an l2t step given the model's own estimate of the latent from the clean text."""
        latents_Bd = estimate_latent(
            model, batch, generator, schedule=self.config.latent_schedule,
            parameterisation=self.config.parameterisation, tokens_BL=batch.tokens_BL,
        )  # fmt: skip
        given = {**inputs, "latents_Bd": latents_Bd, "null_latent_B": None, "heads": ("text",)}
        out = model(noisy_BL, **given)
        total, count = text_losses(
            self.process, out.logits_BLV, batch, noisy_BL, self.process.scored(noisy_BL, batch.valid_BL),
            inputs["t_text_B"], gathered=inputs["logits_at"] is not None, word_id=self.shape.word_ids[0], z_loss=False,
        )["text_loss"]  # fmt: skip
        return ramped("cycle_text", total, count, ramp=ramp)

    def _latent_loss(
        self, prediction_Bd: Tensor, x0_Bd: Tensor, x_t_Bd: Tensor, noise_Bd: Tensor, t_B: Tensor, real_B: Tensor
    ) -> Losses:
        """See `gaussian_loss`."""
        return gaussian_loss(
            prediction_Bd, x0_Bd, x_t_Bd, noise_Bd, t_B, real_B,
            schedule=self.config.latent_schedule, parameterisation=self.config.parameterisation,
            weight=self.config.latent_loss, gamma=self.config.min_snr_gamma, name="latent",
        )  # fmt: skip

    def _signal(self, t_B: Tensor) -> tuple[Tensor, Tensor]:
        return self.config.latent_schedule.signal(t_B), self.config.latent_schedule.noise(t_B)

    def _self_condition(
        self, model: nn.Module, tokens_BL: Tensor, inputs: dict[str, Any], generator: RowGenerator
    ) -> Tensor:
        """Estimate x_0 (B, d) by a first pass in half of the steps; zeros otherwise (arXiv:2208.04202, §3.2)."""
        x_t_Bd = inputs["latents_Bd"]
        if shared_draw(generator, "self_condition") >= 0.5:
            return torch.zeros_like(x_t_Bd)
        with torch.no_grad():
            first = model(tokens_BL, **inputs, self_condition_Bd=torch.zeros_like(x_t_Bd), heads=("latent",))
            signal_B, scale_B = self._signal(inputs["t_latent_B"])
            return gaussian.to_x0(
                first.latent_Bd.float(), self.config.parameterisation,
                x_t_Bd=x_t_Bd, signal_B=signal_B, noise_scale_B=scale_B,
            )  # fmt: skip
