"""How good any scheduler could be: a lower bound of the average JCT."""
