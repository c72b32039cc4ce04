"""Number of floating-point operations of an MMDiT by formula, and its check against torch's counter.

An operation is a multiplication or an addition. A product of (m, k) and (k, n) matrices has 2·m·k·n of them. Linear
layers and the two products of attention are counted; norms, activations, softmax and the embedding lookup are not.
With gradients a step has three times the operations of a forward pass, because the backward pass computes two products
for each of the forward pass. Recomputation by gradient checkpointing is not counted, so that a utilisation is that of
the model and not that of the hardware (PaLM, arXiv:2204.02311, appendix B).
"""

from __future__ import annotations

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils.flop_counter import FlopCounterMode

from mm_ldlm.core.errors import ConfigurationError
from mm_ldlm.extras.gpu_check.outcome import Finding, Number, Setting
from mm_ldlm.models.base import DataShape, count_parameters
from mm_ldlm.models.mmdit import Head, MMDiT, MMDiTConfig
from mm_ldlm.models.timestep_embedding import TIME_FEATURES

MMDIT_892M = MMDiTConfig(
    dim=1024, depth=24, heads=16, latent_tokens=8, mlp_ratio=3.125, token_vectors="random", direct_views=False,
    gradient_checkpointing=True,
)  # fmt: skip
"""The model of conf/mmdit_892m, without a YAML reader; a test compares the two."""
SHAPE_892M = DataShape(vocab_size=30_522, pad_id=0, mask_id=103, max_length=1024, latent_dim=32)
PARAMETERS_892M = 891_404_154
BACKWARD = 3
"""Operations of a step with gradients, in forward passes"""


def forward_flops(
    config: MMDiTConfig, shape: DataShape, *, examples: int, length: int, logits: int, heads: tuple[Head, ...]
) -> int:
    """Compute the operations of one forward pass.

    Args:
        examples, length: B texts of L positions each, padding included.
        logits: number of positions at which the vocabulary head is computed: all B·L on a GPU.
        heads: heads that the objective asks for.

    Raises:
        ConfigurationError: the formula does not cover an option of the model.
    """
    if config.token_vectors != "random" or config.direct_views or config.two_stream_blocks != config.depth:
        raise ConfigurationError(
            "expected an MMDiT with random token vectors, no direct views and two streams in every block, found "
            f"token_vectors={config.token_vectors!r}, direct_views={config.direct_views}, "
            f"cross_modal_blocks={config.cross_modal_blocks}. Use torch's FlopCounterMode for this model."
        )
    B, L, K, D, C, M = examples, length, config.latent_tokens, config.dim, config.condition_dim, config.mlp_dim
    d, V, N, W = shape.latent_dim or 0, shape.vocab_size, shape.max_length, config.length_hidden_dim or config.dim
    conditioning = 2 * (TIME_FEATURES * C + C * C) + (d * C + C * C if config.condition_on_latent else 0)
    per_example = conditioning + d * (2 if config.self_condition else 1) * K * D
    total = 2 * B * per_example
    for block in range(config.depth):
        last = block == config.depth - 1
        total += 4 * B * (L + K) ** 2 * D  # QKᵀ and the product with V
        for positions, head in ((L, "text"), (K, "latent")):
            total += 2 * B * (C * 6 * D + positions * 3 * D * D)  # modulation; Q, K and V
            if not last or head in heads:  # the last block updates only the streams that a head reads
                total += 2 * B * positions * (D * D + 2 * D * M)  # output projection and MLP
    if "text" in heads:
        total += 2 * B * C * 2 * D + 2 * logits * D * V
    if "latent" in heads:
        total += 2 * B * (C * 2 * D + K * D * d)
    if "length" in heads:
        total += 2 * B * (d * W + W * W + W * N)
    return total


def flops(setting: Setting) -> Finding:
    """The formula for the 892M model at 4 texts of 1,024 positions against torch's counter, without computing."""
    examples = 4
    heads: tuple[Head, ...] = ("text", "length")
    counted, parameters = counted_flops(MMDIT_892M, SHAPE_892M, examples=examples, heads=heads)
    length = SHAPE_892M.max_length
    formula = forward_flops(
        MMDIT_892M, SHAPE_892M, examples=examples, length=length, logits=examples * length, heads=heads
    )  # fmt: skip
    faults = []
    if formula != counted:
        faults.append(
            f"expected {counted:,} operations (torch's counter), found {formula:,} by formula. Correct forward_flops."
        )
    if parameters != PARAMETERS_892M:
        faults.append(f"expected {PARAMETERS_892M:,} parameters, found {parameters:,}. Correct MMDIT_892M.")
    numbers: dict[str, Number] = {
        "GFLOP per token": BACKWARD * formula / (examples * length) / 1e9,
        "ratio to torch's counter": formula / counted, "parameters": parameters,
    }  # fmt: skip
    return Finding(numbers, tuple(faults))


def counted_flops(config: MMDiTConfig, shape: DataShape, *, examples: int, heads: tuple[Head, ...]) -> tuple[int, int]:
    """Return the operations of a forward pass by torch's counter, and the parameters; nothing is computed."""
    with FakeTensorMode(), torch.no_grad():
        model = MMDiT(config, shape, attention="unfused").eval()
        time_B = torch.zeros(examples)
        with FlopCounterMode(display=False) as counter:
            model(
                torch.zeros(examples, shape.max_length, dtype=torch.int64), valid_BL=None, t_text_B=time_B,
                latents_Bd=torch.zeros(examples, shape.latent_dim or 0), t_latent_B=time_B, heads=heads,
            )  # fmt: skip
    return counter.get_total_flops(), count_parameters(model)
