"""Shipped test kit: store doubles, fault injector, store contract. Nothing else imports it."""
