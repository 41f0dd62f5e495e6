"""Scripts that `ones bench rescale` and `ones bench overhead` run, as the lab may not use torch."""
