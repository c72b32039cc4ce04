"""Sources in columns: Parquet and Arrow files, saved data sets, and data sets of the hub.

The source `table` of the core reads such files too, as long as this folder exists.
"""

COMPONENTS: dict[str, dict[str, str]] = {
    "sources": {
        "parquet": "mm_ldlm.extras.columnar.files:ParquetConfig",
        "arrow": "mm_ldlm.extras.columnar.files:ArrowConfig",
        "disk": "mm_ldlm.extras.columnar.files:DiskConfig",
        "hub": "mm_ldlm.extras.columnar.hub:HubConfig",
    }
}
