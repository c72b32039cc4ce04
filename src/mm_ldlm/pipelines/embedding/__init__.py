"""`embedding`: records -> latents. The work is done in `mm_ldlm.latents.extract` and `mm_ldlm.encoders`."""
