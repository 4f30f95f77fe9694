"""The README's main job: a real table streamed into a store and back."""
