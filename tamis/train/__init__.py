"""Training: the forward of `models.m3` under autograd, and the recipe of the bundled checkpoint."""
