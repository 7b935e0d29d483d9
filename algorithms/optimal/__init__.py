"""How good any scheduler could be: the exact optimum of small instances, and a lower bound of large ones."""
