"""One file per format. A reader takes a `Request` and gives `Arrays`; a bad file is an InputError."""
