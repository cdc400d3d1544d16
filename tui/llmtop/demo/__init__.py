"""A simulated server and machine: an honest model of batching, KV cache and memory behind the real HTTP
interface.

`child.launch(machine)` starts the server as a child process, `machine.SimulatedMachine` reads the machine
beside it.
"""
