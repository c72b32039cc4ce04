"""`ingestion`: sources → records, quarantine, tokenizer, tokens, report. The work is done in `mm_ldlm.data.corpus`."""
