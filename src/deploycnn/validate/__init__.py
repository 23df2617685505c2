"""Is it still the same classifier: accuracy, parity, evidence. Pure functions over logits and evidence."""
