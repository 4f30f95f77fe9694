"""Storage: operations on passive roots, one create-if-absent per backend, and the identity of roots."""
