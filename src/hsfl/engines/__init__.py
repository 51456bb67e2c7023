"""Where the clients of a round are trained: in this process, or by worker processes. The numbers are the same.

An engine is started before the data are read, so that workers load torch meanwhile; `attach` gives it the framework, whose
rounds it then spreads. Only frameworks that keep a copy of the server side for each client can be spread: their clients do
not wait for each other within a round.
"""
