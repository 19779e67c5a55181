"""How the parts of each family are put together: backbone, block rule, sampler, residual."""
