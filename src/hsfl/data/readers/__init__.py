"""Readers of data, one file for each format or published set: a function `read_NAME(request: Request) -> Arrays`.

To add one: write `readers/NAME.py` with its `read_NAME`, and enter the function in `READERS` of `data/registry.py`; a name that is followed by
a path, as in `csv:PATH`, is also listed in `DATA_KINDS` of `config/reading.py`. `reader_base.py` has what readers share: `Request`, `Arrays`, the errors, images,
held-out test samples. `data/arrays.py` checks arrays of unknown content. A file that cannot be read is an InputError. A data set of a
user's own needs no file here: `hsfl.register_dataset` takes it from a plugin.
"""
