"""The panels of the dashboard: pure functions from a `View` to lines of a given size."""
