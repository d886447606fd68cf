"""Image inputs, made into what the model's vision part is given. Never imported for a text model."""
