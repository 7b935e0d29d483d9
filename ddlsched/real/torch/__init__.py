"""For training code of your own: a PyTorch job takes part in the scheduling of a gate with one line."""

from ddlsched.real.torch.scheduled import scheduled

__all__ = ["scheduled"]
