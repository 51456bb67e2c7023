"""Data sets as NumPy arrays, from files or from Python, and which client holds which samples.

`registry` finds a data set by name, `readers/` has one file for each format, `arrays` checks what people bring, `from_python` is
`hsfl.dataset`, `download` fetches public sets, `partition` divides samples among clients, `passes` counts a client's batches, and
`augment`, the only file here that imports torch, changes training images at random. Batches as tensors are made in
`training/batches.py`; which settings choose all this is decided in `runs/client_data.py`.
"""

OFFERED = {  # to other folders, by module
    "arrays": ("pixel_note",),
    "augment": ("AUGMENTATIONS", "check_augmentation"),
    "download": ("fetch",),
    "from_python": ("dataset", "dataset_digest", "fit_dataset", "is_torch_dataset"),
    "partition": ("check_classes", "class_counts", "dirichlet", "Holdings", "is_redrawn", "partition", "sizes_of"),
    "passes": ("batches_of_pass", "RoundSteps", "samples_of_round", "steps_of_round"),
    "readers.reader_base": ("FILE_FIELDS", "FileSettings"),
    "readers.text": ("read_pydoc", "read_text", "TASK"),
    "registry": (
        "class_counts_of",
        "Dataset",
        "FACTS",
        "Facts",
        "find_data_dir",
        "load_dataset",
        "OwnReader",
        "READERS",
        "register_dataset",
        "samples_of_clients",
    ),
}
