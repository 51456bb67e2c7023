"""The page report.html, as far as Python makes it: one JSON value, and the file that holds it.

`page_sources` reads the folders, `page` puts the JSON and the file together, `page_rounds` encodes the rounds, `page_sweep` encodes
sweeps and `page_words` writes the sentences. How the JSON is drawn in a browser is in `report/assets`; the server that shows
runs under way is `report.watch`; figures as files are in `report.plots` and `report.gantt`.
"""
