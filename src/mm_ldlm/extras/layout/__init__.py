"""Older folder layout: read as a source, written as an export.

    texts/train/00000000.txt       UTF-8, the text and nothing else
    tokens/train/00000000.npz      array `input_ids`, int32
    latents/train/00000000.npy     array (d,)
    train_data.json                [{"id", "text_path", "token_path", "latent_path", "source", "meta"}, ...]
    validation_data.json           the same for texts/validation/…; test_data.json for texts/test/…

Rows are numbered from 0 within their split, in the order of the records. Paths in the lists are relative to the folder.
Without the lists, texts/<split>/*.txt are read in the order of their names. A latent that a list does not name has the
name of the text. Tokens are written and not read. The folder may also be a .zip file.
"""

COMPONENTS: dict[str, dict[str, str]] = {
    "sources": {"layout": "mm_ldlm.extras.layout.source:LayoutConfig"},
    "sections": {"export": "mm_ldlm.extras.layout.export:ExportConfig"},
    "pipelines": {"export": "mm_ldlm.extras.layout.pipeline:create_pipeline"},
}
