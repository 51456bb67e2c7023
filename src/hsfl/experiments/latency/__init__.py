"""Figs. 4 and 5: the latency of a single round under every policy, over fleets and channels, without training.

`latency_study` solves the points and keeps each as a small file, `latency_report` makes tables and figures from them, `fig4` and `fig5` say
what is varied and what the paper claims. The policies themselves are in `allocation/`; Fig. 3, which needs training, is `experiments/fig3.py`.
"""
