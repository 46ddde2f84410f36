"""Trackers (TensorBoard, MLflow, Weights & Biases, CSV): processes beside a run that read its records."""
