"""Tables besides JSONL files: CSV, Parquet and Arrow files, saved data sets, and data sets of the hub.

The source `table` of the core reads such files too, as long as this folder exists.
"""

COMPONENTS: dict[str, dict[str, str]] = {
    "sources": {
        "csv": "mm_ldlm.extras.tables.delimited:CsvConfig",
        "parquet": "mm_ldlm.extras.tables.files:ParquetConfig",
        "arrow": "mm_ldlm.extras.tables.files:ArrowConfig",
        "disk": "mm_ldlm.extras.tables.files:DiskConfig",
        "hub": "mm_ldlm.extras.tables.hub:HubConfig",
    }
}
