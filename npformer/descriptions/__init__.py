"""What each part of a model declares about itself: its stages, the shapes of its weights, and the mistakes of ports."""
