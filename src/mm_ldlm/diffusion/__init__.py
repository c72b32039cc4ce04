"""Mathematics of both diffusions: text processes, Gaussian diffusion, schedules, loss weights, per-example noise.

This room contains pure functions and frozen objects over tensors, in the papers' notation (docs/mathematics.md).
Models, loops, files and global seeds do not belong here: randomness comes in as a `RowGenerator`. `process.py` is the
interface of diffusion over tokens and lists the processes; `masked.py` implements it, as do the families.
"""
