"""Control from another process: one JSON object per line over a unix socket in the home. Adds nothing to control.py.

    client (cli) ── {"id": 1, "method": "find", "params": {"name": "last"}} ─▶ server (in the process with the lock)
                 ◀─ {"id": 1, "result": {…}}    or {"id": 1, "error": {"type", "message", "remedy", "exit"}}
                 ◀─ {"id": 2, "event": {"entry": {…}}}    as often as something happens, for `follow`

`client` needs nothing but the standard library, so that asking a running gateway costs little; `methods` knows control.
"""
