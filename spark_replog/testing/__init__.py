"""Shipped test kit: store doubles, fault injector, store contract, simulation. Nothing else imports it."""
