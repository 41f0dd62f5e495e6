"""`ones bench control`: resources and response times of the service."""
