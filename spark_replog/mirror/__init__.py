"""Coming from Kafka, and going back: mirrors with the same offsets, and checkpoints that go on in the other system."""
