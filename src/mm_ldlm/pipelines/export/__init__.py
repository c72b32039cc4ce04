"""Pipeline `export`: records, tokens and latents in the older folder layout, for programs that read it."""
