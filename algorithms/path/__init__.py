"""Path policies: which of a topology's paths the flows of a job take."""
