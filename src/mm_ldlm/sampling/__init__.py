"""Samplers: configurations that turn a denoiser and a row generator into tokens, latents, or both.

Text samplers share an interface (`base`) and are chosen by `kind` (`registry`): from `ancestral`, `orders`,
families and extras; most of them run `denoising`. The latent samplers are in `gaussian`, both modalities at
once in `joint`, and the search with re-embedding in `search`. `guidance` and `logit_filters` (temperature, top-k,
top-p) serve them all. A sampler receives a model only as a closure: no files, models, encoders or tokenizers belong
here.

Shapes: B texts or latents of the request, A texts that a step evaluates, L positions, V vocabulary, M evaluated
positions, d latent dimensions.
"""
