"""The images, and compose.yaml in Docker or Podman (`make test-images`)."""
