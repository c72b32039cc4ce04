"""Process groups and launchers: the only room that uses `torch.distributed` and reads torchrun's environment.

This room contains the environment variables (`environment`), the process group (`process`), collective operations
(`collectives`), wrapping of modules for many devices and their exchange of gradients (`parallel`), the launcher of
worker processes (`launch`, `entry`) and their failure records (`failure`).
Nothing here depends on what is being trained.
"""
