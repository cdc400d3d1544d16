"""A reverse proxy that measures a server by the traffic that passes, and tells it on a metrics page of its own."""
