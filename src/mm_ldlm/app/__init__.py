"""Application: Kedro catalog, hooks and configuration, the command line, and MLflow."""
