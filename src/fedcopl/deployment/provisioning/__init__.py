"""Who takes part in a study and with what: packages to hand over, keys that are given out, taken back and renewed."""
