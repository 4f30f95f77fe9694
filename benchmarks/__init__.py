"""Side-by-side programs and their recorded results; see RESULTS.md."""
