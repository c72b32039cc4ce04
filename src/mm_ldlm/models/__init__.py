"""Models and their components: layers, embeddings, heads, parts and freezing.

A model is a configuration that builds an `nn.Module` for data of a certain shape (`models.base`, which also lists the
kinds). Modules receive tensors in standardised latent space and token ids, and return logits and predictions. No data,
no loss, no file and no process group belong here.
"""
