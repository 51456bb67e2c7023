"""Table 1: accuracy of the frameworks at one budget of simulated seconds, over many fleets from few trainings.

Read `columns` (what a column is) first, then `traces` (trainings without a clock), `fleets` (how long each column's rounds take, with
`column_cuts` and `column_clock`), `table1_study` (both joined), `table1_report` (words and figures) and `table1` (the whole).
`tau_row` is the row with stragglers dropped; `learned_settings` says which settings a shipped training depends on. Learning rates are
chosen in `experiments/learning_rates.py`.
"""
