"""Storage: four verbs on passive roots, one create-if-absent per backend, and which root is which."""
