"""DeepRM (HotNets 2016): a learned policy starts one of the first waiting jobs, or waits."""
