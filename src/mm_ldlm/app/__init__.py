"""Application: Kedro catalog, hooks and configuration, and the command line."""
