"""Shipped for authors of stores: the contract that each store must keep. Nothing else imports it."""
