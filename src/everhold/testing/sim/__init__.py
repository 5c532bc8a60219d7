"""A seeded world in which the real flow and the real SQL run, fall, stall and are lied to. One seed is one schedule.

    world      what survives a crash: time, fate, the wire, the trace
    process    one life of a process, and its gates         host       starts processes, and others after them
    farside    tools, platforms, memory providers           people     who writes; operator: who is in charge
    model      answers, and falls ill as real ones do       web        the routes without sockets; callers: who asks
    witness    watches every commit and call                oracles    what must be true in the end; memories: of memory
    reference  the log read naively                         mutants    bugs planted to be found
    profile    what a seed is about                         run        one seed; tally: many; loop: virtual time

`python -m everhold.testing.sim --seeds 0:300` plays, `--story SEED` tells, `--bug NAME` hunts. A gate is a place where
a process can be crashed, stalled or cut off: every writing method of the store, every call into the world. The steps
of `ports.store.Step` are aimed at in turn, so a new one is found by the tests before anybody forgets it.
"""
