"""Shipped test kit: store contract, fault injector, call counter, HTTP proxy. Nothing else imports it."""
