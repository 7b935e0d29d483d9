"""Users' files read with bounds, tables that people write, files that appear whole, progress on a terminal."""
