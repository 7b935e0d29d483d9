"""All that knows the inside of numba: how the loop and policies become machine code, are kept on disk and called."""
