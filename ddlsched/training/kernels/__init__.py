"""Kernels measured on a GPU at hand, and the estimate's constants that they give."""
