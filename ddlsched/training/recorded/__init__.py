"""Jobs from recorded training: traces of PyTorch (Kineto) and Chakra, and what ``ddlsched record`` writes."""
