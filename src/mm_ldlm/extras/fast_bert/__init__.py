"""Fast BERT: encoders such as the default one start without transformers, whose import takes seconds.

Without this folder, transformers computes the same vectors.
"""

COMPONENTS: dict[str, dict[str, str]] = {"encoder_models": {"bert": "mm_ldlm.extras.fast_bert.bert:loaded"}}
