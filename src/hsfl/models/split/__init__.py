"""`hsfl.split`: any `nn.Module` becomes a SplitModel, cut where its graph allows.

The way through the files: `graph_split` is the entrance. `torch_export` gives the module's program, `trace` makes a graph of it, `cut_points`
finds the legal cuts and chooses among them, `codegen` writes the code of the units, and `module_split` is the model that comes out,
which a `certificate` compares with the whole module at every cut.
Modules that are given in order need none of this: see `hsfl.models.units.in_order`.
"""
