"""What a config is told before its run begins: settings that would do nothing are refused (`unused_settings`, by the table in
`unused_settings_rules`), so is a model that does not fit into memory (`memory_check`), and `clock_notes` says where seconds would
mislead. Values that are wrong by themselves are refused where settings are read, in `config`.
"""
