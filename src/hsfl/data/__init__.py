"""Data sets as NumPy arrays, from files or from Python, and which client holds which samples.

`registry` finds a data set by name, `readers/` has one file for each format, `arrays` checks what people bring, `from_python` is
`hsfl.dataset`, `download` fetches public sets, `partition` divides samples among clients, `passes` counts a client's batches, and
`augment`, the only file here that imports torch, changes training images at random. Batches as tensors are made in
`training/batches.py`; which settings choose all this is decided in `runs/client_data.py`.
"""
