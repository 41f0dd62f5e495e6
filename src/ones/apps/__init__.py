"""Applications around the service: diagnosis, demonstrations, and a player of traces."""
