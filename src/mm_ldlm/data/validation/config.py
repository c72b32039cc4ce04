"""Limits of the checks of the validation."""

from typing import Literal

from mm_ldlm.core import Fraction, NonNegativeFloat, PositiveFloat, Rows, RowsOrNone, config


@config
class ValidationConfig:
    """Limits of the validation checks.

    Attributes:
        verify_checksums: read every byte of records, tokens and latents and compare sha256.
        norm_tolerance: allowed difference from norm 1 if the encoder normalises; other rows go to quarantine.
        norm_outlier_iqrs: for other encoders, norms this many interquartile ranges outside the middle half are
            outliers.
        on_norm_outlier: "warn" or "quarantine".
        on_duplicate_vector: reaction to different texts with the same vector: "warn", or "quarantine" for all but the
            first.
        max_duplicate_fraction: the contract fails when a larger fraction of rows shares its vector with another row.
        collapsed_std: a dimension with at most this standard deviation counts as collapsed.
        max_collapsed_fraction: the contract fails when a larger fraction of the dimensions is collapsed.
        max_drift: a larger distance of a shard's mean from the shards' median, in total standard deviations, is a
            warning.
        spot_rows: number of rows, drawn over all shards, that are encoded again and compared; 0 skips the check.
        spot_tolerance: largest relative distance of a vector to its re-encoding; null chooses 1e-4 for float32, 3e-3
            for float16 storage, and 5e-2 for encoders that compute in half precision.
        on_leakage: training texts that occur in an evaluation set: "remove" (to quarantine) or "report".
        max_quarantine_fraction: the contract fails when a larger fraction of the rows is in quarantine.
        plot_rows: number of sampled rows for the spectrum and nearest-neighbour plots.
    """

    verify_checksums: bool = True
    norm_tolerance: PositiveFloat = 1e-3
    norm_outlier_iqrs: PositiveFloat = 8.0
    on_norm_outlier: Literal["warn", "quarantine"] = "warn"
    on_duplicate_vector: Literal["warn", "quarantine"] = "warn"
    max_duplicate_fraction: Fraction = 0.05
    collapsed_std: NonNegativeFloat = 1e-6
    max_collapsed_fraction: Fraction = 0.05
    max_drift: PositiveFloat = 0.5
    spot_rows: RowsOrNone = 256
    spot_tolerance: PositiveFloat | None = None
    on_leakage: Literal["remove", "report"] = "remove"
    max_quarantine_fraction: Fraction = 0.01
    plot_rows: Rows = 20_000
