"""`validation`: records, tokens, latents -> report, quarantine, plots, index, normaliser. See
`mm_ldlm.latents.checks`."""
