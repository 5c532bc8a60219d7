"""A deterministic simulator. It runs the real engine and the real SQL in virtual time and injects faults.

One seed is one schedule of crashes, stalls, lost answers and clock jumps.

    world            what survives a crash: time, random draws, the network, the trace
    process          one process and its gates                host        starts and replaces processes
    remote_services  tools, platforms, memory providers       model       a model with faults
    people           users who write in chats                 operator    uses the admin operations
    http             the API routes without sockets           callers     programs that use them
    invariants       checks every commit and call             oracles     checks the final state
    memories         checks the final state of memories       reference   reads the log in the simplest way
    profile          the settings of a seed                   mutants     planted bugs that must be found
    run              runs one seed                            statistics  runs many seeds
    loop             virtual time                             power_loss  power cuts

`python -m everhold.testing.sim --seeds 0:300` runs seeds, `--story SEED` prints the events of one seed, and `--bug
NAME` searches for a seed that finds a mutant. With `--hosts`, two to four hosts share one store, which they reach over
a network: they have clocks of their own, are cut off, lose answers of the store, drain, and hand accounts over.

A gate is a place where a process can be crashed, stalled or cut off: every writing method of the store and every call
to a remote service. Each seed's first crash is aimed at one of the steps of `ports.store.Step`, so the tests cover a
new step without further work.
"""
