"""The report: metrics and tables become plotly figures and one HTML page that needs nothing but a browser.

`figures` draws (also for the catalog, where kedro-viz previews them), `content` picks and words what is shown, `page`
fills the template. No number is computed here, and every text that comes from data is escaped.
"""
