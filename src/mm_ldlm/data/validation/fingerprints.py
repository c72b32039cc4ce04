"""The check that the stores belong together: each was made from the present others, tokenizer and encoder."""

from __future__ import annotations

from collections.abc import Iterator

from mm_ldlm.data.validation.findings import Finding
from mm_ldlm.data.validation.subject import Subject


def check_fingerprints(subject: Subject) -> Iterator[Finding]:
    """Check that each store was made from the present other stores, tokenizer and encoder."""
    present = {name: store.manifest.fingerprint for name, store in subject.stores.items()}
    present["tokenizer"] = subject.inputs.tokenizer.fingerprint
    if subject.located is not None:
        present["encoder"] = subject.located.fingerprint
    for name, store in subject.stores.items():
        for other, stored in store.manifest.fingerprints.items():
            if stored != present.get(other, stored):
                made = store.manifest.meta.get("encoder", {}) if other == "encoder" else {}
                by = "".join(f", {key} {made[key]}" for key in ("name", "revision", "dim") if key in made)
                yield Finding(
                    "error",
                    other,
                    f"the {name} in {store.directory} were made with {other} {stored}{by}, but the present {other} has "
                    f"fingerprint {present[other]}.",
                    f"Restore the earlier settings, or remove the directory and run the {writer_of(name)} pipeline "
                    "again.",
                    count=len(store),
                )


def writer_of(name: str) -> str:
    """Return the pipeline that writes a store."""
    return "ingestion" if name in ("records", "tokens") else "embedding"
