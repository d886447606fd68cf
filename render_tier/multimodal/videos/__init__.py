"""Videos, made into what the model's vision part is given: some frames of each."""
