"""What a run gives: tables, a summary, a timeline; and statistics over many runs."""
