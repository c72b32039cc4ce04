"""Samplers: configurations that turn a denoiser and a row generator into tokens, latents, or both.

Text samplers share an interface (`base`) and are chosen by `kind` (`registry`): `ancestral`, `ddpm_cache`, `orders`,
`uncertainty_order`, `threshold`, `remdm`, `blocks`, `self_correction`, `joint_states` and `autoregressive`; most of
them run `denoising`. The latent samplers are in `gaussian`, both modalities at once in `joint`, and the search with
re-embedding in `search` and `uncertainty`. `guidance` and `logit_filters` (temperature, top-k, top-p) serve them all.
`config` holds the parameters of the sampling pipeline. A sampler receives a model only as a closure: no files, models,
encoders or tokenizers belong here.

Shapes: B texts or latents of the request, A texts that a step evaluates, L positions, V vocabulary, M evaluated
positions, d latent dimensions.
"""
