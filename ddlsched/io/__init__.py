"""Files that appear whole, tables that people write, progress on a terminal."""
