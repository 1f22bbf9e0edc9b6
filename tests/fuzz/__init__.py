"""Fuzzing of the codecs: any bytes give a value or the named error, never another exception."""
