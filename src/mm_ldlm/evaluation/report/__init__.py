"""Report: metrics and tables become plotly figures and one self-contained HTML page.

`inputs` defines the inputs of a report, `figures` draws (also for the catalog, so that kedro-viz previews the figures),
and `page` fills the template. No number is computed here, and all text that
comes from data is escaped.
"""

FEW_STEPS = 100
"""A run of fewer steps has learned next to nothing"""
