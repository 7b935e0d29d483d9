"""The report of a comparison: tables, figures and one HTML page."""
