"""Process groups and launchers: the only room that speaks to `torch.distributed` and reads torchrun's environment.

What lives here: who am I (`process`), talking to the other ranks (`collectives`), wrapping a module for many devices
(`parallel`), starting worker processes (`launch`). What may not: anything that knows what is being trained.
"""
