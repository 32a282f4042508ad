"""The programs that Leadview is compared with. Each is a process of its own; `bench.candidates` and
`bench.consuming_peers` start them."""
