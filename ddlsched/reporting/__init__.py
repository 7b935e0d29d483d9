"""A comparison's folder as charts and as one self-contained HTML file."""
