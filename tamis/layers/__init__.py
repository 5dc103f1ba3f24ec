"""The model's layers: plain torch modules over `kernels`, the same for inference and training."""
