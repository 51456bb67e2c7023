"""Codecs: what makes a message smaller before it travels, each in a file with its equation and error bound.

`codec` says what a codec is. `float16`, `int8` and `topk` are the codecs, `head_codec` codes trained heads as differences, `link_codecs`
makes the codecs that the settings name, `coding_speed` times them. Their names, sizes and costs are rows of `hsfl.codec_table`, and `hsfl.training.link` uses them.
"""
